"""A defense: drop the low bits of every entry, as a client with half-precision links does."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.defenses.after import after
from gradleak.defenses.sign import straight_through
from gradleak.types import Client, Update


def _short(layer: Tensor) -> Tensor:
    return layer.to(torch.bfloat16).to(layer)


@dataclass(frozen=True)
class RoundOff:
    """Round to the numbers a 16-bit float can hold."""

    random = False
    meaning = "each entry rounded to 16-bit floating point"

    def protect(self, client: Client) -> Client:
        return after(client, lambda update, rng: {k: _short(v) for k, v in update.items()})

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        return after(client, lambda sent, rng: {k: straight_through(_short(v), v) for k, v in sent.items()})
