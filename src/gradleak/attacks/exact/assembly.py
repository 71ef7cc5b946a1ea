"""From tokens per place to sentences: draft one from tokens that belong together, and improve it place by place until
everything it sends to the deeper layers lies in their spans."""

from collections.abc import Iterator

import torch

from gradleak.attacks.exact.affinity import Attention, affinity, attention
from gradleak.attacks.exact.board import Board, Bonds
from gradleak.attacks.exact.drafting import ALIKE, Drafting, alike
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import oriented
from gradleak.attacks.exact.transport import Shares, shares
from gradleak.rng import Rng

FITS = 2e-4
"""Every token of a true sentence reaches the deeper layers at most this far outside their span."""

ROUNDS = 6
"""New drafts so often, every third time of every length, before the rest is given up."""

KEPT = 280
"""Pairs at most whose affinity is worked out."""


class Assembly:
    """Looks for one sentence after the other; remembers near misses."""

    def __init__(self, door: Entrance, rng: Rng) -> None:
        self.door, self.how, self.rng = door, attention(door), rng.numpy()
        self.missed: dict[Sentence, float] = {}
        self.drafting: Drafting | None = None

    def next(self, left: Left, tokens: list[list[int]]) -> tuple[Sentence, int] | None:
        """A sentence made of these tokens that fits and can be proven, with its label: one of the drafts there are, or
        else a new one, from what belongs together in what is left."""
        if not tokens:
            return None
        if self.drafting is not None:
            self.drafting = self.drafting.narrowed(left, tokens)
            found = self._proven(self.drafting.resumed(), left)
            if found is not None:
                return found
        known = shares(self.door.atoms, left.stack(self.door.first), tokens)
        self.drafting = Drafting(Board(self.door, left, known, bonds(self.door, self.how, known), tokens, self.rng))
        for number in range(ROUNDS):
            found = self._proven(self.drafting.tried(number), left)
            if found is not None:
                return found
        return None

    def _proven(self, tried: Iterator[tuple[Sentence, float]], left: Left) -> tuple[Sentence, int] | None:
        for sentence, off in tried:
            label = left.prove(sentence) if off < FITS and self.missed.get(sentence) != off else None
            if label is not None:
                return sentence, label
            self.missed[sentence] = off
        return None

    def leftovers(self, found: list[Sentence], wanted: int) -> list[Sentence]:
        """The nearest misses that are unlike each other and unlike what was found."""
        chosen: list[Sentence] = []
        for sentence in sorted(self.missed, key=lambda one: self.missed[one]):
            if len(chosen) < wanted and all(alike(sentence, other) < ALIKE for other in (*found, *chosen)):
                chosen.append(sentence)
        return chosen


def bonds(door: Entrance, how: Attention, known: Shares) -> Bonds:
    """Of the pairs that carry weight."""
    size = known.deltas.norm(dim=1)
    heavy = (known.of_token > 0.10) | (known.of_place > 0.06)
    kept = [i for i in size.argsort(descending=True).tolist() if bool(heavy[i])][:KEPT]
    pairs = [known.pairs[i] for i in kept]
    deltas = known.deltas[kept] / size[kept][:, None].clamp_min(1e-300)
    x = door.atoms.vectors(torch.tensor([t for t, _ in pairs]), torch.tensor([p for _, p in pairs]))
    parts = deltas.split([len(oriented(door.seen.update, layer)) for layer in door.first], 1)
    query, key = (parts[door.first.index(layer)] for layer in (how.query, how.key))
    return Bonds(pairs, affinity(door, x, query, key, how).numpy())
