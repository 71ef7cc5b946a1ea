"""A decoder's sentences, token by token: what reaches its deeper layers in a place depends on what came before only."""

import torch

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.members import Members
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.span import Span
from gradleak.types import Vocabulary

LOOSE = 1e-3
"""A true prefix is this near to the deeper layers' span at most: it has a layer's rounding behind it."""

MOST = 4096
"""Prefixes to go on with at most; more would mean that the span tells nothing."""


def is_causal(door: Entrance) -> bool:
    """Whether another last token leaves what reaches deeper layers before it as it was."""
    usable = door.vocabulary.usable.nonzero().flatten()[:3]
    rows = torch.stack([usable[[0, 1]], usable[[0, 2]]])
    one, other = door.reach(rows, door.witness[0].name)[0][:, 0]
    return bool((one - other).norm() < 1e-6 * one.norm())


def read(door: Entrance, inside: Members, count: int) -> Reading:
    """Every prefix that fits is made longer by every token that may stand in the next place; those that nothing can
    make longer are sentences."""
    deep = door.deep
    if not deep.clean:
        return Reading([], [])
    places = [inside.tokens[0]] * door.places if door.atoms.placeless else inside.tokens
    going: list[Sentence] = [()]
    ended: list[Sentence] = []
    for place, here in enumerate((*places, [])):
        longer = _fitting(door, deep, [(*prefix, token) for prefix in going for token in here
                                       if _may_follow(door.vocabulary, prefix, token, place)])
        went_on = {prefix[:-1] for prefix in longer}
        ended += [prefix for prefix in going if prefix not in went_on]
        going = longer[:MOST]
        if not going:
            break
    sentences = sorted((sentence for sentence in ended if sentence), key=len, reverse=True)[:count]
    beginnings = {sentence[: end + 1] for sentence in sentences for end in range(len(sentence))}
    proven = len(sentences) == count and len(beginnings) == deep.rank  # nothing in the span is left unexplained
    notes = {"tests": float(inside.tests)}
    return Reading(sentences, [[proven] * len(sentence) for sentence in sentences], notes=notes)


def _may_follow(words: Vocabulary, prefix: Sentence, token: int, place: int) -> bool:
    """What opens a sentence stands at its beginning and nowhere else, and nothing follows what closes it."""
    if place < len(words.opening):
        return token == words.opening[place]
    closed = bool(words.closing) and prefix[-len(words.closing) :] == words.closing
    return not closed and (bool(words.usable[token]) or token in words.closing)


def _fitting(door: Entrance, deep: Span, prefixes: list[Sentence]) -> list[Sentence]:
    """Those whose last token reaches deeper layers inside their span, as something new: where places are told by
    turning queries and keys only, a first token said again looks as it did."""
    if not prefixes:
        return []
    fits: list[bool] = []
    for part in torch.split(torch.tensor(prefixes), 256):
        (x,) = door.reach(part, door.witness[0].name)
        fresh = (x[:, -1:] - x[:, :-1]).norm(dim=-1).amin(1) > LOOSE * x[:, -1].norm(dim=-1) if x.shape[1] > 1 else True
        fits += (fresh & (deep.off(x[:, -1]) < LOOSE)).tolist()
    return [prefix for prefix, fit in zip(prefixes, fits, strict=True) if fit]
