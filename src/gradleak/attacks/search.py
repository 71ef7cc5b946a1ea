"""The one discrete loop: candidates that differ in words or their order, judged in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.parts.language import LanguagePrior
from gradleak.attacks.parts.moves import ALL, Move, permutations, propose
from gradleak.attacks.parts.optimisers import Value
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.attacks.scoring import Scoring
from gradleak.lanes import Extra
from gradleak.rng import Rng
from gradleak.types import NOTHING

State = dict[str, Tensor]


class Run(Protocol):
    """What a search sees of the descent it belongs to."""

    @property
    def words(self) -> TokenRoom: ...

    @property
    def scoring(self) -> Scoring: ...

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]: ...

    @property
    def rescoring(self) -> Scoring | None:
        """What judges the best again, where `scoring` only screens."""
        ...

    @property
    def told_lengths(self) -> bool:
        """Whether the sentences' lengths are known for certain."""
        ...

    @property
    def told_labels(self) -> bool: ...

    def slope(self, x: Tensor, y: Tensor, extra: Extra | None = None) -> Value: ...

    def tell(self, state: State, ids: Tensor, y: Tensor, beside: Tensor | None = None) -> State: ...


@dataclass(frozen=True)
class Rearrange:
    """Every so many steps, try `proposals` one-move orders of each sentence and keep the best by how well it matches
    and how natural it reads. The optimiser's memory moves with the words. A lane that goes on from a draft is left
    alone."""

    prior: LanguagePrior
    weight: float = 0.2
    proposals: int = 200
    every: int = 75
    first: float = 0.1
    at_end: bool = False
    relative: bool = False
    """Whether the prior weighs in proportion to the mismatch: evidence then outweighs it as the search closes in."""
    moves: tuple[Move, ...] = ALL

    def rounds(self, step: int, steps: int) -> int:
        """How many rounds follow a step (counted from 1)."""
        if self.at_end:
            return steps // self.every if step == steps else 0
        return int(step % self.every == 0 and step >= self.first * steps)

    def improve(self, run: Run, state: State, rng: Rng) -> State:
        x, y = run.unpack(state["z"].clone())  # a copy: what is unpacked may be the unknowns themselves
        for lane in range(len(x) - int("draft.ids" in state)):
            for which in range(x.shape[1]):
                order = self._best(run, x[lane], y[lane], which, rng / lane / which)
                x[lane, which] = x[lane, which][order]
                for name in _along(state):
                    block = state[name][lane, : x[0].numel()].view(x[0].shape)
                    block[which] = block[which][order].clone()
                    if run.words.masks is not None:
                        beside = state[name][lane, x[0].numel() : x[0].numel() + run.words.beside]
                        beside.copy_(run.words.masks.reordered(beside.clone(), which, order))
        return state

    def _best(self, run: Run, x: Tensor, y: Tensor, which: int, rng: Rng) -> Tensor:
        orders = propose(run.words.inside[which], self.moves, self.proposals, rng.numpy())
        extra = {name: value[0] for name, value in run.words.extra(1).items()}
        scores = run.scoring.changed(x, y, extra, which, x[which][orders]).double()
        if self.weight:
            words = run.words.read(x[None])[0, which]
            weight = self.weight * float(scores.min()) if self.relative else self.weight
            scores = scores + weight * self.prior(_texts(run.words, words[orders])).to(scores)
        return orders[int(scores.argmin())]


