"""Recovered sentences, token by token, with what is right about each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from gradleak.types import Sentence, Vocabulary

Mark = Literal["place", "elsewhere", "wrong", "unmarked"]

CONTEXT = 8
"""Tokens before one that can change how it is written."""

STAGES, MOST_LINES = 5, 4


@dataclass(frozen=True)
class Word:
    """One token as it stands in the text."""

    text: str
    space: bool
    mark: Mark
    certain: bool = False
    """Proven by the attack itself, which did not have the truth to compare with."""


@dataclass(frozen=True)
class Said:
    """A sentence to look at."""

    words: tuple[Word, ...]
    length: int
    """Of the truth, in tokens."""

    @property
    def certain(self) -> int:
        return sum(word.certain for word in self.words)

    @property
    def in_place(self) -> int:
        return sum(word.mark == "place" for word in self.words)

    @property
    def elsewhere(self) -> int:
        return sum(word.mark == "elsewhere" for word in self.words)


def compared(
    reading: Sentence, truth: Sentence, vocabulary: Vocabulary, certain: Sequence[bool] | None = None,
) -> Said:
    """Each token of a reading marked: right where it stands, right elsewhere, or wrong; and whether it was proven."""
    return _said(reading.tokens, marks(reading.tokens, truth.tokens), len(truth.tokens), vocabulary, certain)


def unmarked(truth: Sentence, vocabulary: Vocabulary) -> Said:
    return _said(truth.tokens, ["unmarked"] * len(truth.tokens), len(truth.tokens), vocabulary)


def marks(reading: Sequence[int], truth: Sequence[int]) -> list[Mark]:
    """Each token of the truth makes one token of the reading right, at most."""
    placed = [i < len(truth) and token == truth[i] for i, token in enumerate(reading)]
    left = Counter(truth)
    left.subtract(token for token, there in zip(reading, placed, strict=True) if there)
    found: list[Mark] = []
    for token, there in zip(reading, placed, strict=True):
        if there:
            found.append("place")
        elif left[token] > 0:
            left[token] -= 1
            found.append("elsewhere")
        else:
            found.append("wrong")
    return found


def _said(
    tokens: Sequence[int], found: Sequence[Mark], length: int, vocabulary: Vocabulary,
    certain: Sequence[bool] | None = None,
) -> Said:
    proven = certain or [False] * len(tokens)
    return Said(tuple(Word(text, space, mark, sure) for (text, space), mark, sure
                      in zip(_written(tokens, vocabulary), found, proven, strict=True)), length)


def _written(tokens: Sequence[int], vocabulary: Vocabulary) -> Iterator[tuple[str, bool]]:
    """What each token adds to the text, and whether a space comes before it.

    Asked of the vocabulary itself, since word pieces, byte pairs and the rest mark their seams in ways of their own.
    """
    for place, token in enumerate(tokens):
        context = tokens[max(0, place - CONTEXT) : place]
        before, now = vocabulary.spell(context), vocabulary.spell([*context, token])
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
        added = now[kept:]
        yield added.strip() or vocabulary.piece(token), place > 0 and added[:1].isspace()


@dataclass(frozen=True)
class Stage:
    """What an attack had at one step of a trial."""

    trial: int
    step: int
    texts: tuple[str, ...]
    more: int


def emergence(events: Sequence[dict[str, Any]]) -> tuple[Stage, ...]:
    """A few steps of the first trial that kept its text; none if none did."""
    kept = [event for event in events if event.get("text")]
    own = [event for event in kept if event["trial"] == kept[0]["trial"]]
    if len(own) < 2:
        return ()
    last = len(own) - 1
    picked = sorted({round(last * i / (STAGES - 1)) for i in range(STAGES)})
    return tuple(Stage(own[i]["trial"], own[i]["step"], tuple(map(str, own[i]["text"][:MOST_LINES])),
                       max(0, len(own[i]["text"]) - MOST_LINES)) for i in picked)
