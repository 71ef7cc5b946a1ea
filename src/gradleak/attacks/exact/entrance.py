"""Where a language model's weights first meet the words, and what its update gives away there."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.exact.asking import reached
from gradleak.attacks.exact.dictionary import Dictionary, dictionary
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import Span, behind, oriented, span, stacked
from gradleak.attacks.parts.tokens import embed, looks_up
from gradleak.calculus import layout, peek
from gradleak.errors import Unsuited
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.tap import Layer, Untapped
from gradleak.types import NOTHING, Batch, Know, Observation, Vocabulary

PLACES = 128
"""Longer sentences are not looked for."""

SAMPLE = 4096
"""Entries by which a rounded layer is known."""


@dataclass(frozen=True)
class Entrance:
    """All layers (`groups`, each given one input) in the order of use; of those in the update, the ones given the words
    themselves (`first`), the one behind attention (`middle`), and the next ones like the first (`second`)."""

    seen: Observation
    vocabulary: Vocabulary
    groups: list[tuple[Layer, ...]]
    first: tuple[Layer, ...]
    middle: tuple[Layer, ...]
    second: tuple[Layer, ...]

    @cached_property
    def atoms(self) -> Dictionary:
        return dictionary(self.seen, self.vocabulary, self.first[0].name, self.places)

    @cached_property
    def sent(self) -> list[Tensor]:
        """The first layers' gradients, those of which anything was sent."""
        return [part for layer in self.first if bool((part := oriented(self.seen.update, layer)).any())]

    @cached_property
    def span(self) -> Span:
        """Of the first layers' inputs: of the words."""
        return self._span(self.first)

    def _span(self, group: tuple[Layer, ...]) -> Span:
        """Of what these layers were given: from their own gradients or, where these are zero because a zero factor
        stands behind each, from those of the factors."""
        update = self.seen.update
        if any(bool(update[layer.name].any()) for layer in group) or not self.factors:
            return span(stacked(update, group))
        return behind([(oriented(self.seen.params, layer), oriented(update, self.factors[layer])) for layer in group])

    @cached_property
    def factors(self) -> dict[Layer, Layer]:
        """Of layers made of two low-rank factors the second by the first: it is given what the first makes."""
        wanted = (*self.first, *self.second)
        if not all(_low(self.seen, layer) for layer in wanted):
            return {}
        layers = [layer for group in self.groups for layer in group]
        inputs = peek(self.seen.replay, probe(self.seen, 1, Rng(0)), *(layer.name for layer in layers))
        given = {layer: x.double() for layer, x in zip(layers, inputs, strict=True)}
        made = {one: given[one] @ oriented(self.seen.params, one).mT for one in wanted}
        return {one: other for one in wanted for other in layers if _same(made[one], given[other])}

    @property
    def filled(self) -> str:
        """Why a span that is full says nothing, where adapters are sent."""
        rank = oriented(self.seen.params, self.first[0]).shape[0]
        most = rank * len(self.first) if bool(self.seen.update[self.first[0].name].any()) else rank
        return (f"the adapters' gradients leave no direction to rule tokens out by: of rank {rank} they tell at most "
                f"{most - 2} tokens apart, and nothing under noise or compression; audit shorter or fewer sentences, "
                "or match: lamp, tag")

    @cached_property
    def _deep(self) -> tuple[tuple[Layer, ...], Span]:
        groups = [group for group in (self.second, self.middle) if group]
        if not groups:
            raise Unsuited("the model has one layer only: nothing in its update tells which tokens stood together")
        return max(((group, self._span(group)) for group in groups), key=lambda one: one[1].rank)

    @property
    def witness(self) -> tuple[Layer, ...]:
        """The layers that tell whole sentences: the second ones, unless they are the last, where only the token that is
        classified asks and most directions are missing; then the one before."""
        return self._deep[0]

    @property
    def deep(self) -> Span:
        """Of what the witness is given."""
        return self._deep[1]

    @property
    def places(self) -> int:
        """How long a sentence may be."""
        return min(self.seen.shape[0], PLACES)

    @property
    def count(self) -> int | None:
        value = self.seen.facts.get(Know.COUNT)
        return value if isinstance(value, int) else None

    @cached_property
    def altered(self) -> bool:
        """Whether the first layer's entries were left out or rounded: a gradient of words has hardly two alike."""
        entries = self.seen.update[self.first[0].name].flatten()[:SAMPLE].abs()
        return len(torch.unique(entries)) < len(entries) / 4 or float((entries == 0).float().mean()) > 0.01

    @cached_property
    def drops(self) -> bool:
        """Whether the client does, as anyone knows who wrote its training."""
        batch, _ = self.told([self.empty], torch.zeros(1, dtype=torch.long))
        return bool(self.seen.sites(batch))

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
        extra = {"mask": (rows != NOTHING).long()}
        if looks_up(self.seen, self.vocabulary):
            extra["ids"] = rows.where(rows != NOTHING, self.vocabulary.pad or 0)
        return Batch(embed(self.vocabulary, rows), labels, extra), rows


def entrance(seen: Observation) -> Entrance:
    """Found by letting a made-up sentence pass."""
    if seen.vocabulary is None:
        raise Unsuited("the data are images; this attack reads text")
    try:
        groups = layout(seen.replay, probe(seen, 1, Rng(0)))
    except Untapped as reason:
        raise Unsuited(f"the model's layers cannot be told apart: {reason}") from None
    sent = [group for group in groups if all(layer.name in seen.update for layer in group)]
    if not sent:
        raise Unsuited("the update has no linear layer to look at")
    shapes = [sorted(tuple(seen.params[layer.name].shape) for layer in group) for group in sent]
    again = shapes.index(shapes[0], 1) if shapes[0] in shapes[1:] else None
    width = seen.vocabulary.table.shape[1]
    between = [group for group in sent[1:again] if _inputs(seen, group[0]) == width][-1:] if again else []
    return Entrance(seen, seen.vocabulary, groups, sent[0], between[0] if between else (), sent[again] if again else ())


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).norm() < 1e-4 * one.norm())


def _low(seen: Observation, layer: Layer) -> bool:
    """Whether a layer may be the first of two factors: it narrows, by a lot."""
    outputs, inputs = oriented(seen.params, layer).shape
    return 2 * outputs <= inputs


def _inputs(seen: Observation, layer: Layer) -> int:
    shape = seen.params[layer.name].shape
    return shape[0] if layer.flipped else shape[1]
