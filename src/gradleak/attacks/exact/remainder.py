"""Whether what sentences leave of a noisy update is noise alone: as much in the space they reach as outside of it.

A layer's gradient has nothing but noise outside the space of what the layer was given, which sentences tell. Wrong
ones leave more inside, by many standard deviations for a single word in millions of entries: so it is known when a
search is at its end, without any limit for the noise being given. Where noise is so loud that words hardly count, they
would leave noise alone whatever they are, and nothing is concluded.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.span import oriented
from gradleak.calculus import peek
from gradleak.types import Batch, Update

ALIKE = 1e-4
"""Beside the longest direction of what a layer is given: what is no direction of its own."""


@dataclass(frozen=True)
class Remainder:
    """How much likelier the update would be if what is left inside were as little as outside, in nats; and how much
    that is by chance (one standard deviation)."""

    more: float
    chance: float


@torch.no_grad()
def remainder(door: Entrance, batch: Batch, given: Update) -> Remainder:
    """Of a batch, which would have `given` so much."""
    update, more, variance = door.seen.update, 0.0, 0.0
    groups = [part for group in door.groups if (part := [layer for layer in group if layer.name in update])]
    inputs = peek(door.seen.replay, batch, *(group[0].name for group in groups))
    for group, x in zip(groups, inputs, strict=True):
        space = _space(x, batch.extra["mask"].flatten().bool())
        for layer in group:
            sent, own = oriented(update, layer), oriented(given, layer).to(space)
            left = sent - (sent * own).sum() / own.square().sum().clamp_min(1e-300) * own
            inside = left.shape[0] * space.shape[1]
            outside = left.numel() - inside
            if inside < outside:
                held = float((left @ space).square().sum())
                share = held / max(float(left.square().sum()) - held, 1e-300) * outside / inside
                more += inside / 2 * (share - 1)
                variance += inside / 2 * (1 + inside / outside)
    return Remainder(more, math.sqrt(variance)) if variance else Remainder(math.inf, math.inf)


def _space(x: Tensor, there: Tensor) -> Tensor:
    """A basis (columns) of what a layer is given; of tokens only those that are there."""
    rows = x.double().reshape(-1, x.shape[-1])
    if len(rows) == len(there):
        rows = rows[there]
    _, sizes, axes = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = axes[sizes > ALIKE * sizes[0]].mT
    return basis
