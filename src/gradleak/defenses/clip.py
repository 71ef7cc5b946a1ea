"""Scale the whole update down to a bound."""

from dataclasses import dataclass

import torch

from gradleak.defenses.after import after
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Client, Update


@register("defense", "clip")
@dataclass(frozen=True)
class Clip:
    """Divide by the update's length over `norm`, where it is longer."""

    norm: float

    random = False

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise UsageError(f"clip(norm={self.norm}): the bound must be above 0")

    @property
    def meaning(self) -> str:
        return f"the whole update scaled to a length of at most {self.norm:g}"

    def _clip(self, update: Update, rng: Rng | None) -> Update:
        length = torch.stack([v.square().sum() for v in update.values()]).sum().clamp_min(1e-30).sqrt()
        scale = torch.clamp(self.norm / length, max=1.0)
        return {k: v * scale for k, v in update.items()}

    def protect(self, client: Client) -> Client:
        return after(client, self._clip)

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        return self.protect(client)