@dataclass(frozen=True)
class Substitute:
    """A draft, improved sentence by sentence while that helps: at every place the words that the objective's slope
    favours and those nearest to the search, other orders, and the best of these changes together. About `words` are
    tried a sentence; a round without success makes the next one try twice as many, up to `most`. Where lengths are not
    known, a word may go or come: one of the `extra` that the slope favours there.
    """

    words: int = 64
    most: int = 256
    orders: int = 32
    sweeps: int = 2
    extra: int = 2

    def improve(self, run: Run, state: State, rng: Rng) -> State:
        """The state with its draft improved, and told where it explains the update better than any answer so far."""
        ids, y, wide = self._draft(run, state)
        nearby = run.words.nearest.several(run.unpack(state["z"])[0], 1)
        better = 0
        for sweep in range(self.sweeps):
            slope, before = _slope(run, ids, y, _extra(run, ids, None)), ids.clone()
            for which in range(len(ids)):
                tried = self._tried(run, ids[which], slope[which], nearby[:, which], wide, rng / sweep / which)

                def judge(rows: Tensor, which: int = which) -> Tensor:
                    more = {"mask": (rows != NOTHING).long()}
                    return run.scoring.changed(
                        run.words.embed(ids), y, _extra(run, ids, None), which, run.words.embed(rows), more)

                ids[which] = _best_of(ids[which], tried, judge)
            if torch.equal(ids, before):
                break
            better += 1
        wide = self.words if better else min(2 * wide, self.most)
        draft = {"draft.ids": ids, "draft.y": y, "draft.wide": torch.tensor(wide)}
        return {**run.tell(_resumed(run, state, ids), ids, y), **draft}

    def _draft(self, run: Run, state: State) -> tuple[Tensor, Tensor, int]:
        """Go on with the draft, or with the answer so far where that matches better."""
        told = (state["told.ids"].clone(), state["told.y"], self.words)
        if "draft.ids" not in state:
            return told
        ids = torch.stack([state["draft.ids"], told[0]])
        y = torch.stack([state["draft.y"], told[1]])
        there = {**run.words.extra(2), "mask": (ids != NOTHING).long()}
        old, new = run.scoring(run.words.embed(ids), y, there).tolist()
        return (ids[0].clone(), y[0], int(state["draft.wide"])) if old <= new else told

    def _tried(self, run: Run, row: Tensor, slope: Tensor, nearby: Tensor, wide: int, rng: Rng) -> Tensor:
        """Rows that differ from this one by a word, or in their order, or in their length."""
        inside = torch.tensor(run.words.vocabulary.inner(row))
        places = inside.nonzero().flatten()
        steepest = run.words.nearest.steepest(slope[places], max(2, wide // max(1, len(places))))
        words = torch.cat([steepest, nearby[:, places].permute(1, 0, 2).flatten(1)], 1)
        rows = row.repeat(words.numel(), 1)
        rows[torch.arange(len(rows)), places.repeat_interleave(words.shape[1])] = words.flatten()
        found = [rows, row[propose(inside, ALL, self.orders, rng.numpy())]]
        if not run.told_lengths:
            one, words = Rows(row[None], torch.arange(len(row))[None]), run.words.nearest.steepest(slope, self.extra)
            found += [each.ids for place in range(len(row)) for each in _stretched(run, one, place, words[place])]
        distinct: Tensor = torch.unique(torch.cat(found), dim=0)
        return distinct


class Rows(NamedTuple):
    """Versions of one sentence: tokens (K x L), and for each place the one that what was dropped there came from."""

    ids: Tensor
    orders: Tensor

    def picked(self, which: Tensor) -> "Rows":
        return Rows(self.ids[which], self.orders[which])

    def permuted(self, order: Tensor) -> "Rows":
        return Rows(self.ids[:, order], self.orders[:, order])


def _together(parts: Sequence[Rows]) -> Rows:
    """All of them, each version once: the first."""
    ids, orders = (torch.cat(part) for part in zip(*parts, strict=True))
    first: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(ids.tolist()):
        first.setdefault(tuple(row), number)
    return Rows(ids, orders).picked(torch.tensor(list(first.values())))


@dataclass(frozen=True)
class Beam:
    """Goes through the places of each sentence from left to right; at each, other words are tried there, the word is
    tried elsewhere, and of all sentences so far the best `width` go on. What was dropped moves with the words.

    Tried are `own` of the sentence's words (all, with 0) and `steep` of the whole vocabulary, those that the slope
    favours, or of `given`, a list of tokens a place; and `moves` other places. Where lengths are not known, a word may
    go or come. `solutions` sentences begin: the answer so far, and random orders of it. To what says little, such as a
    full stop, no slope points: `common` words are tried at the end, and wherever a word stands that stands elsewhere
    too.
    """

    width: int = 2
    sweeps: int = 2
    solutions: int = 1
    own: int = 4
    steep: int = 3
    moves: int = 4
    common: tuple[str, ...] = (".", ",", "?", "the", "a", "to", "of", "and", "that", "is")
    given: tuple[tuple[int, ...], ...] = ()

    def improve(self, run: Run, state: State, rng: Rng) -> State:
        """One sweep."""
        ids, y = state["told.ids"].clone(), state["told.y"]
        beside = state.get("told.beside")
        near, common = run.words.nearest(run.unpack(state["z"])[0]), run.words.nearest.spelt(self.common)
        if not run.told_labels:
            y = self._relabelled(run, ids, y, beside)
        for which in range(len(ids)):
            extra = _extra(run, ids, beside)
            slope = _slope(run, ids, y, extra)
            pool = torch.unique(torch.cat([ids[which], near[:, which].flatten()]))
            pool = pool[torch.tensor(run.words.vocabulary.inner(pool), dtype=torch.bool)]

            def judge(rows: Rows, which: int = which, extra: Extra = extra, beside: Tensor | None = beside) -> Tensor:
                return self._judged(run, ids, y, extra, beside, which, rows)

            tried = self._tried(run, slope[which], pool)
            for place in _doubtful(run, ids[which]) if not self.given else ():
                tried[place] = torch.unique(torch.cat([tried[place], common]))
            row, order = self._searched(run, ids[which], tried, judge, rng / which)
            ids[which] = row
            if beside is not None and run.words.masks is not None:
                beside = run.words.masks.reordered(beside, which, order)
        return run.tell(state, ids, y, beside)

    def _tried(self, run: Run, slope: Tensor, pool: Tensor) -> list[Tensor]:
        """Words for each place."""
        table = run.words.table
        favour = (slope @ table[pool].mT).argsort(-1)[:, : self.own or None]
        steepest = run.words.nearest.steepest(slope, self.steep) if self.steep and not self.given else None
        found = []
        for place, best in enumerate(favour):
            more = steepest[place] if steepest is not None else pool[:0]
            if place < len(self.given):
                listed = torch.tensor(self.given[place], dtype=torch.long)
                more = listed[(slope[place] @ table[listed].mT).argsort()[: self.steep or None]]
            found.append(torch.unique(torch.cat([pool[best], more])))
        return found

    def _searched(
        self, run: Run, row: Tensor, tried: list[Tensor], judge: Callable[[Rows], Tensor], rng: Rng,
    ) -> tuple[Tensor, Tensor]:
        inner, draw = torch.tensor(run.words.vocabulary.inner(row)), rng.numpy()
        orders = permutations(inner, max(1, self.solutions), draw)
        beams = _together([Rows(row[orders], orders)])
        for place in range(len(row)):
            found = [beams]
            for number in range(len(beams.ids)):
                one = beams.picked(torch.tensor([number]))
                found += self._versions(run, one, place, tried[place], draw)
            if len(found) > 1:
                rows = _together(found)
                scores = torch.nan_to_num(judge(rows), nan=torch.inf)
                beams = rows.picked(scores.argsort(stable=True)[: self.width])
        return beams.ids[0], beams.orders[0]

    def _versions(self, run: Run, one: Rows, place: int, words: Tensor, draw: np.random.Generator) -> Iterator[Rows]:
        """A sentence with another word at this place, or with the word there elsewhere."""
        inner = run.words.vocabulary.inner(one.ids[0])
        here = torch.arange(len(inner))
        if not run.told_lengths:
            yield from _stretched(run, one, place, words)
        if not inner[place]:
            return
        ids = one.ids.repeat(len(words), 1)
        ids[:, place] = words
        yield Rows(ids, one.orders.expand_as(ids))
        others = [q for q in range(len(inner)) if inner[q] and q != place]
        for q in draw.permutation(others)[: self.moves].tolist():
            swapped = here.clone()
            swapped[[place, q]] = swapped[[q, place]]
            yield one.permuted(swapped)
            rest = torch.cat([here[:place], here[place + 1 :]])
            yield one.permuted(torch.cat([rest[:q], here[place : place + 1], rest[q:]]))

    def _judged(
        self, run: Run, ids: Tensor, y: Tensor, extra: Extra, beside: Tensor | None, which: int, rows: Rows,
    ) -> Tensor:
        """The best of the screened are judged again, the others stay behind them."""
        x = run.words.embed(ids)

        def scored(scoring: Scoring, some: Rows) -> Tensor:
            more = {"mask": (some.ids != NOTHING).long()}
            if beside is not None and run.words.masks is not None:
                more |= run.words.masks.moved(beside, which, some.orders)
            return scoring.changed(x, y, extra, which, run.words.embed(some.ids), more)

        scores = scored(run.scoring, rows)
        if run.rescoring is None:
            return scores
        best = scores.argsort(stable=True)[: 2 * self.width]
        again = torch.full_like(scores, torch.inf)
        again[best] = scored(run.rescoring, rows.picked(best))
        return again

    def _relabelled(self, run: Run, ids: Tensor, y: Tensor, beside: Tensor | None) -> Tensor:
        """The labels, two of them exchanged if that fits better."""
        pairs = [(a, b) for a in range(len(y)) for b in range(a) if y.ndim == 1 and y[a] != y[b]]
        if not pairs:
            return y
        labels = y.repeat(len(pairs) + 1, 1)
        for number, (a, b) in enumerate(pairs):
            labels[number, [a, b]] = labels[number, [b, a]]
        many, extra = len(labels), _extra(run, ids, beside)
        x = run.words.embed(ids)
        scores = run.scoring(x.expand(many, *x.shape), labels, {k: v.expand(many, *v.shape) for k, v in extra.items()})
        return labels[int(torch.nan_to_num(scores, nan=torch.inf).argmin())]


def _stretched(run: Run, one: Rows, place: int, words: Tensor) -> Iterator[Rows]:
    """A sentence without the word at this place; or with one more, where there is room."""
    inner = run.words.vocabulary.inner(one.ids[0])
    here, last = torch.arange(len(inner)), one.ids[0, -1]
    if inner[place] and sum(inner) > 1:
        shorter = one.permuted(torch.cat([here[:place], here[place + 1 :], here[place : place + 1]]))
        shorter.ids[:, -1] = NOTHING
        yield shorter
    closes = len(run.words.vocabulary.closing)
    if last == NOTHING and place and (inner[place] or (inner[place - 1] and closes)):
        longer = one.permuted(torch.cat([here[:place], here[-1:], here[place:-1]]))
        ids = longer.ids.repeat(len(words), 1)
        ids[:, place] = words
        yield Rows(ids, longer.orders.expand_as(ids))


def _slope(run: Run, ids: Tensor, y: Tensor, extra: Extra) -> Tensor:
    """Of the objective, in the embeddings of one batch of words."""
    return run.slope(run.words.embed(ids)[None], y[None], {k: v[None] for k, v in extra.items()}).gradient[0]


def _doubtful(run: Run, row: Tensor) -> list[int]:
    """The last place inside the frame, and those whose word stands elsewhere too."""
    inside = [place for place, inner in enumerate(run.words.vocabulary.inner(row)) if inner]
    words = row[inside].tolist()
    return [place for place, word in zip(inside, words, strict=True) if words.count(word) > 1 or place == inside[-1]]


def _extra(run: Run, ids: Tensor, beside: Tensor | None) -> dict[str, Tensor]:
    """What goes to the model beside one batch of words."""
    whole = run.words.extra(1, None if beside is None else beside[None])
    return {**{name: value[0] for name, value in whole.items()}, "mask": (ids != NOTHING).long()}


def _best_of(row: Tensor, tried: Tensor, judge: Callable[[Tensor], Tensor]) -> Tensor:
    """The best of the rows tried, or of several good single words put in together."""
    scores = judge(tried)
    here = float(scores[(tried == row).all(1).nonzero()[0, 0]])
    lead, winner = float(scores.min()), tried[int(scores.argmin())]
    single = ((tried != row).sum(1) == 1) & (scores < here)
    joint: dict[int, int] = {}
    for number in scores.argsort().tolist():
        if bool(single[number]):
            joint.setdefault(int((tried[number] != row).nonzero()[0, 0]), int(number))
    if len(joint) > 1:
        together, rows = row.clone(), []
        for place, number in joint.items():
            together = together.clone()
            together[place] = tried[number, place]
            rows.append(together)
        several = judge(torch.stack(rows[1:]))
        if float(several.min()) < lead:
            lead, winner = float(several.min()), rows[1:][int(several.argmin())]
    return winner if lead < here - 1e-7 else row


def _resumed(run: Run, state: State, ids: Tensor) -> State:
    """Of several lanes the last one goes on from the draft, without a memory."""
    if len(state["z"]) == 1:
        return state
    fresh = {name: state[name].index_fill(0, torch.tensor([len(state["z"]) - 1]), 0.0) for name in _along(state)}
    x = run.words.embed(ids)
    fresh["z"] = torch.cat([state["z"][:-1], torch.cat([x.flatten(), state["z"][-1, x.numel() :]])[None]])
    return {**state, **fresh}


def _texts(room: TokenRoom, rows: Tensor) -> Sequence[str]:
    return [room.vocabulary.sentence(row).text for row in rows]


def _along(state: State) -> list[str]:
    """The unknowns, and what the optimiser keeps of the same shape."""
    return [name for name, value in state.items()
            if name == "z" or (name.startswith("optimiser.") and value.shape == state["z"].shape)]
