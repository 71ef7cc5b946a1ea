"""What a regression is taught: images, or the embeddings of words."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from gradleak.attacks.learned.examples import Pictures, public
from gradleak.attacks.learned.gauge import Gauge, gauged
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.sentences import Frequencies, Sentences, text
from gradleak.attacks.parts.labels import Known, count
from gradleak.attacks.parts.tokens import allowed
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Observation

SPARE = 10
"""For so many passages one more is made up that is not learned from: they tell how far what is said of a word is from
it."""


class Lesson(Protocol):
    """Made-up batches by number, and what to make of what is said of an update."""

    mirrored: bool
    """Whether the numbers after the last mean the same batches again, in a mirror."""

    @property
    def about(self) -> tuple[object, ...]:
        """What of the observation the made-up batches were made like."""
        ...

    @property
    def shared(self) -> tuple[int, ...]:
        """The labels that all batches have, if they do."""
        ...

    @property
    def fresh(self) -> Tensor:
        """Numbers of batches that are not learned from, if there are any to spare."""
        ...

    def __len__(self) -> int: ...

    def drawn(self, numbers: Tensor) -> tuple[Batch, Tensor]:
        """Stacked batches, and as one row each what to say of them."""
        ...

    def learned(self, fresh: Sequence[tuple[Tensor, Tensor]]) -> State:
        """From what is said of fresh batches, beside what should have been."""
        ...

    def guess(self, said: Tensor, state: State) -> Guess: ...


class PictureLesson:
    """Public images, and their pixels."""

    mirrored = True
    fresh = torch.arange(0)

    def __init__(self, seen: Observation, examples: Pictures, labels: Tensor) -> None:
        self.seen, self.examples, self.labels = seen, examples, labels

    @property
    def about(self) -> tuple[object, ...]:
        return self.shared

    @property
    def shared(self) -> tuple[int, ...]:
        return () if self.examples.labels is None else tuple(self.examples.labels.tolist())

    def __len__(self) -> int:
        return len(self.examples)

    def drawn(self, numbers: Tensor) -> tuple[Batch, Tensor]:
        x, y = self.examples(numbers)
        return Batch(x, y), x.flatten(1)

    def learned(self, fresh: Sequence[tuple[Tensor, Tensor]]) -> State:
        return {}

    def guess(self, said: Tensor, state: State) -> Guess:
        x = said.clamp(0, 1).reshape(len(self.labels), *self.seen.shape)
        return Guess(Batch(x, self.labels), x)


def pictures(seen: Observation, relabel: bool, rng: Rng) -> PictureLesson:
    """All with the labels read off the update, or, if it does not tell them, with labels of their own."""
    read, known = Known().read(seen, rng / "labels"), public(seen)
    told = bool(read.confidence.any()) or known.labels is None
    examples = Pictures(known.readings.to(next(iter(seen.params.values()))), known.labels,
                        read.labels if relabel and told else None, count(seen))
    if len(examples) < 3:
        raise Unsuited(f"{len(examples)} public images are too few to learn from; name more")
    return PictureLesson(seen, examples, read.labels)


class WordLesson:
    """Passages of words drawn by how often they occur, and the words' embeddings."""

    mirrored = False
    shared = ()

    def __init__(self, seen: Observation, sentences: Sentences, passages: int) -> None:
        self.sentences, self.passages = sentences, passages
        shares, possible = sentences.source.shares, allowed(seen, sentences.room.vocabulary)
        met = shares.where(shares > 0, shares[shares > 0].min())
        self.often = torch.where(possible, met / met[possible].sum(), 0.0).log()
        """Of each word, how often it occurs (the logarithm); one that was never met counts as the rarest."""

    @property
    def about(self) -> tuple[object, ...]:
        return self.sentences.about

    @property
    def fresh(self) -> Tensor:
        return torch.arange(self.passages, self.passages + self.passages // SPARE)

    @property
    def places(self) -> int:
        return self.sentences.places

    def __len__(self) -> int:
        return self.passages

    @cached_property
    def _inside(self) -> Tensor:
        return self.sentences.tokens(self.passages + len(self.fresh), Rng(0) / "passages")

    def drawn(self, numbers: Tensor) -> tuple[Batch, Tensor]:
        inside = self._inside[numbers]
        return self.sentences.batch(inside), self.embedded(inside).flatten(1)

    def embedded(self, inside: Tensor) -> Tensor:
        return self.sentences.room.table[inside]

    def learned(self, fresh: Sequence[tuple[Tensor, Tensor]]) -> State:
        said, meant = (torch.cat(part).view(len(self.fresh), self.places, -1) for part in zip(*fresh, strict=True))
        return gauged(said, meant).state

    def guess(self, said: Tensor, state: State) -> Guess:
        likely = Gauge.of(state)(said.view(self.places, -1), self.sentences.room.table)
        return replace(self.sentences.told(self.likeliest(likely)), state={"likely": likely})

    def likeliest(self, likely: Tensor) -> Tensor:
        """The word of every place (places x words: how likely what is said makes each), given how often they occur."""
        return (likely + self.often).argmax(1)


def words(seen: Observation, passages: int, rng: Rng) -> WordLesson:
    """As long as those observed, with their labels."""
    vocabulary = seen.vocabulary
    assert vocabulary is not None
    shares = torch.bincount(text(seen, vocabulary).tokens, minlength=len(vocabulary.table)).float()
    return WordLesson(seen, Sentences(seen, vocabulary, Frequencies(shares), rng / "labels"), passages)
