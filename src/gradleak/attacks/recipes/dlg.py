"""Deep Leakage from Gradients (Zhu, Liu and Han, 2019)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import Labels, ways
from gradleak.attacks.parts.optimisers import LBFGS
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels, Smooth
from gradleak.registry import register


@register("attack", "dlg")
def dlg(
    steps: int = 1000, restarts: int = 2, tv: float = 3.0, labels: Literal["joint", "counted", "given"] = "joint",
    published: bool = False,
) -> Restart:
    """Match the update in l2 by L-BFGS, data and soft labels together.

    Differs from the paper: a line search instead of a fixed step; starts in the pixel range, and several; each layer's
    difference divided by the layer's length (early layers have small gradients but hold the picture); the logarithm of
    the mismatch, with a total-variation prior that weighs in proportion to it; a search over weighed frequencies
    instead of pixels. published=true undoes all but the line search.
    """
    read: Labels = ways(labels)
    if published:
        plain = Descent(steps, read, objectives.l2, optimiser=LBFGS(memory=100), rate=1.0,
                        space=Pixels(box=False))
        return Restart(plain, restarts)
    matching = objectives.balanced(objectives.l2)
    return Restart(
        Descent(steps, read, matching, ((tv, total_variation),), LBFGS(memory=100), rate=1.0, log=True,
                space=Smooth()),
        restarts,
    )
