"""Inverting Gradients (Geiping, Bauermeister, Dröge and Moeller, 2020)."""

from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.labels import Counted, Joint, Labels
from gradleak.attacks.parts.priors import total_variation
from gradleak.registry import register


@register("attack", "ig")
def ig(
    steps: int = 2000, restarts: int = 2, tv: float = 3e-2, rate: float = 0.1, labels: Literal["joint", "counted"] = "counted",
) -> Restart:
    """PLACEHOLDER"""
    read: Labels = Joint() if labels == "joint" else Counted()
    return Restart(Descent(steps, read, objectives.cosine, ((tv, total_variation),), rate=schedules.staircase(rate), direction=directions.sign), restarts)
