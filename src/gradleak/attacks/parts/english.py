"""Chances of words after words: English as counted at large, and bent towards a text."""

import math
import re
from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradleak.errors import UsageError

MOST = 2_000_000
"""Different words whose triples still have numbers of 63 bits."""
OPEN, CLOSE = "<s>", "</s>"
STOPS, PAUSES = frozenset(".!?"), frozenset(",;:")
OWNS = "'s"
NUMBER = "0"
_PARTS = re.compile(r"##\w+|\w+|[^\w\s]")
_APART = re.compile(r"\s*['’]\s*(s|t|d|m|ll|re|ve)\b")
_WORDS = re.compile(
    r"##\w+|'(?:s|d|m|ll|re|ve)\b|[$£€]?\s?\d{1,3}(?:\s?,\s?\d{3})+|[$£€]?\s?\d+(?:\s?\.\s?\d+)?|[^\W_]+|[^\w\s]|_")
_GAP = re.compile(r"\s+([.,;:!?%)])")
_MYSELF = re.compile(r"\bi\b")
_CAPITAL = re.compile(r"[^.!?\s]\s+([A-Z][a-z]+)")
_SHORT = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will", "'d": "would"}
_IS = frozenset(("it", "he", "she", "that", "there", "here", "what", "who", "where", "how"))
"""After these, 's is short for is."""


def parts(text: str) -> int:
    """Words and marks of a text as it stands, apostrophes apart: the same in every order of its tokens, or nearly."""
    return len(_PARTS.findall(text))


def together(text: str) -> str:
    """With apostrophes where a writer puts them: wordpieces leave `don ' t`."""
    return _APART.sub(r"'\1", text)


def tidy(text: str) -> str:
    """As a writer would set it: no space before a mark, and capitals if the text has none at all."""
    text = _GAP.sub(r"\1", together(text.strip()))
    if text != text.lower():
        return text
    text = _MYSELF.sub("I", text)
    return text[:1].upper() + text[1:]


def words(text: str) -> list[str]:
    """Lower-case words and marks; short forms in full, numbers as one word."""
    plain = together(text.lower()).replace("can't", "can not").replace("won't", "will not").replace("n't", " not ")
    found: list[str] = []
    for word in _WORDS.findall(plain):
        if word == OWNS and found and found[-1] in _IS:
            word = "is"
        found.append(NUMBER if word[-1].isdigit() and not word.startswith("##") else _SHORT.get(word, word))
    return found


