"""Where the search moves: unknowns of the shape of the data, and how they become data."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Space(Protocol):
    """A one-to-one map between unknowns and data (R x B x C x H x W)."""

    def decode(self, unknowns: Tensor) -> Tensor: ...

    def encode(self, data: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Pixels:
    """The pixels themselves."""

    def decode(self, unknowns: Tensor) -> Tensor:
        return unknowns

    def encode(self, data: Tensor) -> Tensor:
        return data


@dataclass(frozen=True)
class Smooth:
    """Pixels whose frequencies are weighed as those of pictures are, by (1 + frequency)^-power: the search finds large
    shapes first and needs far fewer steps."""

    power: float = 1.0

    def _weights(self, like: Tensor) -> Tensor:
        high, wide = like.shape[-2:]
        down = torch.fft.fftfreq(high, device=like.device, dtype=like.dtype)[:, None] * high
        across = torch.fft.rfftfreq(wide, device=like.device, dtype=like.dtype)[None] * wide
        weights: Tensor = (1 + (down.square() + across.square()).sqrt()) ** -self.power
        return weights / weights.square().mean().sqrt()

    def _scaled(self, x: Tensor, weights: Tensor) -> Tensor:
        scaled: Tensor = torch.fft.irfft2(torch.fft.rfft2(x - 0.5) * weights, s=x.shape[-2:])
        return scaled + 0.5

    def decode(self, unknowns: Tensor) -> Tensor:
        return self._scaled(unknowns, self._weights(unknowns))

    def encode(self, data: Tensor) -> Tensor:
        return self._scaled(data, 1 / self._weights(data))
