"""Gradients of linear layers that are never multiplied out, and what matching needs to know of them.

With X (N x i) a layer's inputs and D (N x o) the loss's gradient at its outputs, the weight's gradient is G = D^T X.
Its inner products cost a fraction of G itself: <G, R> = sum((X R^T) * D) and |G|^2 = sum((X X^T) * (D D^T)).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-30


@dataclass(frozen=True)
class Factored:
    """The gradient of one weight in R lanes: inputs R x N x i, deltas R x N x o; `flipped` where the weight is i x o.

    `inputs` may also be token numbers (R x N): rows of an embedding table (`rows` of them) that were looked up.
    """

    inputs: Tensor
    deltas: Tensor
    flipped: bool = False
    rows: int = 0

    def dense(self) -> Tensor:
        """Multiplied out: R x the weight's shape. Only what needs entries should ask for it."""
        if self.rows:
            out = self.deltas.new_zeros(len(self.deltas), self.rows, self.deltas.shape[-1])
            return out.scatter_add(1, self.inputs[..., None].expand_as(self.deltas), self.deltas)
        if self.flipped:
            return self.inputs.mT @ self.deltas
        return self.deltas.mT @ self.inputs

    def sq_norm(self) -> Tensor:
        """Squared length, a number a lane."""
        near = self.inputs[:, :, None] == self.inputs[:, None] if self.rows else self.inputs @ self.inputs.mT
        return (near * (self.deltas @ self.deltas.mT)).sum((1, 2))

    def regrouped(self, weights: Tensor, lanes: int) -> "Factored":
        """Weighed by a number a lane, and so many lanes instead, each the sum of its share of these."""
        deltas = self.deltas * weights[:, None, None]
        inputs, deltas = (t.reshape(lanes, -1, *t.shape[2:]) for t in (self.inputs, deltas))
        return replace(self, inputs=inputs, deltas=deltas)

    def __mul__(self, by: Tensor | float) -> "Factored":
        """Times one number."""
        return replace(self, deltas=self.deltas * by)

    def plus(self, other: "Factored") -> "Factored":
        """The sum with another one of the same weight; one lane is added to each of many."""
        lanes = max(len(self.deltas), len(other.deltas))
        pairs = ((self.inputs, other.inputs), (self.deltas, other.deltas))
        inputs, deltas = (torch.cat([t.expand(lanes, *t.shape[1:]) for t in pair], 1) for pair in pairs)
        return replace(self, inputs=inputs, deltas=deltas)


@dataclass(frozen=True)
class Masked:
    """A factored gradient of which only some entries were sent: those where `mask`, of the weight's shape, is 1."""

    whole: Factored
    mask: Tensor

    def dense(self) -> Tensor:
        return self.whole.dense() * self.mask

    def __mul__(self, by: Tensor | float) -> "Masked":
        """Times one number."""
        return replace(self, whole=self.whole * by)


Value = Tensor | Factored | Masked
Stacked = Mapping[str, Value]
"""Updates of R lanes by parameter name, each value with the lane as its first axis."""


def dense(stacked: Stacked) -> dict[str, Tensor]:
    """Everything multiplied out."""
    return {name: value if isinstance(value, Tensor) else value.dense() for name, value in stacked.items()}


def unmasked(stacked: Stacked) -> dict[str, Tensor | Factored]:
    """What is masked multiplied out, the rest as it is."""
    return {name: value.dense() if isinstance(value, Masked) else value for name, value in stacked.items()}


def kept(stacked: Stacked, masks: Mapping[str, Tensor]) -> dict[str, Value]:
    """Only the entries under the masks."""
    found: dict[str, Value] = {}
    for name, value in stacked.items():
        if isinstance(value, Masked):
            found[name] = replace(value, mask=value.mask * masks[name])
        else:
            found[name] = Masked(value, masks[name]) if isinstance(value, Factored) else value * masks[name]
    return found


class Low(NamedTuple):
    """R = left right, with few columns in between."""

    left: Tensor
    right: Tensor


class Reference(Mapping[str, Tensor]):
    """An observed update, prepared once for being matched many times.

    `rank` is the most an undefended layer can have (the candidates' tokens): where a layer's rank is really so low it
    is kept as a product of two thin matrices.
    """

    def __init__(self, update: Mapping[str, Tensor], rank: int = 0) -> None:
        self._update = dict(update)
        self._rows: dict[tuple[str, ...], Tensor] = {}
        self.sizes: dict[str, Tensor] = {name: value.square().sum() for name, value in update.items()}
        self._places: dict[tuple[str, ...], Tensor] = {}
        self.low: dict[str, Low] = {}
        self.stacks: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        for name, value in update.items():
            if rank and value.ndim == 2 and 2 * (rank + 8) < min(value.shape):
                found = _thin(value, rank + 8)
                if found is not None:
                    self.low[name] = found

    @cached_property
    def all_sizes(self) -> Tensor:
        """Every parameter's squared length, in their order."""
        return torch.stack([self.sizes[name] for name in self._update])

    def places(self, names: tuple[str, ...]) -> Tensor:
        """Where each of the parameters stands among names that are in another order."""
        if names not in self._places:
            at = {name: place for place, name in enumerate(names)}
            where = [at[name] for name in self._update]
            self._places[names] = torch.tensor(where, device=next(iter(self.sizes.values())).device)
        return self._places[names]

    def flat(self, names: tuple[str, ...]) -> Tensor:
        """Some parameters of one size as the rows of a matrix."""
        if len(names) == 1:
            return self._update[names[0]].reshape(1, -1)
        if names not in self._rows:
            self._rows[names] = torch.stack([self._update[name].flatten() for name in names])
        return self._rows[names]

    def __getitem__(self, name: str) -> Tensor:
        return self._update[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._update)

    def __len__(self) -> int:
        return len(self._update)


def _thin(value: Tensor, columns: int) -> Low | None:
    """A product of thin matrices that is the matrix up to rounding, if there is one."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(value.shape[1], columns, generator=generator).to(value)
    left, _ = torch.linalg.qr(value @ probe)
    right = left.mT @ value
    off = (value - left @ right).norm() / value.norm().clamp_min(TINY)
    if not bool(off <= 100 * torch.finfo(value.dtype).eps):
        return None
    u, s, v = torch.linalg.svd(right, full_matrices=False)
    keep = max(1, int((s > s[0] * torch.finfo(value.dtype).eps).sum()))
    return Low((left @ u[:, :keep]) * s[:keep], v[:keep])
