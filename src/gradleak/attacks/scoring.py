"""Many candidates judged at once, none of them differentiated."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradleak.attacks.parts.objectives import ByEntries, ByProducts, Objective
from gradleak.factored import Factored, Masked, Reference, Stacked, Value
from gradleak.lanes import Extra, Lanes
from gradleak.products import Products, crossed, products

TOKENS = 1024
"""Tokens replayed at a time: enough to keep a processor busy, few enough for its memory."""

ENTRIES = 2**26
"""Entries of multiplied-out updates held at a time."""

SAME = 1e-4
"""Relative difference up to which two ways to an update are one."""

Axes = Mapping[str, tuple[int, ...]]

ALWAYS: Axes = {"mask": (1,), "ids": (1,)}
"""Which axes of a batch's extras count tokens in any model."""


class Scoring:
    """The objective of candidates (K x n x ...), piece by piece.

    Where one sentence of several changes, only it is replayed, and no further than it reaches; for that `axes` says
    which axes of other extras than the mask count tokens.
    """

    def __init__(self, replay: Lanes, objective: Objective, reference: Reference, axes: Axes | None = None) -> None:
        self.replay, self.objective, self.reference = replay, objective, reference
        self.thin = isinstance(objective, ByProducts | ByEntries)  # no gradient is multiplied out
        self.axes = {**ALWAYS, **(axes or {})}
        self._sums: bool | None = None
        self._shortens = False

    def piece(self, tokens: int) -> int:
        """How many candidates of so many tokens go at a time."""
        if self.replay.way == "factored" and self.thin:
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
        if len(x) == 1 or not self.thin or not self._adds_up(x, y, extra):
            return self._whole(x, y, extra, which, instead, more)
        others = torch.tensor([i for i in range(len(x)) if i != which])
        rest = self._weighed(self.replay(*_picked(x, y, extra, others)), len(others) / len(x))
        judge = self._added(rest)
        one = _picked(x, y, extra, torch.tensor([which]))
        reach = _reach(more.get("mask", one[2].get("mask"))) if self._shortens else instead.shape[1]
        step, found = self.piece(reach), []
        for at in range(0, many, step):
            part = instead[at : at + step]
            lanes = {name: more[name][at : at + step, None] if name in more
                     else value.expand(len(part), *value.shape[1:]) for name, value in one[2].items()}
            labels = one[1].expand(len(part), *one[1].shape[1:])
            own = self._weighed(self.replay(part[:, None, :reach], labels, self._cut(lanes, reach)), 1 / len(x))
            found.append(judge(own))
        return torch.cat(found)

    def _added(self, rest: Stacked) -> Callable[[Stacked], Tensor]:
        """The objective of updates (R lanes) after this one, of one lane, was added to each."""
        objective = self.objective
        if isinstance(objective, ByEntries):
            known = objective.entries(rest)
            return lambda own: objective.of(objective.entries(own) + known)
        assert isinstance(objective, ByProducts)
        constant = products(rest, self.reference)

        def judged(own: Stacked) -> Tensor:
            alone, both = products(own, self.reference), crossed(own, rest, self.reference)
            return objective.judged(Products(
                alone.dots + constant.dots, alone.squares + 2 * both + constant.squares, constant.sizes))

        return judged

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

    def _weighed(self, stacked: Stacked, share: float) -> dict[str, Value]:
        return {name: value * share for name, value in stacked.items()}

    @torch.no_grad()
    def _adds_up(self, x: Tensor, y: Tensor, extra: Extra) -> bool:
        """Whether a batch's update is the mean of its sentences' updates, and whether these are the same without what
        follows a sentence: tried once."""
        if self._sums is None:
            self._sums = False
            if self.replay.way == "factored":
                stacked = self.replay(*_picked(x, y, extra, torch.arange(len(x))))
                whole = products(stacked, self.reference).dots
                alone = {name: value[:, None] for name, value in extra.items()}
                parts = products(self.replay(x[:, None], y[:, None], alone), self.reference).dots
                factored = any(isinstance(value, Factored | Masked) for value in stacked.values())
                self._sums = factored and _off(parts.mean(0), whole[0]) < SAME
                told = y.ndim == 1 or y.is_floating_point()
                if self._sums and told and "mask" in extra and set(extra) <= set(self.axes):
                    least = extra["mask"].sum(1).argmin()[None]
                    one, reach = _picked(x, y, extra, least), _reach(extra["mask"][least])
                    cut = self.replay(one[0][:, :, :reach], one[1], self._cut(one[2], reach))
                    self._shortens = _off(products(cut, self.reference).dots, parts[least]) < SAME
        return self._sums

    def _cut(self, extra: Extra, reach: int) -> Extra:
        """The extras of candidates, up to a place."""
        found = dict(extra)
        for name, value in extra.items():
            for axis in self.axes.get(name, ()):
                found[name] = found[name].narrow(axis + 1, 0, min(reach, value.shape[axis + 1]))
        return found


def _off(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp_min(1e-30))


def _reach(mask: Tensor | None) -> int:
    """The number of places up to the last token of any sentence."""
    assert mask is not None
    return int(mask.flatten(0, -2).any(0).nonzero().max()) + 1


def _picked(x: Tensor, y: Tensor, extra: Extra, rows: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Some sentences of a batch, as one candidate."""
    return x[rows][None], y[rows][None], {name: value[rows][None] for name, value in extra.items()}
