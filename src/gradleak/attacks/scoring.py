"""Many candidates judged at once, none of them differentiated."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.attacks.parts.objectives import ByProducts, Objective
from gradleak.factored import Factored, Reference, Stacked
from gradleak.lanes import Extra, Lanes
from gradleak.products import Products, crossed, products

TOKENS = 1024
"""Tokens replayed at a time: enough to keep a processor busy, few enough for its memory."""

ENTRIES = 2**26
"""Entries of multiplied-out updates held at a time."""


class Scoring:
    """The objective of candidates (K x n x ...), piece by piece.

    Where one sentence of several changes, only it is replayed.
    """

    def __init__(self, replay: Lanes, objective: Objective, reference: Reference) -> None:
        self.replay, self.objective, self.reference = replay, objective, reference
        self._sums: bool | None = None

    def piece(self, tokens: int) -> int:
        """How many candidates of so many tokens go at a time."""
        if self.replay.way == "factored" and isinstance(self.objective, ByProducts):
            return max(1, TOKENS // max(1, tokens))
        return max(1, min(TOKENS // max(1, tokens), ENTRIES // sum(value.numel() for value in self.reference.values())))

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, extra: Extra) -> Tensor:
        found = []
        step = self.piece(x[0, ..., 0].numel())
        for at in range(0, len(x), step):
            part = slice(at, at + step)
            stacked = self.replay(x[part], y[part], {name: value[part] for name, value in extra.items()})
            found.append(self.objective(stacked, self.reference))
        return torch.cat(found)

    @torch.no_grad()
    def changed(
        self, x: Tensor, y: Tensor, extra: Extra, which: int, instead: Tensor, more: Extra | None = None,
    ) -> Tensor:
        """A batch (n x L x d) in which one sentence is replaced by each of K others (K x L x d), with its extras where
        `more` has them (K x ...)."""
        many, more = len(instead), more or {}
        if len(x) == 1 or not isinstance(self.objective, ByProducts) or not self._adds_up(x, y, extra):
            return self._whole(x, y, extra, which, instead, more)
        others = torch.tensor([i for i in range(len(x)) if i != which])
        rest = self._weighed(self.replay(*_picked(x, y, extra, others)), len(others) / len(x))
        constant = products(rest, self.reference)
        one = _picked(x, y, extra, torch.tensor([which]))
        step, found = self.piece(instead.shape[1]), []
        for at in range(0, many, step):
            part = instead[at : at + step]
            lanes = {name: more[name][at : at + step, None] if name in more
                     else value.expand(len(part), *value.shape[1:]) for name, value in one[2].items()}
            labels = one[1].expand(len(part), *one[1].shape[1:])
            own = self._weighed(self.replay(part[:, None], labels, lanes), 1 / len(x))
            alone, both = products(own, self.reference), crossed(own, rest, self.reference)
            found.append(self.objective.of(Products(
                alone.dots + constant.dots, alone.squares + 2 * both + constant.squares, constant.sizes)))
        return torch.cat(found)

    def _whole(self, x: Tensor, y: Tensor, extra: Extra, which: int, instead: Tensor, more: Extra) -> Tensor:
        """The same, all sentences replayed."""
        found, step = [], self.piece(x[..., 0].numel())
        for at in range(0, len(instead), step):
            part = slice(at, at + step)
            many = len(instead[part])
            whole = {"x": x.expand(many, *x.shape).clone(), **{k: v.expand(many, *v.shape) for k, v in extra.items()}}
            for name, value in {"x": instead, **more}.items():
                whole[name] = whole[name].clone()
                whole[name][:, which] = value[part]
            found.append(self(whole.pop("x"), y.expand(many, *y.shape), whole))
        return torch.cat(found)

    def _weighed(self, stacked: Stacked, share: float) -> dict[str, Tensor | Factored]:
        return {name: value * share for name, value in stacked.items()}

    @torch.no_grad()
    def _adds_up(self, x: Tensor, y: Tensor, extra: Extra) -> bool:
        """Whether a batch's update is the mean of its sentences' updates: tried once."""
        if self._sums is None:
            self._sums = False
            if self.replay.way == "factored":
                stacked = self.replay(*_picked(x, y, extra, torch.arange(len(x))))
                whole = products(stacked, self.reference).dots
                alone = {name: value[:, None] for name, value in extra.items()}
                parts = products(self.replay(x[:, None], y[:, None], alone), self.reference).dots.mean(0)
                gap = float((whole[0] - parts).norm() / whole[0].norm().clamp_min(1e-30))
                self._sums = gap < 1e-4 and any(isinstance(value, Factored) for value in stacked.values())
        return self._sums


def _picked(x: Tensor, y: Tensor, extra: Extra, rows: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Some sentences of a batch, as one candidate."""
    return x[rows][None], y[rows][None], {name: value[rows][None] for name, value in extra.items()}
