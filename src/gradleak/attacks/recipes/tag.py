"""TAG: Gradient Attack on Transformer-based Language Models (Deng et al., 2021)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.masks import Dropout, dropping
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.registry import register


@register("attack", "tag")
def tag(
    steps: int | None = None, weight: float = 0.01, rate: float | None = None, restarts: int = 1,
    labels: Literal["known", "joint", "counted", "given"] = "known", dropout: Dropout = "averaged",
    published: bool = False,
) -> Restart:
    """Match the update in l2 plus `weight` times l1 by Adam over word embeddings; each becomes the nearest word.
    dropout=drawn or learnt: what the client dropped is drawn by the attacker too, or searched for beside the words.

    Differs from the paper: starts as long as words are; the logarithm of the mismatch; the rate falls from 0.02 by
    equal factors, over 600 steps. published=true undoes these, with the settings LAMP found best for it (0.1 without
    decay, 2,500 steps). Always: the words with the lowest residual are kept, and the search ends once they explain the
    update; labels that are not granted are counted first, lengths that are not granted are read off the update's rank.
    """
    objective = objectives.l2_l1(weight) if weight else objectives.l2
    if published:
        plan = Descent(2500 if steps is None else steps, ways(labels), objective, rate=rate or 0.1,
                       space=dropping(Embeddings(scaled=False), dropout))
    else:
        fall = schedules.geometric(rate or 0.02, (rate or 0.02) / 20)
        plan = Descent(600 if steps is None else steps, ways(labels), objective, rate=fall, log=True,
                       space=dropping(Embeddings(), dropout))
    return Restart(plan, restarts)
