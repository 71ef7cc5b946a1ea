"""Drafts of a batch's sentences, all of them improved a little, the nearest of them a lot.

A draft that is mostly right falls towards fitting as soon as some of its places are mended, one of a wrong length or
of two sentences does not: after one look at few choices a place, the true ones are the nearest. Only these are worth
every choice there is; and what was not needed for one sentence is kept for the next.
"""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from gradleak.attacks.exact.board import Board, Of
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.reading import Sentence

Tried = Iterator[tuple[Sentence, float]]
"""Sentences, and how far the worst token of each is outside the deep span."""

DRAFTS = 3
"""Of each length, the nearest of many starts."""

FEW, MORE = 12, 24
"""Choices a place of those that belong to a draft, and of those that a survey adds to them."""

NEAREST, LAST = 6, 3
"""Drafts that are surveyed, half as many of those from before, and drafts that are improved by every choice, a
round."""

ALIKE = 0.7
"""The share of common places from which two drafts are of one sentence."""

CHANGED = 6
"""Drafts that are changed by every choice a round, where only the classified token tells."""

RAW, SWEPT, SURVEYED, DONE = range(4)
"""How much a draft was worked on."""


class Drafting:
    """The drafts there are on a board, with how much each was worked on."""

    def __init__(self, board: Board, effort: dict[Sentence, int] | None = None) -> None:
        self.board, self.effort = board, effort or {}

    def narrowed(self, left: Left, tokens: list[list[int]]) -> "Drafting":
        """The drafts of sentences that may still be there, for what is left after one was found."""
        board = self.board.narrowed(left, tokens)
        choices = {length: board.choices(length) for length in {len(row) for row in self.effort}}
        kept: dict[Sentence, int] = {}
        for row, done in self.effort.items():
            if choices[len(row)]:
                now = _settled(row, choices[len(row)])
                # One that was changed is another draft, which nobody has judged yet.
                kept[now] = max(done if now == row else min(done, SWEPT), kept.get(now, RAW))
        return Drafting(board, kept)

    def tried(self, number: int) -> Tried:
        """New drafts as they are, then improved."""
        of = _OF[number % len(_OF)]
        found = self._started(every=number % 3 == 2)
        self.effort |= {tuple(row): RAW for rows in found for row in rows.tolist() if tuple(row) not in self.effort}
        if self.board.asked:
            yield from self._asked(found)
            return
        yield from self._judged()
        yield from self._swept(of)
        yield from self._surveyed(of, NEAREST)
        yield from self._done(of)

    def resumed(self) -> Tried:
        """The drafts there are, by what is left now: some that were just off are in reach. New ones only as they are:
        those made of what belongs together in what is left are better worth the work."""
        if self.board.asked:
            return
        of = _OF[0]
        yield from self._judged()
        for rows in self._started(every=False):
            yield from self.board.judged(rows)
        yield from self._swept(of)
        yield from self._surveyed(of, NEAREST // 2)

    def _started(self, every: bool) -> list[Tensor]:
        """New drafts, length by length."""
        return [rows for rows in map(self._drafts, self.board.lengths(every)) if len(rows)]

    def _drafts(self, length: int) -> Tensor:
        """The few best of many starts."""
        choices = self.board.choices(length)
        if not choices:
            return torch.empty(0, length)
        starts = self.board.starts(length, choices)
        far = _OF[0](self.board.far(starts, "middle"))
        return starts[far.argsort(stable=True)[:DRAFTS]]

    def _nearest(self, effort: int, of: Of, most: int) -> list[Sentence]:
        """The drafts on which so much was worked, nearest first, of several that are alike the nearest."""
        off: dict[Sentence, float] = {}
        for rows in self._by_length(effort):
            off |= dict(zip(map(tuple, rows.tolist()), of(self.board.far(rows, "middle")).tolist(), strict=True))
        found: list[Sentence] = []
        for row in sorted(off, key=lambda row: (off[row], row)):
            if len(found) < most and not any(len(row) == len(other) and alike(row, other) > ALIKE for other in found):
                found.append(row)
        return found

    def _by_length(self, effort: int) -> list[Tensor]:
        rows = sorted(row for row, done in self.effort.items() if done == effort)
        lengths = sorted({len(row) for row in rows})
        return [torch.tensor([row for row in rows if len(row) == length]) for length in lengths]

    def _judged(self) -> Tried:
        for effort in (RAW, SWEPT):
            for rows in self._by_length(effort):
                yield from self.board.judged(rows)

    def _raised(self, old: Iterable[Sentence], new: Tensor, effort: int) -> Tried:
        """Drafts in the place of others, worked on so much, as they are judged."""
        for row in old:
            del self.effort[row]
        self.effort |= {row: max(effort, self.effort.get(row, RAW)) for row in map(tuple, new.tolist())}
        yield from self.board.judged(new)

    def _swept(self, of: Of) -> Tried:
        """Every draft by a few choices a place."""
        for rows in self._by_length(RAW):
            choices = self.board.choices(rows.shape[1])
            ranked = [self.board.ranked(row, choices) for row in rows.tolist()]
            better = torch.unique(self.board.improved(rows, _cut(ranked, FEW), "middle", of, 1), dim=0)
            better = torch.stack([self.board.exchanged(row, choices, of) for row in better])
            yield from self._raised(map(tuple, rows.tolist()), better, SWEPT)

    def _surveyed(self, of: Of, most: int) -> Tried:
        """The nearest drafts by the choices that a survey puts first, beside those that belong to the draft."""
        for row in self._nearest(SWEPT, of, most):
            draft, choices = list(row), self.board.choices(len(row))
            both = zip(self.board.surveyed(draft, choices), self.board.ranked(draft, choices), strict=True)
            mixed = [_interleaved(one, other) for one, other in both]
            better = self.board.improved(torch.tensor([row]), _cut([mixed], MORE), "middle", of, 3)
            better = self.board.exchanged(better[0], choices, of)[None]
            yield from self._raised([row], better, SURVEYED)

    def _done(self, of: Of) -> Tried:
        """The nearest ones by every choice, then by what reaches further."""
        for row in self._nearest(SURVEYED, of, LAST):
            ranked = self.board.ranked(list(row), self.board.choices(len(row)))
            better = self.board.improved(torch.tensor([row]), _cut([ranked], None), "middle", of, 1)
            yield from self.board.judged(better)
            better = self.board.improved(better, _cut([ranked], FEW), "deep", _mean, 1)
            yield from self._raised([row], better, DONE)

    def _asked(self, found: list[Tensor]) -> Tried:
        """Where only the classified token tells, its distance shows that a word is wrong, hardly which, and may fall as
        others get wrong: the best of all single changes, and once more, by every choice, of the nearest drafts."""
        for rows in found:
            yield from self.board.judged(rows)
        near: list[tuple[float, Sentence]] = []
        for rows in found:
            choices = self.board.choices(rows.shape[1])
            for row in rows:
                few = [here[:FEW] for here in self.board.ranked(row.tolist(), choices)]
                better, off = self.board.changed(row, few, choices)
                yield from self.board.judged(better[None])
                near.append((off, tuple(better.tolist())))
        for _, draft in sorted(set(near))[:CHANGED]:
            choices = self.board.choices(len(draft))
            better, _ = self.board.changed(torch.tensor(draft), choices, choices)
            yield from self.board.judged(better[None])


def alike(one: Sentence, other: Sentence) -> float:
    """The share of places in which two sentences agree."""
    return sum(a == b for a, b in zip(one, other, strict=False)) / max(len(one), len(other))


def _mean(off: Tensor) -> Tensor:
    return off.mean(1)


_OF: tuple[Of, ...] = (lambda off: off.sqrt().mean(1), _mean, lambda off: off.square().mean(1))


def _settled(row: Sentence, choices: list[list[int]]) -> Sentence:
    """With the only choice where there is one."""
    return tuple(here[0] if len(here) == 1 else token for token, here in zip(row, choices, strict=True))


def _cut(ranked: list[list[list[int]]], most: int | None) -> list[Tensor]:
    """Per place the first choices of every draft (drafts x choices)."""
    return [torch.tensor([draft[place][:most] for draft in ranked]) for place in range(len(ranked[0]))]


def _interleaved(one: list[int], other: list[int]) -> list[int]:
    """The first of each, the second of each and so on, everyone once."""
    return list(dict.fromkeys(token for both in zip_longest(one, other) for token in both if token is not None))
