"""What is being trained: a model on private data, and the audited batches drawn from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.types import Know, Public, Secret, Vocabulary
from gradleak.world.clients import Participation
from gradleak.world.dropout import Dropped
from gradleak.world.learner import Learner, cross_entropy

Take = Callable[[Sequence[int]], Secret]
"""Examples by their numbers, in that order."""


@dataclass(frozen=True)
class World:
    """A task brought to life: the shared model and the pool that batches are drawn from."""

    learner: Learner
    pool: Tensor
    accuracy: float | None
    take: Take
    blind: Callable[[Secret], Tensor]
    """Readings that need no update: what a guess must clearly beat to count as a leak."""
    vocabulary: Vocabulary | None = None
    public: Public | None = None
    """What the task says anyone could have, the attacker too."""

    def draw(self, count: int, trial: int, participation: Participation, rng: Rng) -> Secret:
        """The examples of one trial, in the order the client walks through them; the same for every defense."""
        if count > len(self.pool):
            raise UsageError(f"batch = {count} is larger than the data ({len(self.pool)} examples); "
                             "use a smaller batch or more data")
        order = self.pool[(rng / "draw" / count).permutation(len(self.pool))]
        first = (trial * count) % len(order)
        chosen = torch.cat([order, order])[first : first + count]
        return self.secret(chosen[participation.order(count, rng / "order" / count / trial)].tolist())

    def secret(self, ids: Sequence[int]) -> Secret:
        """Examples by their numbers, in that order."""
        return self.take(ids)


class Task(Protocol):
    """A description of what is trained."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """What an audit of it measures unless told otherwise."""
        ...

    @property
    def grants(self) -> frozenset[Know]:
        """What can be told of its batches."""
        ...

    def open(self, rng: Rng) -> World: ...


def train(
    module: nn.Module, take: Take, rows: Tensor, steps: int, optimiser: torch.optim.Optimizer, size: int, rng: Rng,
) -> None:
    """Steps on random batches of `size` among `rows`; dropout is drawn from the stream."""
    if not len(rows):
        raise UsageError(f"train = {steps}: half of one example is none to train on; use train=0 or more data")
    module.train()
    for step in range(steps):
        here = rng / step
        chosen = rows[torch.randint(len(rows), (min(size, len(rows)),), generator=here.torch())]
        batch = take(chosen.tolist()).batch
        optimiser.zero_grad()
        with Dropped(here / "drop"):
            cross_entropy(module(batch.x, **batch.extra), batch.y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@torch.no_grad()
def accuracy(module: nn.Module, take: Take, rows: Tensor, size: int) -> float:
    """Share of labels, or of next tokens, that the model gives the highest score."""
    module.eval()
    right: list[Tensor] = []
    for part in torch.split(rows, size):
        batch = take(part.tolist()).batch
        hits = module(batch.x, **batch.extra).argmax(-1) == batch.y
        right.append(hits[batch.y >= 0].float())
    return float(torch.cat(right).mean())


@torch.no_grad()
def hard_half(learner: Learner, take: Take, pool: Tensor, size: int) -> Tensor:
    """The half of the pool with the highest loss, hardest first."""
    losses: list[Tensor] = []
    for part in torch.split(pool, size):
        batch = take(part.tolist()).batch
        each = F.cross_entropy(learner.logits(learner.params, batch, "eval").movedim(-1, 1), batch.y, reduction="none")
        losses.append(each.flatten(1).sum(1) / (batch.y >= 0).flatten(1).sum(1) if each.ndim > 1 else each)
    return pool[torch.cat(losses).argsort(descending=True)][: max(1, len(pool) // 2)]
