"""Where a language model's weights first meet the words, and what its update gives away there."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.exact.asking import reached
from gradleak.attacks.exact.dictionary import Dictionary, dictionary
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import Span, span, stacked
from gradleak.calculus import layout
from gradleak.errors import Unsuited
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.tap import Layer, Untapped
from gradleak.types import NOTHING, Batch, Know, Observation, Vocabulary

PLACES = 128
"""Longer sentences are not looked for."""


@dataclass(frozen=True)
class Entrance:
    """The first layers, in the order of use: those given the words themselves (`first`), the layer behind attention
    (`middle`), and the next layers like the first (`second`); each a group that is given one input."""

    seen: Observation
    vocabulary: Vocabulary
    first: tuple[Layer, ...]
    middle: tuple[Layer, ...]
    second: tuple[Layer, ...]

    @cached_property
    def atoms(self) -> Dictionary:
        return dictionary(self.seen, self.vocabulary, self.first[0].name, self.places)

    @cached_property
    def span(self) -> Span:
        """Of the first layers' inputs: of the words."""
        return span(stacked(self.seen.update, self.first))

    @cached_property
    def witness(self) -> tuple[Layer, ...]:
        """The layers that tell whole sentences: the second ones, unless they are the last, where only the token that is
        classified asks and most directions are missing; then the one before."""
        groups = [group for group in (self.second, self.middle) if group]
        if not groups:
            raise Unsuited("the model has one layer only: nothing in its update tells which tokens stood together")
        ranks = [span(stacked(self.seen.update, group)).rank for group in groups]
        return groups[ranks.index(max(ranks))]

    @property
    def places(self) -> int:
        """How long a sentence may be."""
        return min(self.seen.shape[0], PLACES)

    @property
    def count(self) -> int | None:
        value = self.seen.facts.get(Know.COUNT)
        return value if isinstance(value, int) else None

    @property
    def empty(self) -> Sentence:
        """What stands for a sentence that was not read: its frame, or where there is none, any one token."""
        words = self.vocabulary
        return (*words.opening, *words.closing) or (int(words.usable.nonzero()[0]),)

    def reach(self, sentences: Tensor, *names: str) -> list[Tensor]:
        """What reaches the named layers when sentences of one length (n x L tokens) come in: n x L x inputs, in
        float64."""
        return reached(self.seen, self.vocabulary.table[sentences], *names)

    def told(self, sentences: list[Sentence], labels: Tensor) -> tuple[Batch, Tensor]:
        """Sentences as a batch to replay, and as rows of tokens."""
        longest = max(map(len, sentences))
        rows = torch.tensor([[*each, *[NOTHING] * (longest - len(each))] for each in sentences])
        mask = rows != NOTHING
        pad = self.vocabulary.pad
        ids = torch.where(mask, rows, 0 if pad is None else pad)
        extra = {"mask": mask.long()}
        if any(value.shape == self.vocabulary.table.shape for value in self.seen.params.values()):
            extra["ids"] = ids
        return Batch(self.vocabulary.table[ids] * (mask[..., None] if pad is None else 1), labels, extra), rows


def entrance(seen: Observation) -> Entrance:
    """Found by letting a made-up sentence pass."""
    if seen.vocabulary is None:
        raise Unsuited("the data are images; this attack reads text")
    try:
        groups = layout(seen.replay, probe(seen, 1, Rng(0)))
    except Untapped as reason:
        raise Unsuited(f"the model's layers cannot be told apart: {reason}") from None
    groups = [group for group in groups if all(layer.name in seen.update for layer in group)]
    if not groups:
        raise Unsuited("the update has no linear layer to look at")
    shapes = [sorted(tuple(seen.params[layer.name].shape) for layer in group) for group in groups]
    again = shapes.index(shapes[0], 1) if shapes[0] in shapes[1:] else None
    width = seen.vocabulary.table.shape[1]
    between = [group for group in groups[1:again] if _inputs(seen, group[0]) == width][-1:] if again else []
    return Entrance(seen, seen.vocabulary, groups[0], between[0] if between else (), groups[again] if again else ())


def _inputs(seen: Observation, layer: Layer) -> int:
    shape = seen.params[layer.name].shape
    return shape[0] if layer.flipped else shape[1]
