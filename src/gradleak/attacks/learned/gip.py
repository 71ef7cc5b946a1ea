"""Attacks that need a generator fitted before they begin."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gradleak.attacks.combine import PARTS, Stages
from gradleak.attacks.learned.generator import Fit
from gradleak.attacks.parts.labels import count
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation


@dataclass(frozen=True)
class Prepared:
    """Fit the generator, or take the one that is kept; then attack."""

    fit: Fit
    attack: Stages

    @property
    def needs(self) -> frozenset[Know]:
        return self.attack.needs | self.fit.needs

    @property
    def uses(self) -> tuple[str, ...]:
        return (f"generator {self.fit.path}",) if self.fit.path else ()

    @property
    def evaluations(self) -> int:
        return self.attack.evaluations

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        if seen.vocabulary is not None:
            raise Unsuited("this attack reads images, and the data are text; use a text attack, such as lamp")
        steps = PARTS * (1 + len(self.attack.attacks))
        grey = torch.full((count(seen), *seen.shape), 0.5).to(next(iter(seen.params.values())))
        for share in self.fit.taught(seen):
            blank = Batch(grey, torch.zeros(len(grey), dtype=torch.long, device=grey.device))
            yield Guess(blank, grey, int(PARTS * share), steps)
        begun = start if start is not None and "stage" in start.state else None
        for guess in self.attack.guesses(seen, rng, begun):
            yield replace(guess, step=PARTS + guess.step, steps=steps)