_CARRIED = frozenset((
    "the", "a", "an", "of", "and", "or", "but", "my", "your", "his", "its", "our", "their", "these", "those",
    "very", "is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "am", "will", "would", "can",
    "could", "should", "may", "might", "must", "do", "does", "did", "which", "who", "whom", "whose", "if",
    "because", "although", "while", "than", "as", "what", "how", "when", "where", "why", "every", "each", "'s",
    "i", "he", "she", "we", "they",
))
"""Words that something must follow."""
_OPENERS = ("but", "because", "when", "if")
"""What follows these begins a clause, as what follows nothing does."""
_TURNS = ("but", "because", "when", "if", "while")
"""What precedes these can end a clause."""
_NAMED = ("he", "she", "him")
_ALIKE = (
    ("ly", ("quickly", "slowly", "carefully")),
    ("ing", ("making", "taking", "reading")),
    ("ed", ("moved", "turned", "pulled", "covered")),
    ("ness", ("happiness", "weakness")),
    ("s", ("things", "books", "makes", "dogs")),
    ("", ("house", "dog", "strong")),
)
"""By ending, common words that keep the company of rare ones."""

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@final
class English:
    """Chances of a word after another, from counts of single words and of pairs.

    A pair too rare to be counted has the chance of its kinds of words, found by grouping words with the same company.
    The pairs were counted with capitals apart and only their small letters remain, so what is hardly ever second in a
    pair is a name; names keep the company of pronouns. Punctuation was not counted at all: a clause begins like one
    after `but`, and may end where `but` may follow.
    """

    KINDS, FEATURES, GROUPED, ROUNDS = 150, 100, 5000, 6
    BY_KIND, BACK = 0.75, 0.2

    def __init__(self, singles: dict[str, int], first: list[str], second: list[str], counts: Floats) -> None:
        self.singles, self.total = singles, float(sum(singles.values()))
        common = sorted({*first, *second}, key=lambda word: -singles[word])
        self.place = {word: i for i, word in enumerate(common)}
        self.size = len(common)
        one = np.fromiter(map(self.place.__getitem__, first), np.int64, len(first))
        two = np.fromiter(map(self.place.__getitem__, second), np.int64, len(second))
        self.often = np.array([singles[word] for word in common], np.float64)
        seconds = dict(zip(common, np.bincount(two, counts, self.size).tolist(), strict=True))
        self.names = {word for word, often in singles.items()
                      if often > 3e6 and len(word) > 2 and seconds.get(word, 0) < 0.012 * often}
        counts = self._with_capital_i(one, two, counts)
        self.follow = np.bincount(one, counts, self.size)
        self.pairs = dict(zip((one * self.size + two).tolist(), np.maximum(counts - 2e4, 0).tolist(), strict=True))
        self.kinds = self._grouped(one, two, counts)
        table = np.bincount(self.kinds[one] * self.KINDS + self.kinds[two], counts, self.KINDS**2)
        table = table.reshape(self.KINDS, -1) + 1e-9 * table.mean()
        self.table = table / table.sum(1, keepdims=True)
        self.share = self.often / np.bincount(self.kinds, self.often, self.KINDS)[self.kinds]
        self.named = sum(singles[word] for word in self.names) / self.total
        self.whole = lru_cache(2**16)(self._whole)
        self.pair = lru_cache(2**19)(self._pair)
        self.chance = lru_cache(2**19)(self._chance)

    def _with_capital_i(self, one: Whole, two: Whole, counts: Floats) -> Floats:
        """The one common word that is always written with a capital: raised to the share of pairs others have."""
        i = self.place["i"]
        for side in (one, two):
            here = side == i
            counts = np.where(here, counts * 0.5 * self.often[i] / counts[here].sum(), counts)
        return counts

    def _grouped(self, one: Whole, two: Whole, counts: Floats) -> Whole:
        """The kind of each word: k-means of how often the most common words stand before and after it."""
        sides = []
        for mine, other in ((one, two), (two, one)):
            block = np.zeros((self.size, self.FEATURES + 1))
            near = other < self.FEATURES
            block[mine[near], other[near]] = counts[near]
            block[:, -1] = np.bincount(mine[~near], counts[~near], self.size)
            sides.append(np.sqrt(block / np.maximum(block.sum(1, keepdims=True), 1)))
        company = np.hstack(sides).astype(np.float32)
        weight = np.log(self.often[: self.GROUPED, None]).astype(np.float32)
        centres, grouped = company[: self.KINDS].copy(), company[: self.GROUPED]
        for _ in range(self.ROUNDS):
            nearest = _nearest(grouped, centres)
            order = nearest.argsort(kind="stable")
            starts = np.flatnonzero(np.diff(nearest[order], prepend=-1))
            sums = np.add.reduceat((weight * grouped)[order], starts)
            centres[nearest[order][starts]] = sums / np.add.reduceat(weight[order], starts)
        return _nearest(company, centres)

    def alone(self, word: str) -> float:
        """The chance of a word anywhere; an unknown one by its length."""
        often = self.singles.get(word)
        return math.exp(-14 - 0.8 * len(word)) if often is None else often / self.total

    def alike(self, word: str) -> tuple[str, ...]:
        """The words whose company stands for that of this one."""
        if word in self.names:
            return _NAMED
        if word in self.place:
            return (word,)
        if word == NUMBER:
            return "two", "three", "ten"
        # Two letters and more must remain: `bed` and `sly` are not what their endings say.
        found = next(likes for ending, likes in _ALIKE if not ending or word[3:].endswith(ending))
        return found if word in self.singles else (*found, *_NAMED)

    def kind(self, word: str) -> int:
        """The number of its kind; names, and words never met, are one more."""
        if word in self.names or word not in self.singles:
            return self.KINDS
        return int(self.kinds[self.place[self.alike(word)[0]]])

    def _pair(self, before: str, word: str) -> float:
        return self.alone(word) * self._gain(before, self.alike(word)) / self.whole(before)

    def _gain(self, before: str, likes: tuple[str, ...]) -> float:
        """How much likelier than anywhere words like these are here."""
        theirs = self.alike(before)
        each = [self._counted(a, b) / self.alone(b) for a in theirs for b in likes]
        return sum(each) / len(each)

    def _whole(self, before: str) -> float:
        """What the chances after a word would add up to, as names borrow theirs and there are many."""
        return 1 + self.named * (self._gain(before, _NAMED) - 1)

    def _counted(self, before: str, word: str) -> float:
        i, j = self.place[before], self.place[word]
        by_kind = self.table[self.kinds[i], self.kinds[j]] * self.share[j]
        unseen = self.BY_KIND * by_kind + (1 - self.BY_KIND) * self.often[j] / self.total
        whole = max(self.often[i], self.follow[i])
        kept = (1 - self.BACK) / whole
        return float(kept * self.pairs.get(i * self.size + j, 0.0) + (1 - kept * self.follow[i]) * unseen)

    def _ends(self, before: str) -> float:
        if before == OWNS:
            return 1e-4
        return (0.005 + sum(self.pair(before, turn) for turn in _TURNS)) * (0.03 if before in _CARRIED else 1)

    def _chance(self, before: str, word: str) -> float:
        """Of a word or mark after another; `OPEN` comes before the first, `CLOSE` after the last."""
        spoken = before[0].isalnum() or before == OWNS
        if word == CLOSE:
            return 0.9 if before in STOPS else 0.05 * self._ends(before) if spoken else 1e-3
        if word in STOPS or word in PAUSES:
            return self._ends(before) if spoken else 1e-6
        if word == OWNS:
            return 1e-6 if not spoken or before == OWNS else 1e-4 if before in _CARRIED else 0.02
        if not word[0].isalnum():
            return 1e-7 if word.startswith("##") else 1e-4 if word in "\"-()" else 1e-5
        if before == OPEN or before in STOPS:
            begins = sum(self.pair(opener, word) for opener in _OPENERS) / len(_OPENERS)
            return (0.9 * begins + 0.1 * self.alone(word)) * (1 if before == OPEN else 0.05)
        if before in PAUSES:
            return 0.3 * self.alone(word) + 0.7 * self.pair("and", word)
        if before == OWNS:
            return 0.5 * self.pair("his", word) + 0.5 * self.pair("their", word)
        return self.pair(before, word) if spoken else 0.3 * self.alone(word)


