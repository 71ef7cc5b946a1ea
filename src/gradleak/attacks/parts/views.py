"""Which part of an update is matched at a step. A view takes the same from the replayed update and the observed one."""

from dataclasses import dataclass
from typing import Protocol

import torch

from gradleak.errors import UsageError
from gradleak.factored import Reference, Stacked, dense
from gradleak.rng import Rng


class View(Protocol):
    """Something to match against that may change as the search goes on, always by the step alone."""

    def stage(self, step: int, steps: int) -> int:
        """A number that changes whenever what is matched does, other than by chance."""
        ...

    def __call__(
        self, stacked: Stacked, reference: Reference, step: int, steps: int, rng: Rng,
    ) -> tuple[Stacked, Reference]: ...


@dataclass(frozen=True)
class Deepening:
    """The deepest layers first, then shallower and shallower ones, each step without a random share of the entries.

    Depth is counted in parameter tensors, as a share of them: matching begins with those beyond `first` and, `moves`
    times over the part `until` of the run, takes more, down to `last`; `deepest` leaves out those beyond it.
    """

    first: float = 0.9
    last: float = 0.25
    until: float = 0.25
    moves: int = 8
    dropout: float = 0.3
    deepest: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first < self.deepest <= 1 or not 0 <= self.dropout < 1 or self.moves < 1:
            raise UsageError(f"layers from {self.last} to {self.first} up to {self.deepest}, dropout {self.dropout}: "
                             "shares of the depth rise from shallowest to deepest within 0 and 1, dropout is below 1")

    def stage(self, step: int, steps: int) -> int:
        done = min(1.0, step / max(1e-9, self.until * steps))
        return int(done * self.moves) if self.first > self.last else 0

    def names(self, every: list[str], step: int, steps: int) -> list[str]:
        """The parameters that are matched, at least two."""
        depth = self.first + (self.last - self.first) * self.stage(step, steps) / self.moves
        end = max(2, round(self.deepest * len(every)))
        return every[min(round(depth * len(every)), end - 2):end]

    def __call__(
        self, stacked: Stacked, reference: Reference, step: int, steps: int, rng: Rng,
    ) -> tuple[Stacked, Reference]:
        chosen = self.names(list(reference), step, steps)
        if not self.dropout:
            return {name: stacked[name] for name in chosen}, Reference({name: reference[name] for name in chosen})
        generator = (rng / step).torch()
        masks = {name: (torch.rand(reference[name].shape, generator=generator) >= self.dropout).to(reference[name])
                 for name in chosen}
        whole = dense({name: stacked[name] for name in chosen})
        return ({name: whole[name] * masks[name] for name in chosen},
                Reference({name: reference[name] * masks[name] for name in chosen}))
