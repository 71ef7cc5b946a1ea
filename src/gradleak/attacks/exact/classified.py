"""The last layer of an encoder that is asked by one token a sentence, the one that is classified.

However many tokens a batch has, such a layer's gradient has only as many directions as there are sentences. What
reaches it from that token depends on every word of the sentence: of a true one it lies in the gradient's span, with
one word wrong it does not.
"""

from typing import NamedTuple

import torch

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.span import Span, oriented, span
from gradleak.calculus import precise
from gradleak.rng import Rng
from gradleak.tap import Layer

ONE = 1e-4
"""How far outside its own gradient's span what the classified token sends may lie."""


class Classified(NamedTuple):
    """The layer, the place of the token that asks in it, and the span of what all sentences sent there."""

    layer: Layer
    place: int
    span: Span


def classified(door: Entrance, count: int) -> Classified | None:
    """Found by letting one sentence pass: the last layer with a place whose token alone its gradient is made of."""
    update, opening = door.seen.update, door.vocabulary.opening
    if not opening or door.seen.next_word:
        return None
    ids = torch.tensor([[*opening, *(Rng(0) / "words").permutation(int(door.vocabulary.usable.sum()))[:6].tolist()]])
    ids[0, len(opening) :] = door.vocabulary.usable.nonzero().flatten()[ids[0, len(opening) :]]
    told, _ = door.told([tuple(ids[0].tolist())], torch.zeros(1, dtype=torch.long))
    width = door.atoms.width
    for layer in (layer for group in reversed(door.groups) for layer in group):
        if layer.name not in update or oriented(update, layer).shape[1] != width:
            continue
        within = span(oriented(update, layer))
        if not (within.clean and within.rank <= count < min(oriented(update, layer).shape)):
            continue
        (own,) = precise(door.seen.replay, told, layer.name)
        alone = span(oriented({layer.name: own}, layer), 1)
        try:
            (sent,) = door.reach(ids, layer.name)
        except ValueError:  # given one row a sentence, not one a token
            continue
        places = (alone.off(sent[0]) < ONE).nonzero().flatten().tolist()
        if places == [0]:
            return Classified(layer, 0, within)
    return None
