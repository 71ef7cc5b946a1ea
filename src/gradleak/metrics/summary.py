"""Many samples in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Mean with a 95 % bootstrap interval, and the worst case: the sample that leaked most."""

    mean: float
    low: float
    high: float
    worst: float
    per_sample: tuple[float, ...]


def summarise(scores: Sequence[float], better: Literal["higher", "lower"], draws: int = 1000) -> Summary:
    values = np.asarray(scores, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[picks].mean(1), [0.025, 0.975])
    worst = values.max() if better == "higher" else values.min()
    return Summary(float(values.mean()), float(low), float(high), float(worst), tuple(map(float, values)))
