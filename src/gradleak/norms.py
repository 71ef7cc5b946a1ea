"""What BatchNorm sees: the inputs of a model's normalising layers while someone watches.

Neutral ground: models note, attacks watch their own replay.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor

from gradleak.calculus import inside_lanes


class Moments(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    variance: Tensor


class Met(NamedTuple):
    """What reached one layer, and the statistics it normalises by; none where these are the batch's own."""

    layer: str
    x: Tensor
    by: Moments | None


Statistics = Mapping[str, Moments]
"""Of the data a model was trained on, by the names of its normalising layers."""

_watched: ContextVar[list[Met] | None] = ContextVar("watched", default=None)


@contextmanager
def watching() -> Iterator[list[Met]]:
    """Everything that reaches a normalising layer in here, in the order of use."""
    met: list[Met] = []
    token = _watched.set(met)
    try:
        yield met
    finally:
        _watched.reset(token)


def note(layer: str, x: Tensor, by: Moments | None) -> None:
    """Tell whoever watches. What many lanes compute at once cannot be told apart, and is not told."""
    met = _watched.get()
    if met is not None and not inside_lanes():
        met.append(Met(layer, x, by))


def moments(x: Tensor) -> Moments:
    """Of a batch, over all but the channels."""
    rest = [axis for axis in range(x.ndim) if axis != 1]
    return Moments(x.mean(rest), x.var(rest, unbiased=False))
