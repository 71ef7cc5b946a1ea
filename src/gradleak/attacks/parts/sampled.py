"""Objectives over a sample of the entries that were sent, where others were left out.

The truth agrees with every entry sent, so with a sample of them: what a search looks for stays where it is, and no
gradient is multiplied out on the way.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.attacks.parts.objectives import ByEntries, ByProducts, Objective
from gradleak.factored import Factored, Masked, Stacked, Value
from gradleak.products import Products
from gradleak.rng import Rng
from gradleak.types import Update

SAMPLE = 1024
"""Entries of a parameter that are compared."""


class Sampled(ByEntries):
    """`formula` over inner products that are taken over the sample. Parameters of which nothing was sent are left
    out."""

    def __init__(self, update: Update, formula: Callable[[Products], Tensor], most: int = SAMPLE) -> None:
        self.formula = formula
        self._places = {
            name: _sampled(value, most, Rng(0) / name) for name, value in update.items() if bool(value.any())}
        self._values = {name: update[name].flatten()[places].double() for name, places in self._places.items()}
        self._widths = {name: update[name].shape[-1] for name in self._values}
        self._sizes = torch.stack([value.square().sum() for value in self._values.values()])

    def entries(self, stacked: Stacked) -> Tensor:
        return torch.cat([self._of(stacked[name], name) for name in self._places], 1).double()

    def of(self, entries: Tensor) -> Tensor:
        dots, squares = [], []
        parts = torch.split(entries, [len(values) for values in self._values.values()], 1)
        for found, values in zip(parts, self._values.values(), strict=True):
            dots.append(found @ values)
            squares.append(found.square().sum(1))
        return self.formula(Products(torch.stack(dots, 1), torch.stack(squares, 1), self._sizes))

    def _of(self, value: Value, name: str) -> Tensor:
        places = self._places[name]
        if isinstance(value, Masked):
            return self._of(value.whole, name) * value.mask.flatten()[places]
        if not isinstance(value, Factored):
            return value.flatten(1)[:, places]
        if value.rows:
            return value.dense().flatten(1)[:, places]
        down, across = places // self._widths[name], places % self._widths[name]
        rows, columns = (across, down) if value.flipped else (down, across)
        return (value.deltas.index_select(2, rows) * value.inputs.index_select(2, columns)).sum(1)


def sampled(objective: Objective, update: Update) -> Objective:
    """An objective of inner products over a sample of what was sent; any other as it is."""
    return Sampled(update, objective.judged, 2 * SAMPLE) if isinstance(objective, ByProducts) else objective


def _sampled(value: Tensor, most: int, rng: Rng) -> Tensor:
    """Where entries were sent: all, or as many as are compared."""
    sent = value.flatten().nonzero()[:, 0]
    return sent if len(sent) <= most else sent[rng.permutation(len(sent))[:most]]
