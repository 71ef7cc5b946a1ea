"""Clients that train low-rank adapters only: what the gradients of the two factors tell.

A layer W x + s B A x sends dA = s B^T D^T X and dB = s D^T X A^T. The rows of dA are mixes of the inputs X, as any
layer's are, but of rank r at most; and as long as B is zero, as it is when training begins, so is dA. The rows of dB
are mixes of A x: where dB c = 0, c^T A x = 0 for every input x, so that A^T c is a direction that no input has. T
tokens leave r - T of these for each factor. In them a token of the vocabulary is either inside or ruled out, as in the
whole span; that there are few is what limits how many tokens can be told.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.members import Members
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.errors import Unsuited

SURE = 4
"""Directions to test a token in from which chance does not pass: each lets one of thousands through."""

FITS = 2e-4
"""How far outside the deeper layers' span a token of a true sentence may lie."""

MOST = 4096
"""Sentences tried at most."""

BLOCK = 256


def read(door: Entrance, inside: Members, n: int) -> Reading:
    """The one sentence that the tokens inside make; or those whose tokens fit the deeper adapters too."""
    notes = {"tests": float(inside.tests), "directions": float(door.span.free)}
    if n == 1 and len(inside.tokens) == door.span.seen and all(len(here) == 1 for here in inside.tokens):
        # As every place has a true one, each is the true one.
        sentence, proven = tuple(here[0] for here in inside.tokens), door.span.free >= SURE
        return Reading([sentence], [[proven] * len(sentence)], notes=notes)
    if not door.deep.clean or door.deep.seen < door.span.seen:
        raise Unsuited(door.filled)
    found = sorted(_fitting(door, inside, door.deep.seen), key=lambda one: one[1])[:n]
    sentences = [sentence for sentence, _ in found]
    whole = len(sentences) == n and sum(map(len, sentences)) == door.deep.seen
    proven = whole and min(door.span.free, door.deep.free) >= SURE
    return Reading(sentences, [[proven] * len(sentence) for sentence in sentences], notes=notes)


def _fitting(door: Entrance, inside: Members, tokens: int) -> Iterator[tuple[Sentence, float]]:
    """Every sentence of members, no longer than what is left to explain, whose tokens all fit."""
    opening, closing = door.vocabulary.opening, door.vocabulary.closing
    for length in range(len(opening) + len(closing) + 1, min(len(inside.tokens), tokens) + 1):
        start, stop = len(opening), length - len(closing)
        if any(end not in here for end, here in zip(closing, inside.tokens[stop:length], strict=True)):
            continue
        choices = [[token for token in here if bool(door.vocabulary.usable[token])]
                   for here in inside.tokens[start:stop]]
        many = prod(map(len, choices))
        if many > MOST:
            raise Unsuited(f"{many} sentences can be made of the tokens found, too many to try; audit smaller batches")
        if many:
            rows = torch.tensor([(*opening, *words, *closing) for words in product(*choices)])
            off = torch.cat([_off(door, part) for part in torch.split(rows, BLOCK)])
            yield from ((tuple(row), float(far)) for row, far in zip(rows.tolist(), off, strict=True) if far < FITS)


def _off(door: Entrance, rows: Tensor) -> Tensor:
    (reached,) = door.reach(rows, door.witness[0].name)
    return door.deep.off(reached).amax(1)
