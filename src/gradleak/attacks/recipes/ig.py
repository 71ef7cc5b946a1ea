"""Inverting Gradients (Geiping, Bauermeister, Dröge and Moeller, 2020)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels
from gradleak.registry import register


@register("attack", "ig")
def ig(
    steps: int = 2000, restarts: int = 2, tv: float | None = None, rate: float = 0.1,
    labels: Literal["joint", "counted", "given", "lowest", "minimum", "evolved"] = "counted", published: bool = False,
) -> Restart:
    """Match the update's direction by Adam with total variation, inside the pixel range, labels read first.

    Differs from the paper: starts in the pixel range; layers balanced as in `dlg`, by half as much; the logarithm of
    the mismatch, so that total variation (3 by default) weighs in proportion to it; Adam on the gradient rather than
    its sign, the rate falling by equal factors. published=true is the paper's: plain cosine, tv 0.01, signs, the rate
    in stairs.
    """
    if published:
        weight = 0.01 if tv is None else tv
        return Restart(
            Descent(steps, ways(labels), objectives.cosine, ((weight, total_variation),),
                    rate=schedules.staircase(rate), direction=directions.sign),
            restarts,
        )
    weight = 3.0 if tv is None else tv
    return Restart(
        Descent(steps, ways(labels), objectives.balanced(objectives.cosine, 0.5), ((weight, total_variation),),
                rate=schedules.geometric(rate, rate / 100), log=True,
                space=Pixels(begin="uniform")),
        restarts,
    )
