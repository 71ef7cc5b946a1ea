"""A batch without dropout, sentence by sentence: find one, prove it, subtract its gradient, go on with what is left."""

import torch
from torch import Tensor

from gradleak.attacks.exact.assembly import Assembly
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.members import Members
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.span import span, triangle
from gradleak.calculus import precise
from gradleak.rng import Rng
from gradleak.tap import Layer

STILL = 3e-4
"""After sentences were subtracted, how far outside the span words may lie: rounding has added up."""

FALL = 30.0
"""By what factor the next singular value must fall when a sentence's own gradient is taken away."""

LABELS = 32
"""Labels tried at most."""

REPEATS = 3
"""How often a sentence may be in the batch."""


class Left:
    """What of the update is not explained yet, layer by layer, each layer in units of its first length."""

    def __init__(self, door: Entrance, count: int) -> None:
        self.door, self.count = door, count
        layers = {layer for group in (door.first, door.middle, door.witness) for layer in group}
        self.sizes = {layer: door.seen.update[layer.name].double().norm() for layer in layers}
        self.gradients = {layer: self._unit(layer, door.seen.update[layer.name]) for layer in layers}
        self.top = float(torch.linalg.matrix_norm(self.stack(door.first), 2))
        self.deep = span(self.stack(door.witness))
        self.tokens = self.deep.rank
        """Tokens of all sentences that are left."""
        self.middle = span(self.stack(door.middle), self.tokens)

    def _unit(self, layer: Layer, gradient: Tensor) -> Tensor:
        wide = gradient.double()
        return torch.div(wide.mT if layer.flipped else wide, self.sizes[layer])

    def stack(self, group: tuple[Layer, ...]) -> Tensor:
        return torch.cat([self.gradients[layer] for layer in group])

    def members(self, inside: Members) -> list[list[int]]:
        """Those of the members whose vectors are still in the first layers' span, up to the first empty place."""
        within, atoms = span(self.stack(self.door.first), top=self.top), self.door.atoms
        found: list[list[int]] = []
        for place, tokens in enumerate(inside.tokens):
            here = torch.tensor(tokens)
            kept = here[within.off(atoms.vectors(here, torch.full_like(here, place))) < STILL].tolist()
            if not kept:
                break
            found.append(kept)
        return found

    def prove(self, sentence: Sentence) -> int | None:
        """The label under which taking the sentence's gradient away lowers the rank by exactly its length; then it is
        taken away. None if there is no such label: the sentence is not in the batch."""
        if self.tokens < len(sentence):
            return None
        own = [self._own(sentence, label) for label in range(min(self.door.seen.classes, LABELS))]
        for times in range(1, REPEATS + 1):
            falls = [self._fall(one, times, self.tokens - len(sentence)) for one in own]
            label = max(range(len(own)), key=lambda label: falls[label])
            if falls[label] >= FALL:
                self._take(own[label], times, len(sentence))
                return label
        return None

    def _fall(self, own: dict[Layer, Tensor], times: int, rank: int) -> float:
        """By what factor the first singular value beyond that rank falls."""
        rest = torch.cat([self.gradients[layer] - times * own[layer] for layer in self.door.witness])
        return float(self.deep.values[rank] / torch.linalg.svdvals(triangle(rest))[rank].clamp_min(1e-300))

    def _take(self, own: dict[Layer, Tensor], times: int, tokens: int) -> None:
        self.gradients = {layer: value - times * own[layer] for layer, value in self.gradients.items()}
        self.tokens -= tokens
        self.deep = span(self.stack(self.door.witness), self.tokens)
        self.middle = span(self.stack(self.door.middle), self.tokens)

    def _own(self, sentence: Sentence, label: int) -> dict[Layer, Tensor]:
        batch, _ = self.door.told([sentence], torch.tensor([label]))
        found = precise(self.door.seen.replay, batch, *[layer.name for layer in self.gradients])
        return {layer: self._unit(layer, value) / self.count
                for layer, value in zip(self.gradients, found, strict=True)}


def read(door: Entrance, inside: Members, count: int, rng: Rng) -> Reading:
    """Every sentence that could be proven, then the best guesses at the others."""
    left = Left(door, count)
    if not left.deep.clean:
        return Reading([], [], notes={"tokens": float(left.tokens)})
    assembly = Assembly(door, rng)
    found: list[Sentence] = []
    labels: list[int] = []
    while len(found) < count and left.tokens:
        proven = assembly.next(left, left.members(inside))
        if proven is None:
            break
        found.append(proven[0])
        labels.append(proven[1])
    sentences = [*found, *assembly.leftovers(found, count - len(found))]
    certain = [[number < len(found)] * len(sentence) for number, sentence in enumerate(sentences)]
    notes = {"proven_sentences": float(len(found)), "tests": float(inside.tests)}
    return Reading(sentences, certain, labels if len(labels) == count else None, notes)
