"""Sentences of a client that drops, where noise, rounding or gaps lie over what it sent: by the first layers alone.

No replay can tell: it does not know what was dropped. But that can be learned with the sentence. How the gradients mix
its words follows by least squares, and every coordinate of every word is kept or dropped, whichever explains more; both
in turn (mean field). The truth then leaves only noise, and no wrong word explains more by dropping some of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.judge import Company, Judge, alone
from gradleak.attacks.exact.likely import HEARD, Search, begun, hearings, settled
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.sparse import RATE
from gradleak.rng import Rng

TURNS = 10
"""Of mixing and dropping. They go half the way, as all coordinates turn at once."""

TOGETHER = 64
"""Companies whose masks are learned at a time; and absent words that are tried."""

TRIED = 2 * TOGETHER
"""Companies whose masks are learned when there are more of them."""

FAR = 16
"""The last places of a model, where absent words are tried."""

TUNED = 3
"""How often the noise is measured anew by the sentence found."""

LEAST, MOST = 0.01, 0.6
"""The share dropped is somewhere between."""

RIDGE = 1e-9
"""Beside the mean squared length: so that companies of fewer words can be solved with longer ones."""


def read(door: Entrance, rng: Rng) -> Reading:
    """One sentence, its length found out unless it was told."""
    searches = hearings(door, rng)
    search = searches[-1]
    veil = Veil(search)
    veil.tune(alone(search.arranging(search.lengths()[0]).best().sentence))
    search, sentence, _ = begun(searches, veil)
    margins = dict[int, float]()
    for _ in range(TUNED):
        before = sentence
        veil.tune(alone(sentence))
        sentence, margins = settled(search, veil, sentence, None)
        if sentence == before:
            break
    label, _ = Judge(door).first(sentence)
    company = alone(sentence)
    notes = {"rank": float(veil.search.heard.rank), "likelihood": veil.companies([company])[0],
             "dropout_rate": 1 - float(veil.kept(company).mean()), "margin": min(margins.values(), default=0.0),
             **{f"margin {place}": value for place, value in margins.items()}}
    return Reading([sentence], [[False] * len(sentence)], None if label is None else [label], notes)


@dataclass(frozen=True)
class Lifted:
    """What of each word was kept (K x T x d, between 0 and 1), and how likely the gradients are so, in nats."""

    kept: Tensor
    score: Tensor


class Veil:
    """Judges sentences as `Judge` does, whatever their labels."""

    def __init__(self, search: Search) -> None:
        self.search, self.energy, self.rows = search, search.heard.energy, len(search.heard.stack)
        self.noise = search.heard.level / self.rows
        """The variance of an entry that holds nothing else."""
        self.seat = HEARD * self.rows / 2
        """What a word must explain to count, in nats."""

    def tune(self, company: Company) -> None:
        """By what such a company leaves: how much noise there is, and how much of it the best of words explains that
        stand where no sentence reaches. What rounding and gaps leave looks a little like words."""
        vectors, places = self._vectors(company)[None], self.search.door.places
        self.noise, self.seat = self.search.heard.level / self.rows, HEARD * self.rows / 2
        plain = self.lifted(vectors)
        self.noise *= max(1.0, float(self._left(_fit(self.energy, vectors * plain.kept), vectors)))
        if places - FAR < 2 * max(map(len, company.sentences)):  # a longer sentence might reach them
            return
        absent = self.search.listed(range(places - FAR, places), max(1, self.search.heard.rank))
        top = absent.gains((vectors * plain.kept)[0]).topk(min(TOGETHER, len(absent.tokens))).indices
        more = torch.cat([vectors.expand(len(top), -1, -1), absent.vectors[top][:, None]], 1)
        added = self.lifted(more).score.max() - self.lifted(vectors).score
        self.seat += max(0.0, float(added))

    def entire(self, score: float) -> bool:
        """Never: what noise leaves has no limit that only the truth would reach."""
        return False

    def __call__(self, sentences: Sequence[Sentence], label: int | None = None) -> list[float]:
        return self.companies([alone(each) for each in sentences])

    def first(self, sentence: Sentence) -> tuple[None, float]:
        """No label: none can be told here."""
        return None, self([sentence])[0]

    def companies(self, many: Sequence[Company]) -> list[float]:
        """Of whole batches; of very many only of those that would explain the most if nothing were dropped."""
        vectors = [self._vectors(each) for each in many]
        passed, scores = list(range(len(many))), [-math.inf] * len(many)
        if len(many) > TRIED:
            plain = self._together(vectors, lambda part: _fit(self.energy, part).explained)
            worth = [energy / (2 * self.noise) - self.seat * len(part)
                     for energy, part in zip(plain, vectors, strict=True)]
            passed = sorted(passed, key=lambda number: -worth[number])[:TRIED]
        found = self._together([vectors[number] for number in passed], lambda part: self.lifted(part).score)
        for number, score in zip(passed, found, strict=True):
            scores[number] = score
        return scores

    def _together(self, vectors: list[Tensor], judged: Callable[[Tensor], Tensor]) -> list[float]:
        parts = [vectors[at : at + TOGETHER] for at in range(0, len(vectors), TOGETHER)]
        return [score for part in parts for score in judged(pad_sequence(part, batch_first=True)).tolist()]

    def slope(self, sentence: Sentence, label: int | None = None) -> Tensor:
        """What every listed token would add in every place, beside the others as they are seen (L x V)."""
        seen = self._vectors(alone(sentence)) * self.kept(alone(sentence))
        found = torch.full((len(sentence), len(self.search.door.vocabulary.table)), -torch.inf)
        for place in self.search.arranging(len(sentence)).inside:
            listed = self.search.listed(range(place, place + 1), max(1, self.search.heard.rank))
            found[place, listed.tokens] = listed.gains(torch.cat([seen[:place], seen[place + 1 :]])).to(found)
        return found

    def kept(self, company: Company) -> Tensor:
        """What of each word was likely kept, sentence after sentence (T x d)."""
        return self.lifted(self._vectors(company)[None]).kept[0]

    def _vectors(self, company: Company) -> Tensor:
        return self.search.door.atoms.vectors(*torch.tensor(company.keys).mT)

    def _left(self, fit: "_Fit", vectors: Tensor) -> Tensor:
        """What is left to explain, beside what noise would leave."""
        free = len(self.energy) - (vectors != 0).any(2).sum(1)
        return (self.energy.trace() - fit.explained) / (free * self.noise * self.rows)

    def lifted(self, vectors: Tensor) -> Lifted:
        """Of companies' words (K x T x d; rows of zeros are none). The share that is dropped is learned, too."""
        there = (vectors != 0).any(2, keepdim=True)
        kept = torch.full_like(vectors, 1 - RATE)
        for _ in range(TURNS):
            fit = _fit(self.energy, vectors * kept)
            noise = self.noise * self._left(fit, vectors).clamp_min(1)[:, None, None]
            odds = torch.logit(1 - _rate(kept, there)) + fit.gained(vectors, kept) / (2 * noise)
            kept = (kept + torch.sigmoid(odds)) / 2
        fit, rate = _fit(self.energy, vectors * kept), _rate(kept, there)
        unsure = (fit.sizes * vectors.square() * kept * (1 - kept)).sum((1, 2))
        said = torch.xlogy(kept, kept / (1 - rate)) + torch.xlogy(1 - kept, (1 - kept) / rate)
        cost = (said * there).sum((1, 2)) + self.seat * there.sum((1, 2))
        return Lifted(kept, (fit.explained - unsure) / (2 * self.noise) - cost)


