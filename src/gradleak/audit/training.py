"""Training the audited model under a defense: rounds of a few clients, stopped early, seeded, resumable."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Defense, Params, Remembers, Update
from gradleak.world.clients import Participation
from gradleak.world.learner import Mode
from gradleak.world.task import World

State = dict[str, Tensor]

LOOK = 64
"""Examples judged at once."""


@register("training", "federated")
@dataclass(frozen=True)
class Federated:
    """Rounds in which each of `clients` sends one update of `batch` of its own examples; the server averages them.

    What a client does is the audit's client: FedSGD, or FedAvg with local steps. Every `every` rounds a tenth of the
    data is looked at; after `patience` looks without a gain training ends, and the best weights are measured on the
    share `test`, which nothing else has seen. Without a rate: 0.001 for images, 5e-5 for words, by Adam.
    """

    rounds: int = 300
    clients: int = 4
    batch: int = 16
    rate: float | None = None
    optimiser: Literal["adam", "sgd"] = "adam"
    every: int = 20
    patience: int = 5
    seeds: int = 1
    test: float = 0.2

    def __post_init__(self) -> None:
        counts = (self.rounds, self.clients, self.batch, self.every, self.patience, self.seeds)
        if min(counts) < 1 or (self.rate is not None and self.rate <= 0) or not 0 < self.test < 0.9:
            raise UsageError(f"{self!r}: counts from 1, a rate above 0, and a share for testing below 0.9")


class Split(NamedTuple):
    """Example numbers: a shard a client, those looked at while training, those measured at the end."""

    shards: tuple[Tensor, ...]
    looked: Tensor
    tested: Tensor


def split(plan: Federated, pool: Tensor, rng: Rng) -> Split:
    order = pool[(rng / "parts").permutation(len(pool))]
    tested, looked = round(plan.test * len(order)), max(1, len(order) // 10)
    rest = order[tested + looked :]
    if tested < 1 or len(rest) < plan.clients:
        raise UsageError(f"{len(pool)} examples are too few to train {plan.clients} clients and to test on "
                         f"{plan.test:.0%}; use more data or fewer clients")
    return Split(tuple(rest.tensor_split(plan.clients)), order[tested : tested + looked], order[:tested])


@dataclass(frozen=True)
class Course:
    """One training: everything that does not change while it goes on."""

    plan: Federated
    world: World
    part: Participation
    defense: Defense
    parts: Split
    rng: Rng

    @property
    def client(self) -> Client:
        """As it sends; one that carries over what it does not send decides that round by round."""
        plain = self.part.of(self.world.learner)
        return plain if isinstance(self.defense, Remembers) else self.defense.protect(plain)

    @property
    def mode(self) -> Mode:
        """BatchNorm has no statistics but the batch's here, so that they serve in judging too."""
        return "train" if self.world.learner.norms else "eval"

    def begin(self) -> State:
        params = {f"now.{k}": v.clone() for k, v in self.world.learner.params.items()}
        best = {f"best.{k}": v.clone() for k, v in self.world.learner.params.items()}
        return {**params, **best, "round": torch.tensor(0), "since": torch.tensor(0), "loss": torch.tensor(torch.inf)}

    def go_on(self, state: State) -> Iterator[State]:
        """From wherever it stopped, a state a look; the last one is final."""
        client = self.client
        while int(state["round"]) < self.plan.rounds and int(state["since"]) < self.plan.patience:
            for _ in range(min(self.plan.every, self.plan.rounds - int(state["round"]))):
                state = self._round(state, client)
            state = self._look(state)
            yield state

    def _round(self, state: State, client: Client) -> State:
        number, params = int(state["round"]), part_of(state, "now")
        sent: list[Update] = []
        left: State = {}
        for who, shard in enumerate(self.parts.shards):
            update = self._sent(client, params, shard, self.rng / number / who)
            if isinstance(self.defense, Remembers):
                update, memory = self.defense.carry(update, part_of(state, f"left{who}"))
                left |= {f"left{who}.{name}": value for name, value in memory.items()}
            sent.append(update)
        mean = {name: torch.stack([update[name] for update in sent]).mean(0) for name in params}
        return {**state, **left, **self._step(state, params, mean, number + 1), "round": torch.tensor(number + 1)}

    def _sent(self, client: Client, params: Params, shard: Tensor, rng: Rng) -> Update:
        count = min(self.plan.batch * int(getattr(self.defense, "clients", 1)), len(shard))
        batch = self.world.take(shard[(rng / "draw").permutation(len(shard))[:count]].tolist()).batch
        masks = self.part.dropped(self.world.learner, batch, rng / "client")
        batch = replace(batch, extra={**batch.extra, **masks})
        with torch.no_grad():
            return self.defense.clean(client(params, batch, rng / "client"))

    def _step(self, state: State, params: Params, mean: Update, time: int) -> State:
        """The server's: plain, or by Adam, whose steps do not depend on how long a defended update is."""
        rate = self.plan.rate or (1e-3 if self.world.vocabulary is None else 5e-5)
        moved: State = {}
        for name, value in params.items():
            if self.plan.optimiser == "sgd":
                moved[f"now.{name}"] = value - rate * mean[name]
                continue
            first = 0.9 * state.get(f"first.{name}", torch.zeros_like(value)) + 0.1 * mean[name]
            second = 0.999 * state.get(f"second.{name}", torch.zeros_like(value)) + 0.001 * mean[name].square()
            size = (second / (1 - 0.999**time)).sqrt() + 1e-8
            moved |= {f"first.{name}": first, f"second.{name}": second,
                      f"now.{name}": value - rate * first / (1 - 0.9**time) / size}
        return moved

    def _look(self, state: State) -> State:
        params = part_of(state, "now")
        loss = torch.cat([F.cross_entropy(logits.movedim(-1, 1), batch.y, reduction="none").flatten()
                          for batch, logits in self._judged(params, self.parts.looked)]).mean()
        if not bool(loss < state["loss"]):
            return {**state, "since": state["since"] + 1}
        best = {f"best.{name}": value for name, value in params.items()}
        return {**state, **best, "loss": loss, "since": torch.tensor(0)}

    @torch.no_grad()
    def _judged(self, params: Params, rows: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        alone = self.world.vocabulary is not None and self.world.vocabulary.pad is None
        for some in torch.split(rows, 1 if alone else LOOK):
            batch = self.world.take(some.tolist()).batch
            yield batch, self.world.learner.logits(params, batch, self.mode)

    def confusion(self, state: Mapping[str, Tensor]) -> Tensor:
        """How often each class (row) was taken for each (column), by the best weights, on what was kept for testing."""
        classes = self.world.learner.classes
        counts = torch.zeros(classes * classes, dtype=torch.long)
        for batch, logits in self._judged(part_of(state, "best"), self.parts.tested):
            told = batch.y >= 0
            places = batch.y[told] * classes + logits.argmax(-1)[told]
            counts += torch.bincount(places.flatten(), minlength=classes * classes)
        return counts.reshape(classes, classes)


def part_of(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}


def train(course: Course, state: State, keep: Callable[[State], None]) -> State:
    """To its end; every look is kept, so that a killed training goes on from the last."""
    last = state
    for last in course.go_on(state):
        keep(last)
    return last
