"""Which words stood where, by the entries that were sent of the first layers' gradients when others were left out.

Gaps that are filled in first, with as few directions as will do, hide the fainter words. Where words are supposed,
nothing need be filled in: every row of a gradient is a mix of their vectors, seen in some columns only, and how likely
those entries are, whatever the mix, is known in closed form. One wrong word in one place costs hundreds of nats.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import torch
from torch import Tensor

from gradleak.attacks.exact.likely import AXES, Search
from gradleak.attacks.exact.seating import Key, framed, seating, seats

ROUGH = (0.2, 0.06, 0.02)
"""How far entries may be from a mix of the words, beside their size: less and less, as fewer words are wrong."""

MIXED = 0.5
"""The mean square of what words give an entry, beside that of those sent: which are the largest, where size decided."""

FEW = 3
"""Entries of a row at least that are looked at."""

CALLED = 16
"""Words of the whole vocabulary that may be missing on a seat, tried once those heard do not help."""

RIVALS = 3
"""Words a seat that are tried together with as many of another, once nothing else helps."""

STRIDE = 4
"""How much longer or shorter a sentence may become at a time."""

FAR = 4
"""The last places of a model, where words are surely absent."""

ROUNDS = 24
"""Of changes, while they help; ten are usual."""

BETTER = 1.0
"""Nats that a change must bring."""

TOGETHER = 2**23
"""Numbers that are held while changes are judged."""


class Entries:
    """Entries sent of gradients with one input, row by row: each row is a mix of that input's vectors."""

    def __init__(self, parts: Sequence[Tensor], power: float, rough: float) -> None:
        """`power`: the mean square of the vectors, of all together; `rough`: how far from a mix entries may be."""
        sizes = [part[part != 0].square().mean().sqrt() for part in parts]
        stack = torch.cat([part / size for part, size in zip(parts, sizes, strict=True)]).double() / rough
        self.stack = stack[(stack != 0).sum(1) >= FEW]
        self.sent = (self.stack != 0).float()
        self.scale = math.sqrt(MIXED / power) / rough

    def over(self, products: Tensor) -> Tensor:
        """Sums (m x ...) of products (... x d) over the entries sent in each row."""
        sums = self.sent @ products.float().flatten(0, -2).mT
        return sums.double().view(len(sums), *products.shape[:-1])


