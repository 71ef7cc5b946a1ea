"""Numbers that change over a run. A schedule may stand wherever a number may."""

from collections.abc import Callable

Schedule = Callable[[int, int], float]
Number = float | Schedule


def at(number: Number, step: int, steps: int) -> float:
    """The value at a step out of so many."""
    return number(step, steps) if callable(number) else number


def staircase(first: float, factor: float = 0.1, at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)) -> Schedule:
    """Multiply by `factor` as each fraction of the run is passed."""
    return lambda step, steps: first * factor ** sum(step >= share * steps for share in at)


def cosine(first: float, last: float = 0.0, warm: float = 0.0) -> Schedule:
    """Rise linearly over the share `warm`, then fall along half a cosine."""
    from math import cos, pi

    def value(step: int, steps: int) -> float:
        if step < warm * steps:
            return first * (step + 1) / (warm * steps)
        done = (step - warm * steps) / max(1.0, (1 - warm) * steps)
        return last + (first - last) * (1 + cos(pi * done)) / 2

    return value


def geometric(first: float, last: float) -> Schedule:
    """From `first` to `last` by equal factors."""
    return lambda step, steps: first * (last / first) ** (step / max(1, steps - 1))


def stairs(first: float, factor: float, every: int) -> Schedule:
    """Multiply by `factor` every so many steps."""
    return lambda step, steps: first * factor ** (step // every)


def linear(first: float) -> Schedule:
    """Down to nothing at the end."""
    return lambda step, steps: first * (1 - step / steps)


def begun(value: float, share: float) -> Schedule:
    """Nothing at first, the value from that share of the run on."""
    return lambda step, steps: value if step >= share * steps else 0.0
