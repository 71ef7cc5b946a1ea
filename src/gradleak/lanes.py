"""Many candidates replayed at once."""

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor

from gradleak.calculus import factoring, in_lanes, straight
from gradleak.factored import Factored, Masked, Stacked, Value
from gradleak.residual import distance
from gradleak.tap import Untapped
from gradleak.types import Batch, Replay, Update

Way = Literal["factored", "at once", "in turn"]
Extra = Mapping[str, Tensor]

REFUSALS = (Untapped, RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError)
"""What a model, a client or a defense that cannot be taken this way raises."""

CLOSE = 1e-7
"""Squared relative difference from the plain replay up to which a fast way is the same thing but for rounding."""

SHAKE, MORE = 1e-6, 4.0
"""A relative change of the input that is nothing but rounding, and how much more than it a fast way may make."""


TURN = 0.02
"""The cosine distance from a client's local steps up to which one gradient may stand for them while searching. Small
steps, rounded to float32, are about a tenth of it away; what is reported is replayed step by step."""


class Lanes:
    """Replays R candidate batches, stacked along a new first axis: factored, or at once, or else in turn.

    Which of them the model, the client and the attacker's copy of the defense allow is found by trying two candidates
    and comparing them with the plain replay. `apart` takes them in turn in any case: for those who watch layers.
    Local steps that hardly turn are taken for one. `masked`: whether entries are left out of factored gradients.
    """

    def __init__(self, replay: Replay, x: Tensor, y: Tensor, extra: Extra | None = None, factor: bool = False,
                 apart: bool = False) -> None:
        self.replay = replay
        tried = (x[:2].detach(), y[:2].detach(), {k: v[:2].detach() for k, v in (extra or {}).items()})
        self.way: Way = "in turn"
        self.masked = False
        if factor and (self._agrees("factored", *tried) or self._straightened(*tried)):
            self.way = "factored"
        elif len(x) > 1 and not apart and self._agrees("at once", *tried):
            self.way = "at once"

    def _straightened(self, x: Tensor, y: Tensor, extra: Extra) -> bool:
        """Whether the client's steps may be taken for one, which can be factored."""
        steps = self.replay
        with torch.no_grad():
            turning = self._alone(x, y, extra, 0)
            self.replay = straight(steps)
            turn = distance(self._alone(x, y, extra, 0), turning).cosine
        if turn < TURN and self._agrees("factored", x, y, extra):
            return True
        self.replay = steps
        return False

    def _agrees(self, way: Way, x: Tensor, y: Tensor, extra: Extra) -> bool:
        gap = size = 0.0
        try:
            with torch.no_grad():
                fast = self._take(way, x, y, extra)
                self.masked = any(isinstance(value, Masked) for value in fast.values())
                for lane in range(len(x)):  # one layer of one candidate at a time: a large model fits in memory once
                    slow = self._alone(x, y, extra, lane)
                    for name, plain in slow.items():
                        gap += float((_of_lane(fast.get(name), lane, plain) - plain).square().sum())
                        size += float(plain.square().sum())
                return gap <= CLOSE * size or gap <= MORE * self._shaken(x, y, extra)
        except REFUSALS:
            return False

    def _alone(self, x: Tensor, y: Tensor, extra: Extra, lane: int) -> Update:
        return self.replay(Batch(x[lane], y[lane], {name: value[lane] for name, value in extra.items()}))

    def _shaken(self, x: Tensor, y: Tensor, extra: Extra) -> float:
        """By how much the plain replay itself changes with the last digits of its input: a sign makes much of them
        where a gradient is nothing but rounding."""
        total = 0.0
        for lane in range(len(x)):
            once, again = (self._alone(x * by, y, extra, lane) for by in (1.0, 1 + SHAKE))
            total += sum(float((again[name] - once[name]).square().sum()) for name in once)
        return total

    def _take(self, way: Way, x: Tensor, y: Tensor, extra: Extra) -> Stacked:
        names = list(extra)
        if way == "factored":
            with factoring(len(x)):
                flat = {name: extra[name].flatten(0, 1) for name in names}
                return cast(Stacked, self.replay(Batch(x.flatten(0, 1), y.flatten(0, 1), flat)))
        if way == "at once":
            return in_lanes(lambda a, b, *more: self.replay(Batch(a, b, dict(zip(names, more, strict=True)))),
                            x, y, *[extra[name] for name in names])
        each = [self.replay(Batch(x[i], y[i], {name: extra[name][i] for name in names})) for i in range(len(x))]
        return {name: torch.stack([update[name] for update in each]) for name in each[0]}

    def __call__(self, x: Tensor, y: Tensor, extra: Extra | None = None) -> Stacked:
        way = "in turn" if len(x) == 1 and self.way == "at once" else self.way
        return self._take(way, x, y, extra or {})


def _of_lane(value: Value | None, lane: int, like: Tensor) -> Tensor:
    """One lane's gradient of one parameter, multiplied out; zero where there is none."""
    if value is None:
        return torch.zeros_like(like)
    if isinstance(value, Tensor):
        return value[lane]
    if isinstance(value, Masked):
        return _of_lane(value.whole, lane, like) * value.mask
    return Factored(value.inputs[lane][None], value.deltas[lane][None], value.flipped, value.rows).dense()[0]
