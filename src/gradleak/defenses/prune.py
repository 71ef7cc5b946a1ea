"""Send only some entries, in three meanings that papers mix up."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from gradleak.defenses.after import after
from gradleak.errors import UsageError
from gradleak.factored import Stacked, kept
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Client, Update


def _kept(size: int, keep: float) -> int:
    return max(1, round(size * keep))


def _largest(values: Tensor, keep: float) -> Tensor:
    """The magnitude from which an entry is among the largest share `keep`."""
    return values.abs().flatten().topk(_kept(values.numel(), keep)).values[-1]


@register("defense", "prune")
@dataclass(frozen=True)
class Prune:
    """Zero all but the share `keep`: the largest over the whole update, the largest of each layer, or a random mask."""

    keep: float
    by: Literal["global", "layer", "random"] = "global"

    random = False
    """The mask may be drawn, but it can be read off the release, so the attacker's copy is exact."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise UsageError(f"prune(keep={self.keep}): the share kept must be above 0 and at most 1")

    @property
    def meaning(self) -> str:
        which = {"global": "largest entries of the whole update", "layer": "largest entries of each layer",
                 "random": "entries, chosen at random"}[self.by]
        return f"only {self.keep:.3%} of the {which} are sent".replace("000%", "%").replace(".%", "%")

    def pruned(self, update: Update, rng: Rng | None = None) -> Update:
        """What is left of an update; without a stream nothing is left out at random."""
        if self.by == "random":
            if rng is None:
                return update
            return {k: v * ((rng / k).uniform(v.shape, v) < self.keep) for k, v in update.items()}
        if self.by == "layer":
            return {k: v * (v.abs() >= _largest(v, self.keep)) for k, v in update.items()}
        bar = _largest(torch.cat([v.flatten() for v in update.values()]), self.keep)
        return {k: v * (v.abs() >= bar) for k, v in update.items()}

    def protect(self, client: Client) -> Client:
        return after(client, self.pruned)

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        masks = {k: (v != 0).to(v) for k, v in update.items()}
        return lambda params, batch, rng: cast(Update, kept(cast(Stacked, client(params, batch, rng)), masks))