def _rate(kept: Tensor, there: Tensor) -> Tensor:
    """The share dropped of the words that are there, company by company."""
    dropped = ((1 - kept) * there).sum((1, 2), keepdim=True)
    return (dropped / (there.sum((1, 2), keepdim=True) * kept.shape[2])).clamp(LEAST, MOST)


@dataclass(frozen=True)
class _Fit:
    """Companies' words as they are `seen` (K x T x d), what the gradients' energy makes of them, and the same two by
    the inverse of their products: `back` is a basis that each of them alone is along."""

    energy: Tensor
    seen: Tensor
    pressed: Tensor
    back: Tensor
    along: Tensor

    @cached_property
    def explained(self) -> Tensor:
        """The energy in the space of the words (K)."""
        return (self.back * self.pressed).sum((1, 2))

    @property
    def sizes(self) -> Tensor:
        """The squared lengths in which the gradients mix the words (K x T x 1)."""
        return (self.along * self.back).sum(2, keepdim=True)

    def gained(self, vectors: Tensor, kept: Tensor) -> Tensor:
        """How much more energy there would be with each coordinate of a word kept than with it dropped (K x T x d), the
        others as they are, however the words are then mixed.

        A word lies at b u, for a unit vector u, beyond the space of the other words: there is the energy uEu. With a
        coordinate j moved by m, and R projecting on what lies beyond these others, it is b^2 uEu + 2 m b (REu)_j +
        m^2 (RER)_jj, divided by b^2 + 2 m b u_j + m^2 R_jj. All of this follows from products with the words.
        """
        norm = self.back.norm(dim=2, keepdim=True)
        length = torch.where(norm > 0, 1 / norm, 0)  # none of rows that are no words
        ahead, along = self.back * length, self.along * length
        own = (along * ahead).sum(2, keepdim=True)
        apart = along - (along @ self.seen.mT) @ self.back
        crossed = 2 * (self.back * self.pressed).sum(1) - (self.back * (self.pressed @ self.seen.mT @ self.back)).sum(1)
        linear = (apart + ahead * own) * length
        square = (self.energy.diagonal() - crossed)[:, None] + 2 * ahead * apart + ahead.square() * own
        free = 1 - (self.seen * self.back).sum(1)[:, None] + ahead.square()

        def moved(by: Tensor) -> Tensor:
            held = length.square() * own + 2 * by * linear + by.square() * square
            return held / (length.square() + 2 * by * length * ahead + by.square() * free).clamp_min(1e-300)

        return moved((1 - kept) * vectors) - moved(-kept * vectors)


def _fit(energy: Tensor, seen: Tensor) -> _Fit:
    gram, pressed = seen @ seen.mT, seen @ energy
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(gram.shape[1]).to(gram)
    both: Tensor = torch.linalg.solve(gram + ridge, torch.cat([seen, pressed], 2))
    return _Fit(energy, seen, pressed, both[..., : len(energy)], both[..., len(energy) :])
