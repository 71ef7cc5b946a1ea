"""Labels."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradleak.registry import register


def hard(y: Tensor) -> Tensor:
    """Class numbers, from class numbers or soft labels."""
    return y.argmax(-1) if y.ndim == 2 else y


@dataclass(frozen=True)
class LabelAccuracy:
    """Per sample, whether its label is among the guessed ones, each guess used once: order does not count.

    Labels leak from almost any classifier's update, so this never decides a verdict.
    """

    name: str = "label_accuracy"
    better: Literal["higher", "lower"] = "higher"
    leak_at: float | None = None
    about: str = "labels"

    def __call__(self, readings: Tensor, truths: Tensor) -> list[float]:
        left = Counter(hard(readings).tolist())
        scores = []
        for label in truths.tolist():
            scores.append(float(left[label] > 0))
            left[label] -= 1
        return scores


@register("metric", "label_accuracy")
def label_accuracy() -> LabelAccuracy:
    """Share of the batch's labels that were inferred."""
    return LabelAccuracy()
