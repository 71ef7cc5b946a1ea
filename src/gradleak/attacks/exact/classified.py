"""The last layer of an encoder that is asked by one token a sentence, the one that is classified.

However many tokens a batch has, such a layer's gradient has only as many directions as there are sentences. What
reaches it from that token depends on every word of the sentence: of a true one it lies in the gradient's span, with
one word wrong it does not.
"""

import torch

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.span import oriented, span
from gradleak.calculus import precise
from gradleak.rng import Rng
from gradleak.tap import Layer

ONE = 1e-4
"""How far outside its own gradient's span what the classified token sends may lie."""


def classified(door: Entrance, count: int) -> Layer | None:
    """Found by letting one sentence pass: the last layer whose gradient is made of what opens a sentence, alone."""
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
        gradient = oriented(update, layer)
        within = span(gradient)
        if not (within.clean and within.rank <= count < min(gradient.shape)):
            continue
        (own,) = precise(door.seen.replay, told, layer.name)
        alone = span(oriented({layer.name: own}, layer), 1)
        try:
            (sent,) = door.reach(ids, layer.name)
        except ValueError:  # given one row a sentence, not one a token
            continue
        if (alone.off(sent[0]) < ONE).nonzero().flatten().tolist() == [0]:
            return layer
    return None
