"""Send one bit an entry."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.defenses.after import after
from gradleak.registry import register
from gradleak.types import Client, Update


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value going forward, the surrogate's gradient going back."""
    return surrogate + (value - surrogate).detach()


def _soft_sign(layer: Tensor) -> Tensor:
    scale = layer.detach().abs().mean().clamp_min(1e-30)
    return straight_through(torch.sign(layer), torch.tanh(layer / scale))


@register("defense", "sign")
@dataclass(frozen=True)
class Sign:
    """Each entry's sign: -1, 0 or 1."""

    meaning = "only the sign of each entry is sent"
    random = False

    def protect(self, client: Client) -> Client:
        return after(client, lambda update, rng: {k: torch.sign(v) for k, v in update.items()})

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        return after(client, lambda sent, rng: {k: _soft_sign(v) for k, v in sent.items()})
