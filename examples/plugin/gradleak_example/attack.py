"""An attack: gradient matching from a grey start with a strong taste for flat areas."""

from gradleak.attacks.descent import Descent
from gradleak.attacks.parts import objectives, schedules
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels


def palette(steps: int = 200, flatness: float = 0.05) -> Descent:
    """Cosine matching with total variation that fades out: finds the colours early, the edges late."""
    return Descent(
        steps,
        objective=objectives.cosine,
        priors=((schedules.geometric(flatness, flatness / 1000), total_variation),),
        rate=schedules.cosine(0.1),
        space=Pixels(begin="grey"),
    )
