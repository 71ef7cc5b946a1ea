"""A batch of sentences changed, one thing at a time, while the whole update is likelier so."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations, product
from typing import Protocol

import torch
from torch import Tensor

from gradleak.attacks.exact.arrange import reordered
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.judge import Company
from gradleak.attacks.exact.labelling import altered, exchanged
from gradleak.attacks.exact.likely import CHANCE, Change, Search, changed
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.seating import seating
from gradleak.rng import Rng
from gradleak.types import Know

ENDS = 6
"""Places at which sentences may end, best first."""

NEAR = (-2, -1, 1, 2)
"""How much longer a sentence that is written anew may become."""

STEEPEST, OTHERS = 8, 4
"""Words of the pool a place, and of the whole vocabulary, that are replayed in a round: those of the steepest slope."""

FEW = 4
"""Words a place that are put in between in a round, before all are."""

ORDERS = 48
"""Orders of a sentence that are replayed in a round; all of them once nothing else helps."""

STRAYED = 96
"""Words in other sentences, and exchanges, that are tried once nothing else helps."""

ROUNDS = 200
"""Of replaying, while something is better; ten to twenty are usual for four sentences."""

SCREENED, OFFERED = 48, 12
"""Rivals of one length for a sentence's place, and batches in which two sentences change, that are judged where there
is a screen."""

CALLED = 256
"""Words of the whole vocabulary a place that the first layers call for beside all others, tried once nothing helps."""

PROMISING = 6
"""Words a place that are tried together with as many of the next place."""

NEARBY = 8
"""Words a place that come nearest when no place need hold a word."""

Tried = dict[tuple[int, Sentence], float]
"""How likely the batch is with another sentence in one's place."""


class Judging(Protocol):
    """Says how likely companies are."""

    def companies(self, many: Sequence[Company]) -> list[float]: ...

    def instead(self, company: Company, which: int, rivals: Sequence[Sentence]) -> list[float]: ...

    def slopes(self, company: Company) -> Tensor: ...

    def entire(self, score: float) -> bool: ...

    def quiet(self, company: Company, score: float) -> bool: ...


