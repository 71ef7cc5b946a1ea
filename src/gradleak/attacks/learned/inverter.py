"""A network trained to invert what the client would send."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.learned.answers import Answers
from gradleak.attacks.learned.hashing import hashed
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.network import Adam, forward, perceptron
from gradleak.attacks.learned.rehearsal import Rehearsal
from gradleak.rng import Rng
from gradleak.types import Guess, Know, Observation, Update

HELD = 0.1
"""The share of public examples that is not trained on: it says when to stop."""

MOST_HELD = 256

GAIN = 0.999
"""An epoch that leaves more than this share of the best error so far has gained nothing."""


@dataclass(frozen=True)
class Inverter:
    """How the network is trained. `open` makes what it is to say of an observation.

    A longer update is hashed to `ratio` times its length, or to `features` if given; the rate falls to a tenth after
    three quarters of the epochs; after `patience` epochs without gain on held-out examples training ends, and the
    weights of the best epoch are taken.
    """

    name: str
    answers: Callable[[Observation, Rng], Answers]
    needs: frozenset[Know]
    epochs: int
    size: int
    rate: float
    ratio: float
    features: int | None
    patience: int
    setup: tuple[object, ...]

    def __repr__(self) -> str:
        return repr((self.name, self.epochs, self.size, self.rate, self.ratio, self.features, self.patience,
                     self.setup))

    @property
    def evaluations(self) -> int:
        return self.epochs * 1000

    def open(self, seen: Observation, rng: Rng) -> "Training":
        return Training(self, seen, self.answers(seen, rng))


class Training:
    """One fit: a step is a minibatch of rehearsed batches."""

    def __init__(self, plan: Inverter, seen: Observation, answers: Answers) -> None:
        self.plan, self.seen, self.answers = plan, seen, answers
        self.entries = sum(value.numel() for value in seen.update.values())
        self.width = min(self.entries, plan.features or max(1, round(plan.ratio * self.entries)))
        self.depth = len(answers.sizes)
        self.held = min(MOST_HELD, max(1, round(HELD * answers.epoch)))
        self.every = -(-max(1, answers.epoch - self.held) // plan.size)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """Tried out only where there is something to learn: a fit that was kept needs none."""
        batch, _ = self.answers.drawn(torch.arange(2), Rng(0))
        return Rehearsal(self.seen, batch.x, batch.y, batch.extra)

    @property
    def about(self) -> tuple[object, ...]:
        return self.answers.about

    @property
    def steps(self) -> int:
        return self.plan.epochs * self.every

    def _flat(self, stacked: Update) -> Tensor:
        if self.width == self.entries:
            return torch.cat([value.flatten(1) for value in stacked.values()], 1)
        return hashed(stacked.values(), self.width)

    def _rehearsed(self, numbers: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """Features and targets. Only a chunk of updates is in memory at a time."""
        rows, targets = [], []
        for place, part in enumerate(torch.split(numbers, self.rehearsal.chunk)):
            batch, target = self.answers.drawn(part, rng / place)
            rows.append(self._flat(self.rehearsal(batch.x, batch.y, batch.extra, rng / place / "client")))
            targets.append(target)
        return torch.cat(rows), torch.cat(targets)

    def begin(self, rng: Rng) -> State:
        rows, _ = self._rehearsed(torch.arange(min(32, self.answers.epoch)), rng / "scale")
        weights = {**perceptron([self.width, *self.answers.sizes], rng), **self.answers.more(rng)}
        best = {f"best.{name}": value.clone() for name, value in weights.items()}
        scale = rows.square().mean().sqrt().clamp_min(1e-30)
        return {"step": torch.tensor(0), "scale": scale, "error": torch.tensor(torch.inf), "idle": torch.tensor(0),
                **weights, **Adam(list(weights)).begin(weights), **best}

    def advance(self, state: State, rng: Rng) -> State:
        """Works in place on the large tensors."""
        step = int(state["step"])
        epoch, place = divmod(step, self.every)
        order = self.held + (Rng(0) / "order" / epoch).permutation(max(1, self.answers.epoch - self.held))
        numbers = order[place * self.plan.size : (place + 1) * self.plan.size].clamp_max(self.answers.epoch - 1)
        x, target = self._rehearsed(numbers, rng)
        names = self._names(state)
        rate = self.plan.rate * (0.1 if epoch >= 0.75 * self.plan.epochs else 1.0)
        with torch.enable_grad():
            leaves = {name: state[name].detach().requires_grad_() for name in names}
            loss = self.answers.loss(forward(leaves, x / state["scale"], self.depth), target, leaves)
            slopes = torch.autograd.grad(loss, list(leaves.values()))
        Adam(names).step(state, slopes, step + 1, rate)
        state = {**state, "step": torch.tensor(step + 1)}
        return state if place + 1 < self.every else self._judged(state, names)

    def _names(self, state: State) -> list[str]:
        return [name.removeprefix("best.") for name in state if name.startswith("best.")]

    @torch.no_grad()
    def _judged(self, state: State, names: list[str]) -> State:
        """At the end of an epoch: better on what was held out, or nearer to giving up."""
        total = 0.0
        for place, numbers in enumerate(torch.split(torch.arange(self.held), self.plan.size)):
            x, target = self._rehearsed(numbers, Rng(0) / "held" / place)
            out = forward(state, x / state["scale"], self.depth)
            total += float(self.answers.loss(out, target, state)) * len(numbers) / self.held
        if total < GAIN * float(state["error"]):
            for name in names:
                state[f"best.{name}"].copy_(state[name])
            return {**state, "error": torch.tensor(total), "idle": torch.tensor(0)}
        idle = int(state["idle"]) + 1
        ended = {"step": torch.tensor(self.steps)} if idle >= self.plan.patience else {}
        return {**state, "idle": torch.tensor(idle), **ended}

    def finish(self, state: State) -> State:
        kind = "" if torch.isinf(state["error"]) else "best."
        kept = {name: state[f"{kind}{name}"] for name in self._names(state)}
        return {**kept, "scale": state["scale"], "error": state["error"]}

    @torch.no_grad()
    def read(self, state: Mapping[str, Tensor]) -> Guess:
        sent = self._flat({name: value[None] for name, value in self.seen.update.items()})
        return self.answers.guess(forward(state, sent / state["scale"], self.depth), state)


