"""Deep Leakage from Gradients (Zhu, Liu and Han, 2019)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import Counted, Joint, Labels
from gradleak.attacks.parts.optimisers import LBFGS
from gradleak.registry import register


@register("attack", "dlg")
def dlg(
    steps: int = 1500, restarts: int = 2, balance: bool = True, labels: Literal["joint", "counted"] = "joint",
) -> Restart:
    """Match the update in l2 by L-BFGS, data and soft labels together.

    Differs from the paper: a line search instead of a fixed step, starts in the pixel range and several of them, and
    each layer's difference divided by the layer's length (balance=false for the plain sum of squares): early layers
    have small gradients but hold the picture.
    """
    read: Labels = Joint() if labels == "joint" else Counted()
    objective = objectives.balanced_l2 if balance else objectives.l2
    return Restart(Descent(steps, read, objective, optimiser=LBFGS(memory=100), rate=1.0, box=False, begin="uniform"),
                   restarts)