class Settling:
    """The batch as it stands, and how likely the update is given it. `pool` are the words that were heard; a `screen`,
    which judges cheaply, chooses which rivals are judged at all; `near` tells which words are near to what a batch
    wants in every place (n x L x V)."""

    def __init__(
        self, search: Search, judge: Judging, company: Company, pool: Tensor, screen: Judging | None = None,
        near: Callable[[Company], Tensor] | None = None,
    ) -> None:
        self.search, self.judge, self.company, self.pool, self.screen = search, judge, company, pool, screen
        self.near = near
        self._anew: dict[tuple[tuple[Sentence, ...], int], list[Sentence]] = {}
        (self.now,) = judge.companies([company])

    def settled(self, rng: Rng, wide: bool = True) -> tuple[Company, float]:
        """After all turns."""
        for _ in self.turns(rng, wide):
            pass
        return self.company, self.now

    def turns(self, rng: Rng, wide: bool = True, past: "Turn | None" = None) -> Iterator["Turn"]:
        """Words, orders, exchanges and labels; then sentences written anew, other lengths; where nothing helps, more
        and more of it, and words that were not heard (if `wide`). It goes on from a turn that is past, if there is one.

        A sentence that no change near it helps rests until nothing helps the others either.
        """
        turn = past or Turn(self.company, self.now, 0, 0, frozenset())
        self.company, self.now, resting, idle = turn.company, turn.score, {*turn.resting}, turn.idle
        choices = [self._steep, *([self._near] if self.near else [])]
        if wide:
            choices += [*([self._called] if self.screen else []), self._every]
        for number in range(turn.number, ROUNDS):
            if idle == len(choices) or self.judge.entire(self.now):
                break
            if idle and self.judge.quiet(self.company, self.now):
                break
            before, slopes = self.now, self.judge.slopes(self.company)
            choice = choices[idle](slopes)
            for which, sentence in enumerate(self.company.sentences):
                if sentence not in resting and not self.judge.entire(self.now):
                    self._reword(which, choice, rng / number / which)
                    resting |= {sentence} & {*self.company.sentences}
            if not idle or self._helped(before):  # else these were tried on the same batch, in vain
                self.offer([*self._passed(list(crossings(self.company))),
                            *list(relabelled(self.search.door, self.company))[1:]])
            if number == 0 or (choice.anew and not self._helped(before)):
                self._renew()
            tried = Tried()
            if self.search.told is None and not self._helped(before):
                tried = self._resize(choice)
            if choice.wide and not self._helped(before):
                self.offer(self._passed(strayed(self.company, self.search, slopes, tried)))
            idle = 0 if self._helped(before) else idle + 1
            resting = set() if idle else resting
            yield Turn(self.company, self.now, number + 1, idle, frozenset(resting))

    def _helped(self, before: float) -> bool:
        return self.now > before + CHANCE

    def _take(self, company: Company, score: float) -> None:
        if score > self.now + CHANCE:
            self.company, self.now = company, score

    def offer(self, companies: list[Company]) -> None:
        """The likeliest is taken if it helps."""
        if companies:
            self._take(*likeliest(self.judge, companies))

    def _instead(self, company: Company, which: int, rivals: list[Sentence], screened: bool = True) -> "Judged":
        """The likeliest of rivals for a sentence's place is taken if it helps; how likely each is."""
        judged = self._judged(company, which, rivals, screened)
        score, rival = max(zip(judged.scores, rivals, strict=True), default=(self.now, ()))
        self._take(company.but(which, rival), score)
        return judged

    def _judged(self, company: Company, which: int, rivals: list[Sentence], screened: bool) -> "Judged":
        """How likely rivals are; those that the screen passes over not at all."""
        if not screened or self.screen is None or len(rivals) <= SCREENED:
            scores = self.judge.instead(company, which, rivals)
            return Judged(scores, scores)
        promise, passed = self.screen.instead(company, which, rivals), list[int]()
        for length in sorted({len(rival) for rival in rivals}):
            alike = {n: promise[n] for n, rival in enumerate(rivals) if len(rival) == length}
            passed += _foremost(alike, SCREENED)
        scores = [-math.inf] * len(rivals)
        for n, score in zip(passed, self.judge.instead(company, which, [rivals[n] for n in passed]), strict=True):
            scores[n] = score
        return Judged(scores, promise)

    def _passed(self, companies: list[Company]) -> list[Company]:
        """Those that the screen, which does not see labels, does not pass over."""
        if self.screen is None or len(companies) <= OFFERED:
            return companies
        return [companies[n] for n in _foremost(dict(enumerate(self.screen.companies(companies))), OFFERED)]

    def _steep(self, slopes: Tensor) -> "Choice":
        """The words of the steepest slopes, by those of the screen too."""
        voices = [slopes] if self.screen is None else [slopes, self.screen.slopes(self.company)]
        words = [[list(dict.fromkeys(token for voice in voices for token in self._steepest(voice[which, place])))
                  for place in range(len(sentence))] for which, sentence in enumerate(self.company.sentences)]
        return Choice(words, more=FEW, orders=ORDERS, wide=False, anew=self.near is None)

    def _every(self, slopes: Tensor) -> "Choice":
        """All that were heard, and every order, whatever a screen thinks of them."""
        sentences, words = self.company.sentences, self.search.door.vocabulary
        every = sorted({*self.pool.tolist(), *chain(*sentences)} - {*words.opening, *words.closing})
        return Choice([[every] * len(sentence) for sentence in sentences], screened=False)

    def _near(self, slopes: Tensor) -> "Choice":
        """Those that come near when no place need hold a word; a word may leave for one of them elsewhere."""
        assert self.near is not None
        near = self.near(self.company)
        found = near.topk(min(NEARBY, near.shape[-1]))
        there = found.values.isfinite()
        words = [[found.indices[which, place][there[which, place]].tolist() for place in range(len(sentence))]
                 for which, sentence in enumerate(self.company.sentences)]
        return Choice(words, more=FEW, orders=0, screened=False, wide=False, slid=True, anew=True)

    def _called(self, slopes: Tensor) -> "Choice":
        """What the first layers call for in every place beside the words that stand there: faint ones stand out when
        the others are known, and those that a screen prefers are judged."""
        sentences, keys = self.company.sentences, torch.tensor(self.company.keys)
        places = range(len(self.search.opening), max(map(len, sentences)))
        called = self.search.called(self.search.door.atoms.vectors(*keys.mT), places, CALLED)
        return Choice([[called.get(place, []) for place in range(len(sentence))] for sentence in sentences], orders=0)

    def _reword(self, which: int, choice: "Choice", rng: Rng) -> None:
        """A sentence with a word, its order, or several words changed at once."""
        company, words = self.company, self.search.door.vocabulary
        sentence, now = company.sentences[which], self.now
        inside = range(len(words.opening), len(sentence) - len(words.closing))
        singles = [(place, token) for place in inside for token in choice.words[which][place]
                   if token != sentence[place]]
        every = reordered(sentence, inside)
        moved = [every[n] for n in rng.permutation(len(every))[: choice.orders].tolist()]
        rivals = [*(changed(sentence, [change]) for change in singles), *moved]
        judged = self._instead(company, which, rivals, choice.screened)
        best: dict[int, tuple[float, Change]] = {}
        for score, change in zip(judged.scores, singles, strict=False):
            if score > best.get(change[0], (now, change))[0]:
                best[change[0]] = score, change
        ranked = [change for _, change in sorted(best.values(), reverse=True)]
        self._instead(company, which, [changed(sentence, ranked[: n + 1]) for n in range(1, len(ranked))])
        if self.now == now and choice.orders != 0:
            self._instead(company, which, list(shifted(sentence, inside)))
        if self.now == now and choice.wide:
            self._instead(company, which, list(paired(sentence, dict(zip(singles, judged.promise, strict=False)))))
        if self.now == now and choice.slid:
            self._instead(company, which, list(slid(sentence, inside, [each[:FEW] for each in choice.words[which]])))

    def _steepest(self, slope: Tensor) -> list[int]:
        some = self.pool[slope[self.pool].argsort(descending=True)[:STEEPEST]].tolist()
        return [*some, *slope.topk(min(OTHERS, len(slope))).indices.tolist()]

    def _renew(self) -> None:
        """Every sentence in turn written anew, with its label or another."""
        for which in range(len(self.company.sentences)):
            others = self.company.but(which, ()).sentences, len(self.company.sentences[which])
            if others not in self._anew:
                self._anew[others] = anew(self.search, self.company, which, self.pool)
            rivals = self._anew[others]
            for other in list(relabelled(self.search.door, self.company, which)):
                self._instead(other, which, rivals)

    def _resize(self, choice: "Choice") -> Tried:
        """Every sentence in turn with a word less or one more."""
        tried = Tried()
        for which, sentence in enumerate(self.company.sentences):
            rivals = list(resized(sentence, [words[: choice.more] for words in choice.words[which]], self.search))
            scores = self._instead(self.company, which, rivals, choice.screened).scores
            tried |= {(which, rival): score for rival, score in zip(rivals, scores, strict=True)}
        return tried


