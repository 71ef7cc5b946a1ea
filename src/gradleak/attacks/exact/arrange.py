"""Which words, in which order, explain a noisy span best: a search over sentences, one token a place."""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from gradleak.attacks.exact.dictionary import Dictionary
from gradleak.attacks.exact.reading import Sentence

ROUNDS = 12
"""Of sweeps and moves, each while it helps; three are usual."""

FAR = 600
"""Words move over so many places, divided by the sentence's length: the number of moves stays in bounds."""

BETTER = 1e-9
"""By which share energy must grow to count as grown: less is rounding."""


@dataclass(frozen=True)
class Shortlist:
    """Tokens that may stand at places: parallel rows of tokens, places and vectors, those of one place together.

    `energy` (d x d) is what was seen: the squared length, in units of noise, that the layers' gradients have in a
    direction. A sentence is as good as the energy in the space that its vectors span.
    """

    tokens: Tensor
    places: Tensor
    vectors: Tensor
    energy: Tensor

    @cached_property
    def _pressed(self) -> Tensor:
        return self.vectors @ self.energy

    @cached_property
    def _sizes(self) -> tuple[Tensor, Tensor]:
        """Energy along, and squared length of, every vector."""
        return (self._pressed * self.vectors).sum(1), self.vectors.square().sum(1)

    @cached_property
    def _rows(self) -> dict[int, slice]:
        places, counts = torch.unique_consecutive(self.places, return_counts=True)
        ends = counts.cumsum(0).tolist()
        return {p: slice(end - n, end) for p, n, end in zip(places.tolist(), counts.tolist(), ends, strict=True)}

    def at(self, place: int) -> slice:
        """The rows of one place."""
        return self._rows[place]

    def gains(self, others: Tensor, rows: slice = slice(None)) -> Tensor:
        """The energy each vector would add to that of `others` (n x d): along what is new in it."""
        axes = torch.linalg.qr(others.mT).Q
        energies, squares = (part[rows] for part in self._sizes)
        old, across = self.vectors[rows] @ axes, self._pressed[rows] @ axes
        inside = axes.mT @ self.energy @ axes
        fresh = squares - old.square().sum(1)
        gain = energies - 2 * (old * across).sum(1) + ((old @ inside) * old).sum(1)
        return torch.where(fresh > 1e-9 * squares, gain / fresh.clamp_min(1e-300), 0.0)

    def total(self, choice: Tensor) -> Tensor:
        """The energy in the space of each choice of vectors (n x L rows)."""
        distinct, index = torch.unique(choice, return_inverse=True)
        vectors, pressed = self.vectors[distinct], self._pressed[distinct]
        gram, seen = vectors @ vectors.mT, pressed @ vectors.mT
        pairs = index[:, :, None], index[:, None, :]
        shares: Tensor = torch.linalg.solve(gram[pairs], seen[pairs])
        return shares.diagonal(dim1=1, dim2=2).sum(1)


def explained(energy: Tensor, vectors: Tensor) -> float:
    """The energy in the space that vectors (n x d) span."""
    axes = torch.linalg.qr(vectors.mT).Q
    return float((axes * (energy @ axes)).sum())


@dataclass(frozen=True)
class Arranged:
    """A sentence, and the energy it explains."""

    sentence: Sentence
    energy: float


