"""How pictures usually look: slow waves are strong and fast ones weak, colours vary less than light."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = (1.0, 0.3, 0.2)
"""How strong brightness, red against blue, and green against both are in pictures."""


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform, a frequency a row. Unlike Fourier's it does not take opposite edges for
    neighbours."""
    places = (torch.arange(size, dtype=torch.float64) + 0.5) * math.pi / size
    table = (torch.arange(size, dtype=torch.float64)[:, None] * places).cos() * math.sqrt(2 / size)
    table[0] /= math.sqrt(2)
    return table


def opponents(channels: int) -> Tensor:
    """Brightness, red against blue, green against both, a row each, of length one; other than three channels stay as
    they are."""
    mixing = torch.tensor([[1, 1, 1], [1, 0, -1], [-1, 2, -1]], dtype=torch.float64)
    return mixing / mixing.norm(dim=1, keepdim=True) if channels == 3 else torch.eye(channels).double()


@dataclass(frozen=True)
class Spectrum:
    """Pictures (... x C x H x W) of some contrast around grey as numbers of about one size: waves of light and colour,
    each divided by how strong it usually is, (1 + frequency^2)^(-power/2) times its colour's strength."""

    rows: Tensor
    columns: Tensor
    mixing: Tensor
    strength: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...], like: Tensor, contrast: float, power: float = 1.0,
           colours: tuple[float, ...] = COLOURS) -> "Spectrum":
        channels, high, wide = shape
        falling = (1 + torch.arange(high)[:, None] ** 2 + torch.arange(wide)[None] ** 2).double() ** (-power / 2)
        falling = falling * contrast / falling.square().mean().sqrt()
        colour = torch.tensor(colours if channels == 3 else [1.0] * channels, dtype=torch.float64)
        strength = falling * (colour / colour.square().mean().sqrt())[:, None, None]
        return cls(*(part.to(like) for part in (cosines(high), cosines(wide), opponents(channels), strength)))

    def picture(self, white: Tensor) -> Tensor:
        """How a picture differs from grey."""
        waves = self.rows.mT @ (self.strength * white) @ self.columns
        return torch.einsum("kc,...khw->...chw", self.mixing, waves)

    def white(self, picture: Tensor) -> Tensor:
        """The inverse of `picture`."""
        return self._waves(picture) / self.strength

    def back(self, picture: Tensor) -> Tensor:
        """The transpose of `picture`."""
        return self._waves(picture) * self.strength

    def _waves(self, picture: Tensor) -> Tensor:
        return self.rows @ torch.einsum("kc,...chw->...khw", self.mixing, picture) @ self.columns.mT
