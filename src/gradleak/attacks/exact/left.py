"""What of a batch's update is left, as sentence after sentence is proven and taken away."""

import torch
from torch import Tensor

from gradleak.attacks.exact.classified import classified
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.members import Members
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import oriented, span, triangle
from gradleak.calculus import precise
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
    """What of the update is not explained yet, layer by layer, each layer in units of its first length.

    Where the batch has more tokens than the deeper layers have dimensions, sentences are told by the layer that only
    classified tokens ask (`asked`), until enough of them are taken away.
    """

    def __init__(self, door: Entrance, count: int) -> None:
        self.door, self.count = door, count
        self.asked = None if door.deep.clean else classified(door, count)
        whole = {layer: oriented(door.seen.update, layer) for group in (door.first, door.middle, door.witness)
                 for layer in group}
        if self.asked:
            whole[self.asked] = oriented(door.seen.update, self.asked)
        self.sizes = {layer: value.norm() for layer, value in whole.items()}
        self.gradients = {layer: value / self.sizes[layer] for layer, value in whole.items()}
        self.top, self.full = float(door.span.values[0]), float(door.deep.values[0])
        self.deep = span(self.stack((self.asked,))) if self.asked else door.deep
        self.tokens = self.deep.rank
        """Tokens of all sentences that are left; where those that are classified tell, only these."""
        self.middle = self.deep if self.asked else span(self.stack(door.middle), self.tokens)

    @property
    def witness(self) -> tuple[Layer, ...]:
        """The layers that tell whole sentences."""
        return (self.asked,) if self.asked else self.door.witness

    def _told(self, sentence: Sentence) -> int:
        """How many of the tokens that are left a sentence has."""
        return 1 if self.asked else len(sentence)

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
        if self.tokens < self._told(sentence):
            return None
        own = [self._own(sentence, label) for label in range(min(self.door.seen.classes, LABELS))]
        for times in range(1, REPEATS + 1):
            falls = [self._fall(one, times, self.tokens - self._told(sentence)) for one in own]
            label = max(range(len(own)), key=lambda label: falls[label])
            if falls[label] >= FALL:
                self._take(own[label], times, self._told(sentence))
                return label
        return None

    def _fall(self, own: dict[Layer, Tensor], times: int, rank: int) -> float:
        """By what factor the first singular value beyond that rank falls."""
        rest = torch.cat([self.gradients[layer] - times * own[layer] for layer in self.witness])
        return float(self.deep.values[rank] / torch.linalg.svdvals(triangle(rest))[rank].clamp_min(1e-300))

    def _take(self, own: dict[Layer, Tensor], times: int, tokens: int) -> None:
        self.gradients = {layer: value - times * own[layer] for layer, value in self.gradients.items()}
        self.tokens -= tokens
        rest = span(self.stack(self.door.witness), top=self.full) if self.asked else None
        if rest is not None and rest.clean:  # fewer tokens than dimensions by now
            self.asked, self.tokens = None, rest.rank
        self.deep = span(self.stack(self.witness), self.tokens)
        self.middle = self.deep if self.asked else span(self.stack(self.door.middle), self.tokens)

    def _own(self, sentence: Sentence, label: int) -> dict[Layer, Tensor]:
        batch, _ = self.door.told([sentence], torch.tensor([label]))
        names = [layer.name for layer in self.gradients]
        update = dict(zip(names, precise(self.door.seen.replay, batch, *names), strict=True))
        return {layer: oriented(update, layer) / (self.count * size) for layer, size in self.sizes.items()}