class Arranging:
    """Sentences of one length inside a frame, made of listed tokens and improved while that helps."""

    def __init__(self, listed: Shortlist, length: int, opening: Sentence, closing: Sentence, atoms: Dictionary) -> None:
        self.listed, self.length, self.opening, self.closing, self.atoms = listed, length, opening, closing, atoms
        self.inside = range(len(opening), length - len(closing))

    def _vectors(self, tokens: list[int], places: list[int]) -> Tensor:
        return self.atoms.vectors(torch.tensor(tokens, dtype=torch.long), torch.tensor(places, dtype=torch.long))

    def best(self) -> Arranged:
        """From the greedy start, and sweeps and moves in turn."""
        return self.improved(self.greedy())

    def greedy(self) -> Sentence:
        """Word after word, whichever adds the most, wherever it stands."""
        chosen = dict(zip((*range(len(self.opening)), *range(self.inside.stop, self.length)),
                          (*self.opening, *self.closing), strict=True))
        inside = self.listed.at(self.inside[0]).start, self.listed.at(self.inside[-1]).stop
        rows = slice(*inside)
        places = self.listed.places[rows]
        open_to = torch.ones(len(places), dtype=torch.bool)
        while len(chosen) < self.length:
            gains = self.listed.gains(self._vectors(list(chosen.values()), list(chosen)), rows)
            pick = int(gains.masked_fill(~open_to, -1.0).argmax())
            place = int(places[pick])
            chosen[place] = int(self.listed.tokens[rows][pick])
            open_to &= places != place
        return tuple(chosen[place] for place in range(self.length))

    def improved(self, sentence: Sentence) -> Arranged:
        found = self.scored(sentence)
        for _ in range(ROUNDS):
            before = found
            found = self.moved(self.swept(found))
            if found.energy <= before.energy * (1 + BETTER):
                break
        return found

    def energy(self, sentence: Sentence) -> float:
        return explained(self.listed.energy, self._vectors(list(sentence), list(range(self.length))))

    def others(self, sentence: Sentence, place: int) -> Tensor:
        """The vectors of all places but one."""
        kept = [p for p in range(self.length) if p != place]
        return self._vectors([sentence[p] for p in kept], kept)

    def swept(self, found: Arranged) -> Arranged:
        """Every place in turn gets the listed token that adds the most to the others."""
        now = found
        for place in self.inside:
            now = self.fitted(now.sentence, place)
        return now if now.energy > found.energy else found

    def moved(self, found: Arranged) -> Arranged:
        """The best move of words, while one helps."""
        sentence, energy = found.sentence, found.energy
        pool = self._pool(sentence)
        order = everywhere = torch.arange(self.length)
        while len(tried := order[_orders(self.inside, self.length)]):
            totals = pool.total(tried * self.length + everywhere)
            top = int(totals.argmax())
            if float(totals[top]) <= energy * (1 + BETTER):
                break
            order, energy = tried[top], float(totals[top])
        return Arranged(tuple(torch.tensor(sentence)[order].tolist()), energy)

    def moves(self, sentence: Sentence, most: int) -> list[Sentence]:
        """The best other orders one move away."""
        orders, tokens = _orders(self.inside, self.length), torch.tensor(sentence)
        if not len(orders):
            return []
        totals = self._pool(sentence).total(orders * self.length + torch.arange(self.length))
        found = dict.fromkeys(tuple(tokens[orders[top]].tolist()) for top in totals.argsort(descending=True).tolist())
        return [each for each in found if each != sentence][:most]

    def _pool(self, sentence: Sentence) -> Shortlist:
        """Every token of a sentence in every place, token after token."""
        tokens, places = torch.tensor(sentence).repeat_interleave(self.length), torch.arange(self.length)
        places = places.repeat(self.length)
        return Shortlist(tokens, places, self.atoms.vectors(tokens, places), self.listed.energy)

    def fitted(self, sentence: Sentence, place: int) -> Arranged:
        """The token of one place chosen anew."""
        rows = self.listed.at(place)
        gains = self.listed.gains(self.others(sentence, place), rows)
        token = int(self.listed.tokens[rows][int(gains.argmax())])
        return self.scored((*sentence[:place], token, *sentence[place + 1 :]))

    def scored(self, sentence: Sentence) -> Arranged:
        return Arranged(sentence, self.energy(sentence))


def reordered(sentence: Sentence, inside: range) -> list[Sentence]:
    """With one word moved elsewhere, or with two exchanged: each such sentence once."""
    tokens = torch.tensor(sentence)
    found = dict.fromkeys(tuple(tokens[order].tolist()) for order in _orders(inside, len(sentence)))
    found.pop(sentence, None)
    return list(found)


@cache
def _orders(inside: range, length: int) -> Tensor:
    """Two words change places, or one goes elsewhere and those between close up: all such orders of the places, in
    long sentences only over short ways."""
    plain, reach = list(range(length)), max(2, FAR // length)
    found = set[tuple[int, ...]]()
    for a in inside:
        for b in inside[max(0, a - reach - inside.start) : a + reach + 1 - inside.start]:
            rest = plain[:a] + plain[a + 1 :]
            shift, swap = [*rest[:b], a, *rest[b:]], plain.copy()
            swap[a], swap[b] = b, a
            found |= {tuple(shift), tuple(swap)}
    return torch.tensor(sorted(found - {tuple(plain)}), dtype=torch.long).reshape(-1, length)