@dataclass(frozen=True)
class Mix:
    """Vectors (n x d) as the explanation of entries, each row of these a mix of its own."""

    entries: Entries
    vectors: Tensor

    @cached_property
    def _scaled(self) -> Tensor:
        return self.vectors * self.entries.scale

    @cached_property
    def _inverse(self) -> Tensor:
        """What is not known of the shares, row by row (m x n x n)."""
        grams = self.entries.over(self._scaled[:, None] * self._scaled)
        inverse: Tensor = torch.linalg.inv(grams + torch.eye(len(self.vectors)).to(grams))
        return inverse

    @cached_property
    def _shares(self) -> Tensor:
        """The likeliest (m x n)."""
        return (self._inverse @ (self.entries.stack @ self._scaled.mT)[..., None])[..., 0]

    @cached_property
    def likely(self) -> float:
        """How much likelier the entries are so than as nothing, in nats."""
        explained = (self._shares * (self.entries.stack @ self._scaled.mT)).sum()
        return float(explained + torch.logdet(self._inverse).sum()) / 2

    @property
    def rest(self) -> Tensor:
        """The main directions of what is left of the entries, as long as much is left there (d x n). Rows with few
        entries weigh as much as those with many."""
        left = self.entries.stack - self.entries.sent * (self._shares @ self._scaled)
        left = left / self.entries.sent.sum(1, keepdim=True).sqrt()
        values, axes = torch.linalg.eigh(left.mT @ left)
        main: Tensor = axes[:, -AXES:] * values[-AXES:].clamp_min(0).sqrt()
        return main

    def added(self, more: Tensor) -> Tensor:
        """How likely with each one more (k x d)."""
        return self.changed(torch.empty(len(more), 0, dtype=torch.long), more[:, None])

    def without(self, some: Sequence[int]) -> Tensor:
        """How likely without each one of some."""
        return self.changed(torch.tensor(some)[:, None], self.vectors.new_empty(len(some), 0, self.vectors.shape[1]))

    def changed(self, gone: Tensor, come: Tensor) -> Tensor:
        """How likely with others (k x c x d) come for some (k x g) that are gone.

        Nothing is solved anew. With S the inverse and J the rows gone, the likelihood of the rest and what the
        newcomers add to it follow from S_JJ and from S times the newcomers' inner products with all (Schur): one
        elimination of g + c unknowns, for all rows and changes at once.
        """
        size = max(1, TOGETHER // (len(self.entries.stack) * len(self.vectors) * max(1, come.shape[1]) + 1))
        parts = zip(torch.split(gone, size), torch.split(come, size), strict=True)
        return torch.cat([self._changed(*part) for part in parts])

    def _changed(self, gone: Tensor, come: Tensor) -> Tensor:
        old, new = gone.unbind(1), (come * self.entries.scale).unbind(1)
        across = [self.entries.over(self._scaled[:, None] * each) for each in new]  # m x n x k
        pressed = [self._inverse @ each for each in across]
        right = [self._shares[:, each] for each in old]
        right += [(side * self._shares[..., None]).sum(1) - self.entries.stack @ each.mT
                  for side, each in zip(across, new, strict=True)]
        table = [[self._inverse[:, one, other] for other in old[row:]]
                 + [side.gather(1, one.expand(len(side), 1, -1))[:, 0] for side in pressed]
                 for row, one in enumerate(old)]
        table += [[(side * pressed[other]).sum(1) - self.entries.over(new[one] * new[other]) - float(one == other)
                   for other in range(one, len(new))] for one, side in enumerate(across)]
        return self.likely - _eliminated(table, right).sum(0) / 2


def _eliminated(table: list[list[Tensor]], right: list[Tensor]) -> Tensor:
    """r A^-1 r + log |det A| of many small symmetric A, of which `table` has the upper triangle, and `right` r."""
    total = torch.zeros(())
    while table:
        (pivot, *row), (value, *right) = table[0], right
        total = total + value * value / pivot + pivot.abs().log()
        table = [[entry - row[one] / pivot * other for entry, other in zip(rest, row[one:], strict=True)]
                 for one, rest in enumerate(table[1:])]
        right = [entry - each / pivot * value for entry, each in zip(right, row, strict=True)]
    return total


@dataclass(frozen=True)
class Seated:
    """Lengths of sentences, and words with their places, as many in every place as sentences reach beyond it."""

    lengths: tuple[int, ...]
    seats: tuple[Key, ...]

    def at(self, place: int) -> list[int]:
        """The seats of a place."""
        return [seat for seat, (_, where) in enumerate(self.seats) if where == place]

    def crossed(self, one: int, other: int) -> "Seated":
        """With two words in each other's places."""
        (a, there), (b, back) = self.seats[one], self.seats[other]
        return self.but(one, (b, there)).but(other, (a, back))

    def but(self, seat: int, *keys: Key) -> "Seated":
        """With another on a seat; or with none there."""
        return Seated(self.lengths, self.seats[:seat] + keys + self.seats[seat + 1 :])


def sifted(search: Search, pool: Tensor, lengths: tuple[int, ...]) -> Seated:
    """From where energy puts words of the pool in sentences of such lengths: whatever is likelier, lengths and all."""
    now = Seated(lengths, tuple(seating(search, pool, lengths).best()[0]))
    for rough in ROUGH:
        now = _Sifting(search, heard(pool, now), rough).settled(now)
    return now


def heard(pool: Tensor, now: Seated) -> Tensor:
    """The pool, with all words that are seated."""
    words: Tensor = torch.unique(torch.cat([pool, torch.tensor([token for token, _ in now.seats])]))
    return words


class _Sifting:
    """Words on seats, changed while the entries are likelier so."""

    def __init__(self, search: Search, pool: Tensor, rough: float) -> None:
        self.search, self.words, door = search, pool.tolist(), search.door
        typical = door.atoms.vectors(pool, torch.full_like(pool, len(search.opening))).square().mean()
        self.entries = Entries(door.sent, float(typical) * len(pool), rough)
        self._called: dict[int, list[int]] = {}

    def settled(self, now: Seated) -> Seated:
        for _ in range(ROUNDS):
            before = self.mix(now).likely
            for change in (self._moved, self._widened, self._resized, self._paired):
                now = change(now)
                if self.mix(now).likely > before + BETTER:
                    break
            else:
                break
        return now

    def mix(self, now: Seated) -> Mix:
        """Of the seats in their order, and of the sentences' frames."""
        return Mix(self.entries, self._vectors([*now.seats, *framed(self.search, now.lengths)]))

    def _vectors(self, keys: Sequence[Key]) -> Tensor:
        return self.search.door.atoms.vectors(*torch.tensor(keys).mT)

    def _here(self, place: int) -> list[Key]:
        return [(token, place) for token in dict.fromkeys([*self.words, *self._called.get(place, [])])]

    def _moved(self, now: Seated) -> Seated:
        return self._exchanged(self._swept(now))

    def _swept(self, now: Seated) -> Seated:
        """Every seat in turn gets the word that is likeliest beside the others."""
        mix = self.mix(now)
        for seat, (_, place) in enumerate(now.seats):
            here = self._here(place)
            likely = mix.changed(torch.full((len(here), 1), seat), self._vectors(here)[:, None])
            if float(likely.max()) > mix.likely + BETTER:
                now = now.but(seat, here[int(likely.argmax())])
                mix = self.mix(now)
        return now

    def _exchanged(self, now: Seated) -> Seated:
        """Two words exchange their places, those first that help the most, while any does."""
        pairs = list(combinations(range(len(now.seats)), 2))
        while pairs:
            mix = self.mix(now)
            tokens, places = torch.tensor(now.seats)[torch.tensor(pairs)].unbind(2)
            likely = mix.changed(torch.tensor(pairs), self.search.door.atoms.vectors(tokens.flip(1), places))
            best = mix.likely
            for n in likely.argsort(descending=True).tolist():
                if float(likely[n]) <= mix.likely + BETTER:
                    break
                other = now.crossed(*pairs[n])
                if (score := self.mix(other).likely) > best + BETTER:
                    now, best = other, score
            if best == mix.likely:
                break
        return now

    def _paired(self, now: Seated) -> Seated:
        """Two seats get other words at once, if that helps: those that would be likeliest there alone."""
        mix, rivals = self.mix(now), list[list[Key]]()
        for seat, key in enumerate(now.seats):
            here = [other for other in self._here(key[1]) if other != key]
            likely = mix.changed(torch.full((len(here), 1), seat), self._vectors(here)[:, None])
            rivals.append([here[n] for n in likely.argsort(descending=True)[:RIVALS].tolist()])
        both = [(pair, keys) for pair in combinations(range(len(now.seats)), 2)
                for keys in product(*(rivals[seat] for seat in pair))]
        if not both:
            return now
        come = torch.stack([self._vectors([keys[side] for _, keys in both]) for side in (0, 1)], 1)
        likely = mix.changed(torch.tensor([pair for pair, _ in both]), come)
        if float(likely.max()) > mix.likely + BETTER:
            (one, other), (first, second) = both[int(likely.argmax())]
            return now.but(one, first).but(other, second)
        return now

    def _resized(self, now: Seated) -> Seated:
        """One sentence longer or shorter, if lengths are not told and that helps: words must bring more than they do
        where no sentence reaches."""
        if self.search.told is not None:
            return now
        absent = self._absent(now)
        return max([now, *self._sizes(now)], key=lambda each: self.mix(each).likely - absent * len(each.seats))

    def _absent(self, now: Seated) -> float:
        """What the best of the words adds in the last places of the model; nothing where a sentence may end there."""
        places = range(self.search.door.places)[-FAR:]
        if places.start <= max(now.lengths) + STRIDE:
            return 0.0
        mix = self.mix(now)
        added = mix.added(self._vectors([(token, place) for place in places for token in self.words]))
        return max(0.0, float(added.max()) - mix.likely)

    def _sizes(self, now: Seated) -> Iterator[Seated]:
        tried = {now.lengths}
        for number, length in enumerate(now.lengths):
            for end in filter(self.search.possible, range(length - STRIDE, length + STRIDE + 1)):
                lengths = tuple(sorted((*now.lengths[:number], end, *now.lengths[number + 1 :])))
                if lengths not in tried:
                    tried.add(lengths)
                    yield self._fitted(Seated(lengths, now.seats))

    def _fitted(self, now: Seated) -> Seated:
        """As many words in every place as sentences of such lengths have there: those go that are missed the least,
        those come that help the most."""
        wanted = Counter(seats(self.search, now.lengths))
        for place in sorted({*wanted, *(place for _, place in now.seats)}):
            while len(here := now.at(place)) > wanted[place]:
                now = now.but(here[int(self.mix(now).without(here).argmax())])
            while len(now.at(place)) < wanted[place]:
                words = self._here(place)
                come = words[int(self.mix(now).added(self._vectors(words)).argmax())]
                now = Seated(now.lengths, (*now.seats, come))
        return now

    def _widened(self, now: Seated) -> Seated:
        """With words of the whole vocabulary: those that what is left calls for when a seat is empty."""
        door = self.search.door
        for seat, (_, place) in enumerate(now.seats):
            rest = self.mix(now.but(seat)).rest
            scores = door.atoms.along(rest)(place).square().sum(1) / door.atoms.squares(place)
            called = scores.masked_fill(~door.vocabulary.usable, -1.0).topk(CALLED).indices.tolist()
            self._called[place] = [*dict.fromkeys([*self._called.get(place, []), *called])]
        return self._swept(now)
