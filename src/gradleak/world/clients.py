"""What a participant computes from the weights it was sent. Each is a description; `of(learner)` makes the client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from gradleak.calculus import each_alone, going_straight, gradient
from gradleak.errors import UsageError
from gradleak.registry import kind_of, register
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Params, Site, Update
from gradleak.world.learner import Learner, Mode, without_masks


class Participation(Protocol):
    """A way to take part in training."""

    def of(self, learner: Learner) -> Client: ...

    def random(self, learner: Learner, count: int) -> bool:
        """Whether the update depends on draws the server cannot know."""
        ...

    def dropped(self, learner: Learner, batch: Batch, rng: Rng) -> Mapping[str, Tensor]:
        """What a client with this stream drops, as extras of its batch; none if it drops nothing or at every step
        anew."""
        ...

    def sites(self, learner: Learner, batch: Batch) -> tuple[Site, ...]:
        """Where it does."""
        ...

    def order(self, count: int, rng: Rng) -> Tensor:
        """The order in which the client first walks through its examples."""
        ...

    @property
    def protocol(self) -> Mapping[str, float]:
        """What the server set itself."""
        ...


kind_of(Participation, "client")


@dataclass(frozen=True)
class _Once:
    """A client that takes one step, with all examples in their order."""

    mode: Mode = "train"

    def random(self, learner: Learner, count: int) -> bool:
        return learner.drops and self.mode == "train"

    def dropped(self, learner: Learner, batch: Batch, rng: Rng) -> Mapping[str, Tensor]:
        return learner.masks(batch, self.mode, rng) if self.random(learner, len(batch.x)) else {}

    def sites(self, learner: Learner, batch: Batch) -> tuple[Site, ...]:
        return learner.sites(batch, self.mode) if self.random(learner, len(batch.x)) else ()

    def order(self, count: int, rng: Rng) -> Tensor:
        return torch.arange(count)

    @property
    def protocol(self) -> Mapping[str, float]:
        return {"steps": 1}


@register("client", "one_step")
@dataclass(frozen=True)
class OneStep(_Once):
    """FedSGD: the gradient of the batch's mean loss."""

    def of(self, learner: Learner) -> Client:
        def client(params: Params, batch: Batch, rng: Rng | None) -> Update:
            return gradient(lambda p: learner.loss(p, batch, self.mode, rng), params)

        return client


@register("client", "per_sample")
@dataclass(frozen=True)
class PerSample(_Once):
    """Each example's gradient by itself (BatchNorm sees one example), then their mean: how DP-SGD clients compute."""

    def of(self, learner: Learner) -> Client:
        def client(params: Params, batch: Batch, rng: Rng | None) -> Update:
            masks = {} if rng is None else self.dropped(learner, batch, rng)
            each = each_alone(lambda one: gradient(lambda p: learner.loss(p, one, self.mode), params),
                              replace(batch, extra={**masks, **batch.extra}))
            return {name: value.mean(0) for name, value in each.items()}

        return client


def _rows(batch: Batch, rows: Tensor | slice) -> Batch:
    """Some of the examples. Masks do not go with them: each step drops anew."""
    return Batch(batch.x[rows], batch.y[rows], {k: v[rows] for k, v in without_masks(batch.extra).items()})


@register("client", "local_steps")
@dataclass(frozen=True)
class LocalSteps:
    """FedAvg: `steps` of SGD over minibatches of `batch` examples; the update is (start - end) / rate.

    The order is drawn by the client, anew each epoch. The attacker is told neither it nor the labels of a step: its
    replay walks its own candidates in their order, the same every epoch.
    """

    steps: int = 4
    rate: float = 0.01
    batch: int | None = None
    mode: Mode = "train"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rate <= 0 or (self.batch is not None and self.batch < 1):
            raise UsageError(f"{self!r}: steps and batch must be at least 1 and rate above 0")

    def _epoch(self, count: int) -> list[slice]:
        """The minibatches of one walk through all examples, the last one perhaps shorter."""
        chunk = min(self.batch or -(-count // self.steps), count)
        return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]

    def of(self, learner: Learner) -> Client:
        def client(params: Params, batch: Batch, rng: Rng | None) -> Update:
            if going_straight():
                return gradient(lambda p: self.steps * learner.loss(p, batch, self.mode, rng), params)
            count, now = len(batch.x), dict(params)
            epoch = self._epoch(count)
            for step in range(self.steps):
                walked = batch
                if rng is not None and step >= len(epoch):
                    walked = _rows(batch, (rng / "epoch" / (step // len(epoch))).permutation(count))
                piece, masks = _rows(walked, epoch[step % len(epoch)]), rng / step if rng else None
                grads = gradient(lambda p, b=piece, r=masks: learner.loss(p, b, self.mode, r), now)  # type: ignore[misc]
                now = {name: value - self.rate * grads[name] for name, value in now.items()}
            return {name: (params[name] - now[name]) / self.rate for name in now}

        return client

    def random(self, learner: Learner, count: int) -> bool:
        reshuffles = self.steps > len(self._epoch(count)) > 1
        return reshuffles or (learner.drops and self.mode == "train")

    def dropped(self, learner: Learner, batch: Batch, rng: Rng) -> Mapping[str, Tensor]:
        return {}

    def sites(self, learner: Learner, batch: Batch) -> tuple[Site, ...]:
        return ()

    def order(self, count: int, rng: Rng) -> Tensor:
        if self.steps < len(self._epoch(count)):
            raise UsageError(f"{self!r}: {self.steps} steps of {self.batch} leave some of {count} examples unused; "
                             "use more steps or a larger batch")
        return rng.permutation(count)

    @property
    def protocol(self) -> Mapping[str, float]:
        return {"steps": self.steps, "rate": self.rate}


@register("client", "rounds")
@dataclass(frozen=True)
class Rounds:
    """The same client seen `times` times with the same examples; in between the server takes a step of `rate`.

    What it would be to take part again and again: an attacker matches all its updates at once.
    """

    client: Participation = field(default_factory=OneStep)
    times: int = 3
    rate: float = 0.01

    def __post_init__(self) -> None:
        if self.times < 1 or self.rate < 0:
            raise UsageError(f"{self!r}: times from 1, and a rate of 0 or more")

    def of(self, learner: Learner) -> Client:
        """Of one round: between rounds the server acts."""
        return self.client.of(learner)

    def random(self, learner: Learner, count: int) -> bool:
        return self.client.random(learner, count)

    def dropped(self, learner: Learner, batch: Batch, rng: Rng) -> Mapping[str, Tensor]:
        return self.client.dropped(learner, batch, rng)

    def sites(self, learner: Learner, batch: Batch) -> tuple[Site, ...]:
        return ()  # other masks each round: no one guess holds them all

    def order(self, count: int, rng: Rng) -> Tensor:
        return self.client.order(count, rng)

    @property
    def protocol(self) -> Mapping[str, float]:
        return {**self.client.protocol, "rounds": self.times}