def misplaced(text: str, english: English) -> int:
    """In a text that has capitals: how many stand inside a sentence on a word that is no name, or lack at its start."""
    if text == text.lower():
        return 0
    inside = [word.lower() for word in _CAPITAL.findall(text)]
    return sum(word in english.place and word not in english.names for word in inside) + text.lstrip()[:1].islower()


def _nearest(points: NDArray[np.float32], centres: NDArray[np.float32]) -> Whole:
    """The number of the centre nearest to each point."""
    nearest: Whole = (2 * points @ centres.T - np.square(centres).sum(1)).argmax(1)
    return nearest


@final
class Counts:
    """How often each symbol of a stream follows one and two others, discounted (absolute discounting).

    `first` stands before every sentence, twice; what follows across sentences is not counted.
    """

    def __init__(self, stream: Whole, size: int, first: int, discount: float) -> None:
        self.size, self.discount = size, discount
        at = np.flatnonzero(stream != first)
        self.single = np.bincount(stream[at], minlength=size)
        pairs = stream[at - 1] * size + stream[at]
        self.pairs = np.unique(pairs, return_counts=True)
        self.triples = np.unique(stream[at - 2] * size**2 + pairs, return_counts=True)
        self.after_one = self._contexts(self.pairs)
        self.after_two = self._contexts(self.triples)

    def _contexts(self, found: tuple[Whole, Whole]) -> tuple[Whole, Whole, Whole]:
        """What was followed, by how many in all, by how many different ones."""
        keys, starts, kinds = np.unique(found[0] // self.size, return_index=True, return_counts=True)
        return keys, np.add.reduceat(found[1], starts), kinds

    def chance(self, earlier: int, before: int, now: int, otherwise: float, trust: tuple[float, float]) -> float:
        """Of a symbol after two others; `otherwise` is its chance where nothing was counted, and `trust` how many
        sightings that is worth after one symbol and after two."""
        context = before
        for worth, grams, contexts in zip(
                trust, (self.pairs, self.triples), (self.after_one, self.after_two), strict=True):
            place = _find(contexts[0], context)
            if place is not None:
                all_, kinds = int(contexts[1][place]), int(contexts[2][place])
                seen = _find(grams[0], context * self.size + now)
                often = 0.0 if seen is None else int(grams[1][seen]) - self.discount
                otherwise = (often + (self.discount * kinds + worth) * otherwise) / (all_ + worth)
            context = earlier * self.size + before
        return otherwise


def _find(ordered: Whole, key: int) -> int | None:
    place = int(ordered.searchsorted(key))
    return place if place < len(ordered) and ordered[place] == key else None


@final
class Learnt:
    """English, bent towards a text: its triples of words, over those of kinds of words, over pairs as counted."""

    KINDS_SHARE = 0.4
    TRUST, KINDS_TRUST = (1000.0, 10.0), (1.0, 1.0)

    def __init__(self, english: English, text: str) -> None:
        self.english = english
        self.numbers: dict[str, int] = {OPEN: 0, CLOSE: 1}
        stream = array("q")
        for sentence in _sentences(text):
            stream.extend(self.numbers.setdefault(word, len(self.numbers)) for word in (OPEN, OPEN, *sentence, CLOSE))
        if len(self.numbers) > MOST:
            raise UsageError(f"{len(self.numbers)} different words in the text, at most {MOST} are told apart; "
                             "give a part of it")
        said = np.frombuffer(stream, np.int64)
        self.counts = Counts(said, len(self.numbers) + 1, 0, 0.75)
        self.marks = {mark: english.KINDS + 2 + i for i, mark in enumerate((OPEN, CLOSE, OWNS, *STOPS, *PAUSES))}
        self.size = english.KINDS + 2 + len(self.marks)
        kinds = np.array([self._kind(word) for word in self.numbers])
        self.kinds = Counts(kinds[said], self.size, self.marks[OPEN], 0.9)
        self.all = int(self.counts.single.sum())
        alone = np.array([self._alone(word) for word in self.numbers])
        self.of_kind = np.bincount(kinds, alone, self.size) + 1e-4
        self.chance = lru_cache(2**19)(self._chance)

    def _kind(self, word: str) -> int:
        if word in self.marks:
            return self.marks[word]
        return self.english.kind(word) if word[0].isalnum() else self.english.KINDS + 1

    def _alone(self, word: str) -> float:
        often = int(self.counts.single[self.numbers[word]]) if word in self.numbers else 0
        return (often + 2000 * self.english.alone(word)) / (self.all + 2000)

    def _chance(self, earlier: str, before: str, word: str) -> float:
        a, b, c = self._kind(earlier), self._kind(before), self._kind(word)
        kind = self.kinds.chance(a, b, c, (int(self.kinds.single[c]) + 0.1) / (self.all + 20), self.KINDS_TRUST)
        by_kind = kind * min(1.0, self._alone(word) / float(self.of_kind[c]))
        plain = (1 - self.KINDS_SHARE) * self.english.chance(before, word) + self.KINDS_SHARE * by_kind
        a, b, c = (self.numbers.get(each, len(self.numbers)) for each in (earlier, before, word))
        return self.counts.chance(a, b, c, plain, self.TRUST)


def _sentences(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        sentence: list[str] = []
        for word in words(line):
            sentence.append(word)
            if word in STOPS:
                yield sentence
                sentence = []
        if sentence:
            yield sentence
