"""Objectives over a sample of the entries that were sent, where others were left out.

The truth agrees with every entry sent, so with a sample of them: what a search looks for stays where it is, and no
gradient is multiplied out on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.parts.objectives import ByEntries, ByProducts, Objective
from gradleak.factored import Factored, Masked, Stacked, Value
from gradleak.products import Products
from gradleak.rng import Rng
from gradleak.types import Update

SAMPLE = 1024
"""Entries of a parameter that are compared."""

SIDE = 96
"""Rows and columns that are computed where entries shall lie close together: those of which the most was sent."""


@dataclass(frozen=True)
class _Block:
    """Some rows and columns of a matrix, and which entries are compared: `inside` the block, and `places` in the
    whole."""

    rows: Tensor
    columns: Tensor
    inside: Tensor
    places: Tensor

    def of(self, value: Factored) -> Tensor:
        down, across = (self.columns, self.rows) if value.flipped else (self.rows, self.columns)
        found = value.deltas.index_select(2, down).mT @ value.inputs.index_select(2, across)
        return (found.mT if value.flipped else found).flatten(1).index_select(1, self.inside)


class Sampled(ByEntries):
    """`formula` over inner products that are taken over the sample. Parameters of which nothing was sent are left
    out. `close`: of matrices entries in few rows and columns, which are quickly computed."""

    def __init__(
        self, update: Update, formula: Callable[[Products], Tensor], most: int = SAMPLE, close: bool = False,
    ) -> None:
        self.formula = formula
        sent = {name: value for name, value in update.items() if bool(value.any())}
        self._blocks = {name: block for name, value in sent.items() if close and (block := _block(value, most))}
        self._places = {name: self._blocks[name].places if name in self._blocks
                        else _sampled(value.flatten().nonzero()[:, 0], most, Rng(0) / name)
                        for name, value in sent.items()}
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
        if name in self._blocks:
            return self._blocks[name].of(value)
        down, across = places // self._widths[name], places % self._widths[name]
        rows, columns = (across, down) if value.flipped else (down, across)
        return (value.deltas.index_select(2, rows) * value.inputs.index_select(2, columns)).sum(1)


def sampled(objective: Objective, update: Update) -> Objective:
    """An objective of inner products over a sample of what was sent; any other as it is."""
    return Sampled(update, objective.judged, 2 * SAMPLE) if isinstance(objective, ByProducts) else objective


def _sampled(sent: Tensor, most: int, rng: Rng) -> Tensor:
    """All, or as many as are compared."""
    return sent if len(sent) <= most else sent[rng.permutation(len(sent))[:most]]


def _block(value: Tensor, most: int) -> _Block | None:
    """Where the most was sent of a matrix; none if that is too little."""
    if value.ndim != 2 or min(value.shape) < SIDE:
        return None
    sent = value != 0
    rows = sent.sum(1).topk(SIDE).indices.sort().values
    columns = sent[rows].sum(0).topk(SIDE).indices.sort().values
    inside = _sampled(sent[rows][:, columns].flatten().nonzero()[:, 0], most, Rng(0) / "block")
    if len(inside) < min(most, int(sent.sum())):
        return None
    return _Block(rows, columns, inside, rows[inside // SIDE] * value.shape[1] + columns[inside % SIDE])
