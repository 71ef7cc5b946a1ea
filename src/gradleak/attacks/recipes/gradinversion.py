"""GradInversion (Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov, 2021)."""

from typing import Literal

from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.priors import Moment, brightness, consensus, total_variation
from gradleak.attacks.parts.spaces import Pixels
from gradleak.registry import register


@register("attack", "gradinversion")
def gradinversion(
    steps: int = 2000, restarts: int = 2, tv: float | None = None, bn: float | None = None,
    group: float | None = None, rate: float = 0.1, jitter: float | None = None,
    labels: Literal["joint", "counted", "given", "lowest", "minimum", "evolved"] | None = None,
    published: bool = False,
) -> Descent:
    """Match the update from several starts that are held together by their registered mean, with total variation and
    the statistics of BatchNorm.

    Differs from the paper: registration by phase correlation in whole pixels instead of optical flow. And unless
    published=true: balanced layers, the logarithm of the mismatch's cosine and a rate that falls by equal factors, as
    in `ig`; labels counted by evolution; statistics compared in their own units; half the noise. published=true is the
    paper's: squared distance, labels by the lowest entries, each once, a rate that falls as a cosine.

    Statistics are those granted as norm_stats, else those an evaluating client normalises by; without any, bn is idle.
    """
    if published:
        return Descent(steps, ways(labels or "minimum"), objectives.l2,
                       ((_or(tv, 1e-1), total_variation), (1e-3, brightness), (_or(group, 1e-2), consensus)),
                       rate=schedules.cosine(rate, warm=0.05), norms=(_or(bn, 1e-3), Moment(published=True)),
                       jitter=_or(jitter, 0.2), lanes=restarts)
    return Descent(steps, ways(labels or "evolved"), objectives.balanced(objectives.cosine, 0.5),
                   ((_or(tv, 3.0), total_variation), (_or(group, 3.0), consensus)),
                   rate=schedules.geometric(rate, rate / 100), log=True, space=Pixels(begin="uniform"),
                   norms=(_or(bn, 0.3), Moment()), jitter=_or(jitter, 0.1), lanes=restarts)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
