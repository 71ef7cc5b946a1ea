"""Exact recovery from the space that a layer's gradient spans: see each part for what it solves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.combine import ByKind, Stages
from gradleak.attacks.descent import Descent
from gradleak.attacks.exact import adapters, causal, crowd, dropped, peeling, veil
from gradleak.attacks.exact.course import Course
from gradleak.attacks.exact.entrance import Entrance, entrance
from gradleak.attacks.exact.labelling import paired
from gradleak.attacks.exact.linear import first_layer
from gradleak.attacks.exact.members import Members, members
from gradleak.attacks.exact.patches import Patches
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.rectified import Rectified
from gradleak.attacks.exact.span import span, stacked
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import Known, count
from gradleak.attacks.parts.optimisers import LBFGS
from gradleak.attacks.parts.priors import outlines
from gradleak.attacks.parts.spaces import Waves
from gradleak.errors import Unsuited
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Guess, Know, Observation, following

LATE, WIDE = 6, 8
"""So many of the last layers are looked at, those with so many inputs and outputs."""

USUAL = 60
"""Turns that a search through a defense seldom needs more of: what progress is measured by."""

REMEMBERED = 2**25
"""Numbers a matching remembers: all its steps for small pictures, a hundred for large ones."""


@register("attack", "subspace")
def subspace(steps: int = 400) -> ByKind:
    """Reads text, or the images of a vision transformer or of fully connected layers, off the space that the first
    layer's gradient spans: without any search over embeddings or pixels, in seconds, with a proof where it is clean.
    Images that a defense has blurred are then matched for `steps` steps, from the likeliest smooth picture.

    Text: tokens in the span as they are; if there are none, dropout hid parts of each, and tokens that are in the span
    but for a few entries; if the span is filled up by noise or compression, the likeliest tokens. Then sentences: one
    place after the other for decoders, by proof and subtraction for encoders, by attention's gradient under dropout.
    """
    matching = Descent(steps, Known(), objectives.likelihood, ((1.0, outlines),), rate=1.0, log=True, space=Waves(),
                       optimiser=LBFGS(memory=400, most=REMEMBERED))
    return ByKind(Stages((Pictures(), matching)) if steps else Pictures(), Words())


@dataclass(frozen=True)
class Pictures:
    """The image half: fully connected first layers were given the images themselves, attention was given patches."""

    needs = frozenset({Know.COUNT})
    evaluations = 12

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        try:
            first_layer(seen)
        except Unsuited:
            yield from Patches().guesses(seen, rng, start)
        else:
            yield from Rectified().guesses(seen, rng, start)


@dataclass(frozen=True)
class Words:
    """The text half."""

    needs = frozenset({Know.COUNT})
    evaluations = 100

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        door, n = entrance(seen), count(seen)
        for reading in read(door, n, rng, Course(start.state if start else None)):
            if not reading.sentences:
                raise Unsuited("no sentence could be read: no token of the vocabulary is in the first layer's span, or "
                               "the batch has more tokens than dimensions and no layer tells sentences apart; audit "
                               "smaller batches")
            step = reading.turns + 1
            yield replace(_said(door, reading, n, rng), notes=dict(reading.notes), state=reading.state, step=step,
                          steps=max(USUAL, step + 1) if reading.open else step)


def _said(door: Entrance, reading: Reading, n: int, rng: Rng) -> Guess:
    """As many sentences as were sent, with labels or closed."""
    sentences = [*reading.sentences, *[door.empty] * (n - len(reading.sentences))]
    if door.seen.next_word:  # its last word is never read, only said
        sentences = [_closed(sentence, door.vocabulary.closing) for sentence in sentences]
        batch, rows = door.told(sentences, torch.zeros(n, dtype=torch.long))
        batch = replace(batch, y=following(rows))
    else:
        batch, rows = door.told(sentences, _labels(door, sentences, reading, rng))
    certain = torch.zeros(rows.shape, dtype=torch.bool)
    for row, proven in enumerate(reading.certain):
        certain[row, : len(proven)] = torch.tensor(proven)
    return Guess(batch, rows, certain=certain)


def read(door: Entrance, n: int, rng: Rng, course: Course) -> Iterator[Reading]:
    """By whatever decoder the update calls for; one that searches says what it has after every turn."""
    if door.first[0] in door.factors or (door.span.clean and not door.altered):
        yield _solved(door, n, rng)
    elif n > 1:
        if not door.altered and _clean_late(door):
            raise Unsuited(f"more tokens than dimensions: the first layer's gradient fills all {door.atoms.width} "
                           "directions, so that no token can be proven or ruled out; audit smaller batches")
        yield from crowd.read(door, n, rng, course)
    elif door.drops:
        yield veil.read(door, rng)
    else:
        yield from crowd.single(door, rng, course)


def _solved(door: Entrance, n: int, rng: Rng) -> Reading:
    """Of an update that nothing has blurred."""
    if door.first[0] in door.factors:
        return _adapted(door, n)
    inside = members(door)
    if not inside.tokens:
        return dropped.read(door, rng)
    if n == 1 and not door.atoms.placeless and all(len(here) == 1 for here in inside.tokens):
        return _single(inside)
    if causal.is_causal(door):
        return causal.read(door, inside, n)
    return peeling.read(door, inside, n, rng)


def _adapted(door: Entrance, n: int) -> Reading:
    """Of an update of adapters, whose low rank leaves fewer ways."""
    if not door.span.clean:
        raise Unsuited(door.filled)
    inside = members(door)
    if not inside.tokens:
        raise Unsuited("no token is in the adapters' span: the client drops parts of the words, which cannot be told "
                       "from low-rank factors; match: grab, lamp")
    return causal.read(door, inside, n) if causal.is_causal(door) else adapters.read(door, inside, n)


def _single(inside: Members) -> Reading:
    """One token in every place: as every place has a true one, each is the true one."""
    sentence = tuple(here[0] for here in inside.tokens)
    notes = {"tests": float(inside.tests), "nearest": inside.nearest}
    return Reading([sentence], [[True] * len(sentence)], notes=notes)


def _closed(sentence: Sentence, closing: Sentence) -> Sentence:
    return sentence if sentence[len(sentence) - len(closing) :] == closing else (*sentence, *closing)


def _clean_late(door: Entrance) -> bool:
    """Whether some late layer's gradient still has a sure rank, which noise would have filled up."""
    update = door.seen.update
    groups = [group for group in door.groups[1:]
              if all(layer.name in update and min(update[layer.name].shape) >= WIDE for layer in group)]
    return any(span(stacked(update, group)).clean for group in groups[: -LATE - 1 : -1])


def _labels(door: Entrance, sentences: list[Sentence], reading: Reading, rng: Rng) -> Tensor:
    """Found with the sentences; or else granted or counted, and given to those they fit."""
    if reading.labels is not None and len(reading.labels) == len(sentences):
        return torch.tensor(list(reading.labels))
    return paired(door, sentences, Known().read(door.seen, rng / "labels").labels)
