"""High-Fidelity Gradient Inversion (Ye, Luo, Zhou and Tang, 2024)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.priors import Moment, total_variation
from gradleak.attacks.parts.spaces import Pixels
from gradleak.attacks.parts.views import Deepening
from gradleak.registry import register


@register("attack", "hf_gradinv")
def hf_gradinv(
    steps: int = 2000, restarts: int = 1, tv: float | None = None, bn: float | None = None, rate: float = 0.1,
    t1: float = 0.2, t2: float = 1 / 3, stepwise: bool = True, dropout: float | None = None,
    shallowest: float | None = None, deepest: float = 1.0,
    labels: Literal["joint", "counted", "given", "lowest", "minimum", "evolved"] = "evolved", published: bool = False,
) -> Restart:
    """Match the deepest layers first and shallower ones step by step, a random share of entries left out each time;
    total variation from t1 of the run on, the statistics of BatchNorm from t2. Labels by evolution.

    `shallowest` and `deepest` are shares of the depth, in parameter tensors: layers outside are never matched.

    Differs from the paper: depth as a share, so that any model will do. And unless published=true: down to the first
    layer; balanced layers, the logarithm of the mismatch, Adam on the gradient itself and a rate that falls by equal
    factors, as in `ig`; a tenth of the entries left out; statistics compared in their own units.

    Statistics are those granted as norm_stats, else those an evaluating client normalises by; without any, bn is idle.
    """
    last = (0.23 if published else 0.0) if shallowest is None else shallowest
    view = Deepening(first=max(last, 0.9 * deepest) if stepwise else last, last=last, deepest=deepest,
                     dropout=(0.3 if published else 0.1) if dropout is None else dropout)
    weights = (5e-3, 1e-4) if published else (3.0, 0.3)
    smoothing = schedules.begun(weights[0] if tv is None else tv, t1)
    norms = schedules.begun(weights[1] if bn is None else bn, t2), Moment(published)
    falling = schedules.staircase(rate, 0.33) if published else schedules.geometric(rate, rate / 100)
    plan = Descent(
        steps, ways("evolved_published" if published and labels == "evolved" else labels), objectives.cosine,
        ((smoothing, total_variation),), rate=falling, direction=directions.stepped(),
        norms=norms, view=view,
    ) if published else Descent(
        steps, ways(labels), objectives.balanced(objectives.cosine, 0.5), ((smoothing, total_variation),),
        rate=falling, log=True, space=Pixels(begin="uniform"), norms=norms, view=view,
    )
    return Restart(plan, restarts)