@dataclass(frozen=True)
class Turn:
    """The batch after so many turns, and how likely it is; how many ways in a row have not helped, and which sentences
    rest."""

    company: Company
    score: float
    number: int
    idle: int
    resting: frozenset[Sentence]


@dataclass(frozen=True)
class Choice:
    """Words to be tried in every place of every sentence, the first of them (`more`) between places too; how many
    orders of each (where it is not said, all); whether a screen chooses among them, and whether all this is for batches
    that nothing near at hand helps; whether a word may leave for another elsewhere, and whether sentences are written
    anew where none of it helps."""

    words: list[list[list[int]]]
    more: int | None = None
    orders: int | None = None
    screened: bool = True
    wide: bool = True
    slid: bool = False
    anew: bool = False


@dataclass(frozen=True)
class Judged:
    """How likely rivals are, and how likely they seem to what judged them all."""

    scores: list[float]
    promise: list[float]


def _foremost(promise: Mapping[int, float], most: int) -> list[int]:
    return sorted(promise, key=lambda n: -promise[n])[:most]


def likeliest(judge: Judging, companies: list[Company]) -> tuple[Company, float]:
    scores = judge.companies(companies)
    top = max(range(len(scores)), key=lambda n: scores[n])
    return companies[top], scores[top]


def relabelled(door: Entrance, company: Company, which: int | None = None) -> Iterator[Company]:
    """The company itself, and with one label changed, or where labels are told, two exchanged; of `which`, if said."""
    yield company
    if company.labels is None:
        return
    labels = company.labels
    told = isinstance(door.seen.facts.get(Know.LABELS), Tensor)
    for each in exchanged(labels) if told else altered(labels, door.seen.classes):
        if which is None or each[which] != labels[which]:
            yield replace(company, labels=each)


