"""Which coordinates of a known vector were dropped, when all that is seen of the rest is a space that it lies in.

Dropout keeps each coordinate of e as it is or makes it 0. With b = 1 where it was dropped, e (1 - b) must lie in the
space: linear equations in numbers between 0 and 1, most of them 0. The solution that drops least is found by
alternating between equations and bounds, for all vectors at once; a false vector finds none that drops as little.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

PACE = 1.6
"""How far each step overshoots."""

OPEN = 96
"""How many doubtful coordinates are solved for at once, at most."""

RATE = 0.1
"""The share of dropped coordinates that is held likely before any was seen."""

EVEN = 0.3
"""Coordinates well below this share of the mean size stay cheap to drop."""

DONE = 1e-6
"""What lies outside when every coordinate is right."""

FINEST = 1e-9
"""The smallest variance of a prediction."""


@dataclass(frozen=True)
class Thinning:
    """Vectors (n x d, mean size 1) on the way to their dropped coordinates. `dropped` is within the bounds, from 0 to
    e_i; `price` is what a unit of it costs; `seen` solves the equations; `pull` is what has held the two together so
    far."""

    vectors: Tensor
    dropped: Tensor
    price: Tensor
    seen: Tensor
    pull: Tensor

    @property
    def share(self) -> Tensor:
        """How much of every coordinate is dropped, between 0 and 1."""
        return (self.seen / torch.where(self.vectors == 0, 1, self.vectors)).clamp(0, 1)

    def only(self, rows: Tensor) -> "Thinning":
        parts = self.vectors, self.dropped, self.price, self.seen, self.pull
        return Thinning(*(part[rows] for part in parts))


def thinning(vectors: Tensor, tilt: Tensor | None = None) -> Thinning:
    """The start: nothing is dropped. With a tilt, large coordinates are as cheap to drop as small ones, as they are for
    the client, but for what dropping them takes away (or adds) in the tilt's direction: other solutions are found
    then, in more steps."""
    x = (vectors / vectors.abs().mean(1, keepdim=True)).float()
    nothing, price = torch.zeros_like(x), torch.ones_like(x)
    if tilt is not None:
        price = 1 / (x.abs() + EVEN)
        price = price / price.mean(1, keepdim=True) + tilt.float() * x.sign()
    return Thinning(x, nothing, price, nothing, nothing)


def thinned(now: Thinning, basis: Tensor, steps: int) -> Thinning:
    """Some steps on (the alternating direction method of multipliers)."""
    x, dropped, seen, pull = now.vectors, now.dropped, now.seen, now.pull
    size, sign = x.abs(), x.sign()
    for _ in range(steps):
        seen = x - ((x - dropped + pull) @ basis) @ basis.mT
        ahead = PACE * seen + (1 - PACE) * dropped + pull
        dropped = torch.minimum((ahead * sign - now.price).clamp_min(0), size) * sign
        pull = ahead - dropped
    return replace(now, dropped=dropped, seen=seen, pull=pull)


@dataclass(frozen=True)
class Settled:
    """Per vector, which coordinates are kept, and the share of what is kept that still lies outside the space."""

    kept: Tensor
    off: Tensor


def settled(vectors: Tensor, share: Tensor, outside: Tensor, rounds: int = 4, rate: float = RATE) -> Settled:
    """Every coordinate kept or dropped, no fractions, in float64; `outside` projects on what is not in the space.

    Each round solves the equations for the most doubtful coordinates, the others held; rounds each of these to e_i or
    0, whichever is nearer; and predicts every coordinate from all others, which says where to doubt next.
    """
    x = vectors.double()
    doubtful = int(min(OPEN, float(outside.diagonal().sum()) / 2))
    likely = 1 - share.double()
    best = Settled(torch.zeros_like(x, dtype=torch.bool), torch.full_like(x[:, 0], torch.inf))
    rows = torch.arange(len(x))
    for _ in range(rounds):
        kept = _rounded(x[rows], likely, outside, doubtful)
        rest = torch.where(kept, x[rows], 0)
        out = rest @ outside
        off = (out * rest).sum(1).clamp_min(0).sqrt() / rest.norm(dim=1).clamp_min(1e-300)
        better = off < best.off[rows]
        best.kept[rows[better]], best.off[rows[better]] = kept[better], off[better]
        on = off > DONE
        rows = rows[on]
        if not len(rows):
            break
        likely = _predicted(x[rows], rest[on], out[on], outside.diagonal(), rate)
    return best


def _rounded(x: Tensor, likely: Tensor, outside: Tensor, doubtful: int) -> Tensor:
    """Which coordinates are kept, when the most doubtful are solved for and the others are what is likely."""
    places = (likely - 0.5).abs().topk(doubtful, 1, largest=False).indices
    kept = likely > 0.5
    held = torch.where(kept, x, 0).scatter(1, places, 0)
    inner = outside[places[:, :, None], places[:, None, :]]
    inner = inner + 1e-12 * torch.eye(doubtful, dtype=inner.dtype)
    solved = torch.linalg.solve(inner, -(held @ outside).gather(1, places))
    return kept.scatter(1, places, (solved - x.gather(1, places)).abs() < solved.abs())


def _predicted(x: Tensor, rest: Tensor, out: Tensor, own: Tensor, rate: float) -> Tensor:
    """How likely each coordinate is kept, by what all others say of it."""
    own = own.clamp_min(1e-2)
    variance = (out * rest).sum(1, keepdim=True).clamp_min(0) / own.sum()
    said, spread = rest - out / own, variance * (1 - own) / own + FINEST
    return torch.sigmoid(torch.logit(torch.tensor(1 - rate)) + (x * said - x.square() / 2) / spread)
