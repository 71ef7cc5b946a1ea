"""Sentences read from the update of a client that drops: each token's vector is in the space, but thinned by chance.

Every copy of a token was thinned anew, so copies do not hide behind each other, and what is left of each can be told
from the space alone; see `sparse`. A token is accepted only when its vector, thinned and nothing else, lies in the
space to the precision of the update: no absent token comes near.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.affinity import affinity, attention, deltas, families, strangers
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.sparse import RATE, settled, thinned, thinning
from gradleak.errors import Unsuited
from gradleak.rng import Rng

SURE = 1e-4
"""The share of an accepted token's vector that may lie outside the space. Present ones reach 1e-6, absent ones 1e-2."""

KEPT = 0.5
"""An accepted token keeps at least so many of its coordinates: nothing at all would lie in any space."""

ROOM = 24
"""So many dimensions must be left free by the tokens, or all that is tried would fit."""

BLOCK = 4
"""Places looked at together."""

FIRST, LAST, LONGER = 20, 60, 120
"""Steps after which most candidates are given up, and all; and of tries for further copies."""

ROWS = 768
"""Candidates tested together."""

TILT = 0.4
"""How much a coordinate's price changes, beside its usual 1, with how much of it lies in the preferred direction."""

TURN, BARREN = 3, 10
"""Tries for each token that is called for in a turn; and how many turns in a row may find nothing."""

CALLED, FEW, MOST = 4, 24, 64
"""For every missing copy and a few more, so many tokens are called for in a turn; at most so many of one place."""

VAIN = 0.4
"""What a turn in vain does to the odds of a token: a copy that is there is found by about a fifth of all tries."""

NEW = 1e-3
"""The share of a token's vector that is new beside known copies, at least: what known ones tell is rounding."""

SAME = 0.04
"""Copies that differ in fewer coordinates are one."""

Key = tuple[int, int]
"""A token and its place."""


@dataclass(frozen=True)
class Copy:
    """One token of one sentence, with the coordinates that were kept."""

    key: Key
    kept: Tensor
    off: float

    @property
    def place(self) -> int:
        return self.key[1]


def read(door: Entrance, rng: Rng) -> Reading:
    """All sentences of the batch, each token proven unless it had to be filled in."""
    words, free = door.vocabulary, len(door.span.basis) - door.span.rank
    if not words.opening or not words.closing:
        raise Unsuited("sentences have no opening and closing tokens; updates made with dropout are read where they "
                       "have, as in BERT and RoBERTa")
    if not door.span.clean or free < ROOM:
        left = free if door.span.clean else "no"
        raise Unsuited(f"the first layer's gradient leaves {left} directions free for sure; {ROOM} are needed to test "
                       "tokens thinned by dropout")
    search = _Search(door, rng)
    search.open()
    search.scan()
    if not search.found:
        raise Unsuited("no token is in the gradient's space, not even thinned by dropout")
    search.repeat()
    return _told(door, search)