def anew(search: Search, company: Company, which: int, pool: Tensor) -> list[Sentence]:
    """One sentence written anew by the first layers, of every likely length, beside what the others explain."""
    lengths = {len(company.sentences[which])}
    if search.told is None:
        lengths |= {*search.ends(ENDS), *(min(lengths) + more for more in NEAR)}
    others = [(token, place) for number, sentence in enumerate(company.sentences) if number != which
              for place, token in enumerate(sentence)]
    found = []
    for length in sorted(filter(search.possible, lengths)):
        seated, _ = seating(search, pool, [length], others).best()
        inside = [token for token, _ in sorted(seated, key=lambda key: key[1])]
        found.append((*search.opening, *inside, *search.closing))
    return found


def crossings(company: Company) -> Iterator[Company]:
    """Two sentences exchange a word of one place, or all they have from a place on."""
    for a, b in combinations(range(len(company.sentences)), 2):
        one, other = company.sentences[a], company.sentences[b]
        for place in range(1, min(len(one), len(other)) - 1):
            if one[place] != other[place]:
                word = one[:place] + other[place : place + 1] + one[place + 1 :]
                yield company.but(a, word).but(b, other[:place] + one[place : place + 1] + other[place + 1 :])
            if one[place:] != other[place:]:
                yield company.but(a, one[:place] + other[place:]).but(b, other[:place] + one[place:])


def strayed(
    company: Company, search: Search, slopes: Tensor, tried: Mapping[tuple[int, Sentence], float],
) -> list[Company]:
    """A word of one sentence stands in another, anywhere; or two have taken each other's places. Those that promise
    the most: by the two sentences, each `tried` alone, or by the slope."""
    first, last = len(search.opening), len(search.closing)
    moved: dict[Company, float] = {}
    traded: dict[Company, float] = {}
    for a, b in permutations(range(len(company.sentences)), 2):
        one, other = company.sentences[a], company.sentences[b]
        for place in range(first, len(one) - last):
            fewer = (*one[:place], *one[place + 1 :])
            for at in range(first, len(other) - last + 1):
                more = (*other[:at], one[place], *other[at:])
                if (a, fewer) in tried and (b, more) in tried:
                    moved[company.but(a, fewer).but(b, more)] = tried[a, fewer] + tried[b, more]
            for at in range(first, len(other) - last) if a < b else ():
                if at != place and one[place] != other[at]:
                    crossed = changed(one, [(place, other[at])]), changed(other, [(at, one[place])])
                    traded[company.but(a, crossed[0]).but(b, crossed[1])] = float(
                        slopes[a, place, other[at]] + slopes[b, at, one[place]])
    return [each for found in (moved, traded) for each in sorted(found, key=lambda c: -found[c])[:STRAYED]]


def shifted(sentence: Sentence, inside: range) -> Iterator[Sentence]:
    """With a run of words moved elsewhere: two runs that meet exchanged."""
    for first, middle, last in combinations(range(inside.start, inside.stop + 1), 3):
        yield sentence[:first] + sentence[middle:last] + sentence[first:middle] + sentence[last:]


def slid(sentence: Sentence, inside: range, likely: Sequence[Sequence[int]]) -> Iterator[Sentence]:
    """With a word gone and another come elsewhere, those between moved by one: a word that is `likely` where either
    happened."""
    for gone, come in permutations(inside, 2):
        rest = sentence[:gone] + sentence[gone + 1 :]
        for token in dict.fromkeys([*likely[gone], *likely[come]]):
            yield (*rest[:come], token, *rest[come:])


def paired(sentence: Sentence, promise: Mapping[Change, float]) -> Iterator[Sentence]:
    """With two neighbours changed at once, each into a word that promises much alone: "to be", "' t"."""
    best: dict[int, list[Change]] = {}
    for change in sorted(promise, key=lambda each: -promise[each]):
        best.setdefault(change[0], []).append(change)
    for place, changes in best.items():
        for pair in product(changes[:PROMISING], best.get(place + 1, [])[:PROMISING]):
            yield changed(sentence, pair)


def resized(sentence: Sentence, likely: Sequence[Sequence[int]], search: Search) -> Iterator[Sentence]:
    """With a word less, or with one more: one of those that are `likely` in its place."""
    first, last = len(search.opening), len(search.closing)
    for place in range(first, len(sentence) - last + 1):
        if place < len(sentence) - last and search.possible(len(sentence) - 1):
            yield sentence[:place] + sentence[place + 1 :]
        if search.possible(len(sentence) + 1):
            for token in likely[min(place, len(likely) - 1)]:  # nothing was asked of a place behind the last
                yield (*sentence[:place], token, *sentence[place:])
