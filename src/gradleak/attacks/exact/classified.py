"""The last layer of an encoder that is asked by one token a sentence, the one that is classified.

However many tokens a batch has, such a layer's gradient has only as many directions as there are sentences. What
reaches it from that token depends on every word of the sentence: of a true one it lies in the gradient's span, with
one word wrong it does not.
"""

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.span import oriented, span
from gradleak.calculus import peek, precise
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.tap import Layer

ONE = 1e-4
"""How far outside its own gradient's span what the classified token sends may lie."""


def classified(door: Entrance, count: int) -> Layer | None:
    """Found by letting one sentence pass: the last layer whose gradient is made of what opens a sentence, alone."""
    seen, update = door.seen, door.seen.update
    if not door.vocabulary.opening or seen.next_word:
        return None
    told, width = probe(seen, 1, Rng(0)), door.atoms.width
    for layer in (layer for group in reversed(door.groups) for layer in group if layer.name in update):
        gradient = oriented(update, layer)
        if gradient.shape[1] != width or not count < min(gradient.shape):
            continue
        within, (sent,) = span(gradient), peek(seen.replay, told, layer.name)
        if not within.clean or within.rank > count or sent.numel() != told.x[0, :, 0].numel() * width:
            continue  # full, or given one row a sentence, not one a token
        (own,) = precise(seen.replay, told, layer.name)
        alone = span(oriented({layer.name: own}, layer), 1)
        if (alone.off(sent.reshape(-1, width)) < ONE).nonzero().flatten().tolist() == [0]:
            return layer
    return None