class _Search:
    """Collects copies until they fill the space."""

    def __init__(self, door: Entrance, rng: Rng) -> None:
        self.door, self.rng, self.span = door, rng, door.span
        self.outside = self.span.rest @ self.span.rest.mT
        self.basis = self.span.basis.float()
        self.along = door.atoms.along(self.span.basis)
        self.found: list[Copy] = []
        self.tests, self.nearest, self.rate = 0, 1.0, RATE

    @property
    def most(self) -> float:
        """The share that a token may still be thinned by when it is looked at closely."""
        return 0.05 + 1.5 * self.rate if self.found else 1.0

    @property
    def missing(self) -> int:
        return self.span.rank - len(self.found)

    def open(self) -> None:
        """Copies of what opens every sentence; where there are very many, it takes some tries to part them."""
        opening = [(token, place) for place, token in enumerate(self.door.vocabulary.opening)]
        self._test(opening[:1])
        self._repeated(lambda tried: BARREN * opening, self.rng / "open", 1)

    def scan(self) -> None:
        """Place after place, the tokens whose whole vectors lie least outside, until some places together have none."""
        wanted = min(len(self.door.vocabulary.table), int(64 + 1.4 * self.span.rank))
        for start in range(len(self.door.vocabulary.opening), self.door.places, BLOCK):
            before, keys = len(self.found), list[Key]()
            for place in range(start, min(start + BLOCK, self.door.places)):
                inside = self.along(place).square().sum(1) / self.door.atoms.squares(place)
                keys += [(token, place) for token in inside.topk(wanted).indices.tolist()]
            self._test(keys)
            if len(self.found) == before or not self.missing:
                break

    def repeat(self) -> None:
        """Further copies of tokens found, and tokens of which every copy was thinned much or hidden behind others."""
        self._repeated(self._called, self.rng / "again")

    def _repeated(self, keys: Callable[[Counter[Key]], list[Key]], rng: Rng, most: int = BARREN) -> None:
        """Turn after turn, until some in a row find nothing."""
        tried, turn, barren = Counter[Key](), 0, 0
        while self.missing and barren < most:
            before, asked = len(self.found), keys(tried)
            self._again(asked, rng / turn)
            turn, barren = turn + 1, barren + 1
            tried.update(asked)
            if len(self.found) > before:  # what is left is another space now
                tried, barren = Counter(), 0

    def _left(self) -> tuple[Tensor, Tensor]:
        """The directions of known copies; and those of the space that they leave, as many as copies are missing."""
        if not self.found:
            return self.span.basis[:, :0], self.span.basis
        known = torch.linalg.qr(self.inputs().mT).Q
        left = torch.linalg.svd(self.span.basis - known @ (known.mT @ self.span.basis), full_matrices=False).U
        return known, left[:, : self.missing]

    def _called(self, tried: Counter[Key]) -> list[Key]:
        """The first of every ranking. Turns in vain lower a token's odds, so that others have their turn."""
        odds = dict[Key, float]()
        for ranking in self._rankings():
            for rank, key in enumerate(ranking):
                odds[key] = max(odds.get(key, 0.0), VAIN ** tried[key] / (1 + rank))
        return sorted(odds, key=lambda key: -odds[key])[: CALLED * (FEW + self.missing)]

    def _rankings(self) -> list[list[Key]]:
        """Of the tokens of all places: those found, the frequent first; others that lie least outside the space; all by
        how much of what is new in them, beside known copies, lies in what these leave of the space; and those that lie
        least outside of the places that hold fewer copies than a later one, for every sentence begins at the first."""
        known, left = self._left()
        within, beside = self.door.atoms.along(left), self.door.atoms.along(known)
        copies, words = Counter(copy.key for copy in self.found), Counter(copy.key[0] for copy in self.found)
        outside, newest = dict[Key, float](), dict[Key, float]()
        last = max(place for _, place in copies) + len(self.door.vocabulary.closing)
        most = min(MOST, len(self.door.vocabulary.table))
        for place in range(min(last + 1, self.door.places)):
            squares, new = self.door.atoms.squares(place), within(place).square().sum(1)
            fresh = squares - beside(place).square().sum(1)
            for scores, score in (outside, (fresh - new) / squares), (newest, -new / fresh.clamp_min(NEW * squares)):
                best = score.topk(most, largest=False)
                scores |= {(token, place): value for value, token in zip(*map(Tensor.tolist, best), strict=True)}
        held = Counter(copy.place for copy in self.found)
        later = {place: max(held[other] for other in held if other >= place) for place in range(max(held) + 1)}
        holes = {key: score for key, score in outside.items() if held[key[1]] < later.get(key[1], 0)}
        again = {key: outside.pop(key, 0.0) - number - words[key[0]] for key, number in copies.items()}
        return [sorted(scores, key=scores.__getitem__) for scores in (again, outside, newest, holes)]

    def _again(self, keys: Sequence[Key], rng: Rng) -> None:
        """Known copies, and mixes of them, have nothing in the directions that they leave. So each try prefers some
        random one of these: what is found then is another copy."""
        asked = [key for key in keys for _ in range(TURN)]
        for start in range(0, len(asked), ROWS):
            if self.missing:
                rows, left = asked[start : start + ROWS], self._left()[1]
                ways = (rng / start).normal((len(rows), left.shape[1]), left) @ left.mT
                self._test(rows, TILT * ways / ways.square().mean(1, keepdim=True).sqrt())

    def _copies(self, key: Key) -> list[Copy]:
        return [copy for copy in self.found if copy.key == key]

    def _vectors(self, keys: Sequence[Key]) -> Tensor:
        tokens, places = torch.tensor(keys).mT
        return self.door.atoms.vectors(tokens, places)

    def _test(self, keys: Sequence[Key], tilt: Tensor | None = None) -> None:
        """Keep those that are in the space, thinned."""
        vectors = self._vectors(keys)
        rows = torch.arange(len(keys))
        now = thinned(thinning(vectors, tilt), self.basis, FIRST)
        if tilt is None and len(keys) > 1:  # of many candidates few are there; of copies all might be
            best = now.share.mean(1).argsort()[: len(keys) // 4]
            rows, now = rows[best], now.only(best)
        now = thinned(now, self.basis, (LAST if tilt is None else LONGER) - FIRST)
        best = now.share.mean(1) < self.most
        rows, now = rows[best], now.only(best)
        done = settled(now.vectors, now.share, self.outside, rate=self.rate)
        self.tests += len(keys) if tilt is None else 0
        for row, kept, off in zip(rows.tolist(), done.kept, done.off.tolist(), strict=True):
            if float(kept.double().mean()) < KEPT:
                continue
            if off < SURE:
                self._keep(Copy(keys[row], kept, off), vectors[row])
            elif tilt is None:
                self.nearest = min(self.nearest, off)

    def _keep(self, copy: Copy, vector: Tensor) -> None:
        """Unless it is known already: two copies differ in many coordinates."""
        counts = vector.abs() > 0.02 * vector.abs().mean()  # others are too small to be told
        same = (float((copy.kept ^ other.kept)[counts].double().mean()) < SAME for other in self._copies(copy.key))
        if self.missing and not any(same):
            self.found.append(copy)
            self.rate = 1 - float(torch.stack([each.kept for each in self.found]).double().mean())

    def likely(self, place: int) -> int:
        """A token for a place where none was proven."""
        inside = self.along(place).square().sum(1) / self.door.atoms.squares(place)
        found = sorted({copy.key[0] for copy in self.found if copy.place == place})
        return max(found or [int(inside.argmax())], key=lambda token: float(inside[token]))

    def notes(self) -> dict[str, float]:
        """Proven tokens fill the space when they are as many as its rank: then all others tested were absent, and as
        none of these passed, a false proof is rarer than 3 in so many tests (at 95 %)."""
        refused = self.tests - len({copy.key for copy in self.found})
        return {
            "rank": float(self.span.rank), "proven": float(len(self.found)), "dropout_rate": self.rate,
            "refused": float(refused), "false_proof_bound": 3.0 / max(1, refused),
            "farthest_proven": max(copy.off for copy in self.found), "nearest_refused": self.nearest,
        }

    def inputs(self) -> Tensor:
        """What the first layers were given, a row a copy."""
        kept = torch.stack([copy.kept for copy in self.found])
        return self._vectors([copy.key for copy in self.found]) * kept / (1 - self.rate)


def _told(door: Entrance, search: _Search) -> Reading:
    """Copies as sentences."""
    places = torch.tensor([copy.place for copy in search.found])
    count = door.count or max(1, int((places == 0).sum()))
    groups = [list(range(len(places)))]
    if count > 1:
        x, how = search.inputs(), attention(door)
        ties = affinity(door, x, *deltas(door, x, how), how)
        words = door.vocabulary
        closing = torch.tensor([copy.key[0] == words.closing[-1] for copy in search.found])
        apart = strangers(places, closing & (places >= len(words.opening)))
        groups = _fitted(families(ties, places, apart, count), ties, apart, count)
    sentences, certain = zip(*(_sentence(door, search, group) for group in groups), strict=True)
    return Reading(sentences, certain, notes=search.notes())


def _fitted(groups: list[list[int]], ties: Tensor, apart: Tensor, count: int) -> list[list[int]]:
    """As many groups as sentences: the tokens of others go where they may stand and their ties are strongest."""
    whole = [list(group) for group in groups[:count]]
    for token in (token for group in groups[count:] for token in group):
        free = [group for group in whole if not bool(apart[group, token].any())]
        if free:
            max(free, key=lambda group: float(ties[token, group].mean())).append(token)
    return whole


def _sentence(door: Entrance, search: _Search, group: Sequence[int]) -> tuple[Sentence, tuple[bool, ...]]:
    """A group's tokens in their places, with the frame. A hole is filled by a token found in that place elsewhere, else
    by the one most in the space."""
    words = door.vocabulary
    proven = {search.found[number].place: search.found[number].key[0] for number in group}
    last = max(proven)
    closed = proven[last] == words.closing[-1]
    likely = dict(enumerate(words.opening))
    likely |= {} if closed else {last + 1 + step: token for step, token in enumerate(words.closing)}
    tokens, certain = list[int](), list[bool]()
    for place in range(max([last, *likely]) + 1):
        certain.append(place in proven)
        tokens.append(proven[place] if place in proven else likely.get(place, search.likely(place)))
    return tuple(tokens), tuple(certain)
