"""TAG: Gradient Attack on Transformer-based Language Models (Deng et al., 2021)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import ways
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.registry import register


@register("attack", "tag")
def tag(
    steps: int = 2500, weight: float = 0.01, rate: float = 0.1, restarts: int = 1,
    labels: Literal["known", "joint", "counted", "given"] = "known",
) -> Restart:
    """Match the update in l2 plus `weight` times l1 by Adam over word embeddings; each becomes the nearest word.

    Differs from the paper: the settings are those LAMP found best for it (Adam at 0.1 without decay, 2,500 steps); the
    words with the lowest residual are kept, and the search ends once they explain the update; labels that are not
    granted are counted first, lengths that are not granted are read off the update's rank.
    """
    return Restart(
        Descent(steps, ways(labels), objectives.l2_l1(weight), rate=rate, space=Embeddings(scaled=False)), restarts)
