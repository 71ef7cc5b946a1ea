"""What a linear layer was given, as far as its gradient tells: the space its inputs span.

A layer Y = X W^T has the gradient G = D^T X: every row of it is a mix of the inputs X. Layers that are given the same
inputs (query, key and value) tell together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradleak.tap import Layer
from gradleak.types import Update

ROUNDING = 3e-7
"""The size of float32's rounding in a gradient's singular values, beside the largest."""

NEAR = 30.0
"""A fall that ends within this factor of rounding ends in rounding."""

CLIFF = 8.0
"""By how much singular values must fall where what was seen ends and rounding begins."""


@dataclass(frozen=True)
class Span:
    """Directions that inputs have (`basis`, d x r) and have not (`rest`), in float64.

    `clean`: singular values fall off a cliff into rounding, so that the rank is sure and membership can be tested
    exactly; else the rest of the space is filled too, by noise, compression or more tokens than dimensions.
    """

    basis: Tensor
    rest: Tensor
    values: Tensor
    clean: bool
    shown: int | None = None
    """How many inputs there were, where not all directions that they do not have are known."""

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def seen(self) -> int:
        """How many inputs there were, as long as none is a mix of others."""
        return self.rank if self.shown is None else self.shown

    @property
    def free(self) -> int:
        """Directions in which a vector can be ruled out."""
        return self.rest.shape[1]

    def off(self, x: Tensor) -> Tensor:
        """The share of each vector's length that lies outside, 0 for what is inside."""
        x = x.double()
        return (x @ self.rest).square().sum(-1).sqrt() / x.square().sum(-1).sqrt().clamp_min(1e-300)


def oriented(update: Update, layer: Layer) -> Tensor:
    """A layer's gradient, outputs x inputs, in float64."""
    return update[layer.name].double().mT if layer.flipped else update[layer.name].double()


def together(parts: Sequence[Tensor]) -> Tensor:
    """Gradients of layers with one input, one below the other, each of length one."""
    return torch.cat([part / part.norm().clamp_min(1e-300) for part in parts])


def stacked(update: Update, layers: Sequence[Layer]) -> Tensor:
    """The gradients of layers with one input together (outputs x inputs)."""
    return together([oriented(update, layer) for layer in layers])


def triangle(matrix: Tensor) -> Tensor:
    """With the same singular values and rows' space: much less work for a tall matrix, and as exact."""
    _, upper = torch.linalg.qr(matrix, mode="r")
    return cast(Tensor, upper)


def least_squares(system: Tensor, wanted: Tensor) -> Tensor:
    """By singular values: the default way pivots differently from run to run. A GPU has one way only."""
    driver = "gelsd" if system.device.type == "cpu" else "gels"
    found: Tensor = torch.linalg.lstsq(system, wanted, driver=driver).solution
    return found


def span(matrix: Tensor, rank: int | None = None, top: float | None = None) -> Span:
    """The space of a gradient's rows; `rank` if it is known. `top` is the largest singular value that rounding was
    made beside, where it is no longer in the matrix."""
    _, values, axes = torch.linalg.svd(triangle(matrix), full_matrices=True)
    r, clean = _rank(values, float(values[0]) if top is None else top)
    values = torch.nn.functional.pad(values, (0, len(axes) - len(values)))
    r = r if rank is None else rank
    return Span(axes[:r].mT.contiguous(), axes[r:].mT.contiguous(), values, clean)


def behind(parts: Sequence[tuple[Tensor, Tensor]]) -> Span:
    """The space of inputs x of which only what some maps A make of them is told: of pairs of A (r x d) and a gradient
    of what A x is given to. It holds all that A maps into the gradient's span, more than the inputs if A is wide."""
    told = [(map_, span(gradient)) for map_, gradient in parts]
    shown = max(each.rank for _, each in told)
    # In a last layer only some tokens ask: a gradient that shows fewer inputs than another rules out too much.
    full = [(map_, each) for map_, each in told if each.rank == shown]
    lacked = torch.cat([map_.detach().mT @ each.rest for map_, each in full], 1)
    axes, sizes, _ = torch.linalg.svd(lacked, full_matrices=True)
    free = int((sizes > 1e-6 * sizes.max()).sum()) if sizes.numel() else 0
    clean = free > 0 and all(each.clean for _, each in full)
    return Span(axes[:, free:].contiguous(), axes[:, :free].contiguous(), full[0][1].values, clean, shown)


def _rank(values: Tensor, top: float) -> tuple[int, bool]:
    """The largest fall that ends near rounding, and whether it is a cliff."""
    floor = top * ROUNDING
    falls = values[:-1] / values[1:].clamp_min(top * 1e-14 + 1e-300)
    # The very last fall says nothing: the smallest value of any matrix may be tiny by chance.
    falls = torch.where(values[1:] < NEAR * floor, falls, torch.zeros_like(falls))[:-1]
    if len(falls) and float(falls.max()) >= CLIFF:
        return int(falls.argmax()) + 1, True
    return int((values > floor).sum()), False
