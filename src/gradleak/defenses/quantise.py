"""Send few bits an entry, on a grid that spans each layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.defenses.after import after
from gradleak.defenses.sign import straight_through
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Client, Update


@register("defense", "quantise")
@dataclass(frozen=True)
class Quantise:
    """Round to 2^bits - 1 levels between minus and plus the layer's largest entry, up or down at random (unbiased)."""

    bits: int = 4
    stochastic: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise UsageError(f"quantise(bits={self.bits}): between 2 and 16 bits; for one bit use sign")

    @property
    def random(self) -> bool:
        return self.stochastic

    @property
    def meaning(self) -> str:
        how = "at random, unbiased" if self.stochastic else "to the nearest"
        return f"each entry rounded {how} to {self.bits} bits of its layer's range"

    def _grid(self, layer: Tensor) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        return torch.div(layer.abs().max().clamp_min(1e-30), levels)

    def _nearest(self, layer: Tensor) -> Tensor:
        return torch.round(layer / self._grid(layer)) * self._grid(layer)

    def _random(self, layer: Tensor, draws: Tensor) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        return torch.floor(layer / self._grid(layer) + draws).clamp(-levels, levels) * self._grid(layer)

    def protect(self, client: Client) -> Client:
        def rounded(update: Update, rng: Rng | None) -> Update:
            if not self.stochastic or rng is None:
                return {k: self._nearest(v) for k, v in update.items()}
            return {k: self._random(v, (rng / k).uniform(v.shape, v)) for k, v in update.items()}

        return after(client, rounded)

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        """Random rounding is unbiased: the plain client is the best replay. Nearest rounding is copied exactly."""
        if self.stochastic:
            return client
        return after(client, lambda sent, rng: {k: straight_through(self._nearest(v), v) for k, v in sent.items()})
