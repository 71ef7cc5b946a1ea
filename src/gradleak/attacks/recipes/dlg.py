"""Deep Leakage from Gradients (Zhu, Liu and Han, 2019)."""

from dataclasses import replace
from typing import Literal

from gradleak.attacks.combine import ByKind, Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.optimisers import LBFGS
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels, Smooth
from gradleak.attacks.recipes.tag import tag
from gradleak.registry import register


@register("attack", "dlg")
def dlg(
    steps: int | None = None, restarts: int | None = None, tv: float = 3.0,
    labels: Literal["joint", "counted", "given", "known"] | None = None, published: bool = False,
) -> ByKind:
    """Match the update in l2, images and soft labels together by L-BFGS, text by Adam.

    By default 1000 steps from 2 starts with labels=joint for images; 600 from 1 with labels=known for text.

    Differs from the paper, for images: a line search instead of a fixed step; starts in the pixel range, and several;
    each layer's difference divided by the layer's length (early layers have small gradients but hold the picture); the
    logarithm of the mismatch, with a total-variation prior that weighs in proportion to it; a search over weighed
    frequencies instead of pixels. published=true undoes all but the line search. For text: as `tag` does.
    """
    words = tag(steps, 0.0, None, 1 if restarts is None else restarts, labels or "known", published=published)
    pictures = Descent(1000 if steps is None else steps, ways(labels or "joint"), objectives.l2,
                       optimiser=LBFGS(memory=100), rate=1.0, space=Pixels(box=False))
    if not published:
        pictures = replace(pictures, objective=objectives.balanced(objectives.l2), priors=((tv, total_variation),),
                           log=True, space=Smooth())
    return ByKind(Restart(pictures, 2 if restarts is None else restarts), words)
