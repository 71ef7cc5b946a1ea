"""Which tokens, in which places, a clean update was made from: exactly those whose vectors lie in its span."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.parts.tokens import allowed

INSIDE = 3e-5
"""The share of a vector's length outside the span up to which it is inside: true ones have 1e-7 to 1e-6, by rounding;
others a tenth and more, until tokens come near the number of dimensions."""


@dataclass(frozen=True)
class Members:
    """Per place the tokens inside. `tests` vectors were tested, and the nearest one that is not inside was `nearest`
    away: how far a false member would have to be from its kind."""

    tokens: list[list[int]]
    tests: int
    nearest: float

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(token, place), by place."""
        return [(token, place) for place, tokens in enumerate(self.tokens) for token in tokens]


def members(door: Entrance) -> Members:
    """Test the whole vocabulary, place after place, until one has nobody inside."""
    within, atoms, can = door.span, door.atoms, _allowed(door)
    thin = within.rank <= atoms.width // 2
    along = atoms.along(within.basis if thin else within.rest)
    found: list[list[int]] = []
    tests, nearest = 0, 1.0
    for place in range(1 if atoms.placeless else door.places):
        share = along(place).square().sum(1) / atoms.squares(place)
        outside = (1 - share if thin else share).masked_fill(~can, torch.inf)
        # Rough, in float32: the few that may be inside are tested again in float64.
        close = outside.topk(min(len(outside), max(64, int((outside < 1e-3).sum()))), largest=False).indices
        off = within.off(atoms.vectors(close, torch.full_like(close, place)))
        inside = off < INSIDE
        tests += int(can.sum())
        nearest = min(nearest, float(off[~inside].min()) if bool((~inside).any()) else 0.0)
        if not bool(inside.any()):
            break
        found.append(close[inside][off[inside].argsort()].tolist())
    return Members(found, tests, nearest)


def _allowed(door: Entrance) -> Tensor:
    """Words, and what frames them; where the word embeddings are trained, only those that have a gradient."""
    words = door.vocabulary
    can = allowed(door.seen, words).clone()
    for token in (*words.opening, *words.closing):
        can[token] = True
    return can
