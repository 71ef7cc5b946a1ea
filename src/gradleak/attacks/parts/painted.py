"""The search among a generator's pictures: its latents, then its weights too."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.generator import Fit, Generator
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Observation

STRIDE = 0.01
"""How far a weight moves as its unknown moves by 1."""


@dataclass(frozen=True)
class Painted:
    """What a generator paints, from latents alone or, `free`, with weights of its own for this batch."""

    fit: Fit
    free: bool = False

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> "PaintedRoom":
        if seen.vocabulary is not None:
            raise Unsuited("this attack reads images, and the data are text; use a text attack, such as lamp")
        return PaintedRoom(self.fit.open(seen), (count, *seen.shape), self.free, next(iter(seen.params.values())))


class PaintedRoom:
    """Pictures by one generator."""

    tokens = 0
    beside = 0

    def __init__(self, generator: Generator, shape: tuple[int, ...], free: bool, like: Tensor) -> None:
        self.generator, self.shape, self.free, self.like = generator, shape, free, like.detach()
        self.latents = shape[0] * generator.latent
        weights = sum(value.numel() for value in generator.weights.values())
        self.unknowns = self.latents + (weights if free else 0)

    def begin(self, lanes: int, rng: Rng) -> Tensor:
        z = torch.zeros(lanes, self.unknowns).to(self.like)
        z[:, : self.latents] = rng.normal((lanes, self.latents), self.like)
        return z

    def decode(self, unknowns: Tensor) -> Tensor:
        latents = unknowns[:, : self.latents].reshape(-1, self.generator.latent)
        if not self.free:
            return self.generator.paint(latents).reshape(-1, *self.shape)
        each = latents.reshape(len(unknowns), -1, self.generator.latent)
        return torch.stack([self.generator.paint(z, STRIDE * moved)
                            for z, moved in zip(each, unknowns[:, self.latents :], strict=True)])

    def encode(self, data: Tensor) -> Tensor:
        z = torch.zeros(len(data), self.unknowns).to(data)
        z[:, : self.latents] = self.generator.view(data.flatten(0, 1).detach()).reshape(len(data), -1)
        return z

    def settle(self, data: Tensor) -> Tensor | None:
        return None

    def extra(self, lanes: int, beside: Tensor | None = None) -> dict[str, Tensor]:
        return {}

    def kept(self, extra: Mapping[str, Tensor]) -> Tensor | None:
        return None

    def answer(self, data: Tensor, labels: Tensor) -> tuple[Batch, Tensor]:
        return Batch(data.detach(), labels), data.detach().clamp(0, 1)
