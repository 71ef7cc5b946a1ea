"""Hide what the last layer's gradient tells of the representation."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.calculus import representation
from gradleak.defenses.prune import Prune
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.tap import Untapped
from gradleak.types import Batch, Client, Params, Update

AT_ONCE = 64
"""Features whose slopes are taken together: each holds a picture an example."""


@register("defense", "soteria")
@dataclass(frozen=True)
class Soteria:
    """Zero the share `prune` of the last linear layer's gradient, by features: those from which the input can be told
    best, |r| / |dr/dx| being largest, r being what reaches that layer.

    All other layers are sent as they are. Differs from the paper: in a batch the figures of its examples are added up,
    so that one set of features is hidden; with several local steps it is that of the first.
    """

    prune: float

    random = False
    """Which features are hidden can be read off the release."""

    def __post_init__(self) -> None:
        if not 0 < self.prune < 1:
            raise UsageError(f"soteria(prune={self.prune}): the share hidden must be between 0 and 1")

    @property
    def meaning(self) -> str:
        return (f"{self.prune:.3g} of the features that reach the last linear layer are hidden: its gradient is zero "
                "there, all others are sent as they are")

    def protect(self, client: Client) -> Client:
        def hidden(params: Params, batch: Batch, rng: Rng | None) -> Update:
            update = client(params, batch, rng)
            name, kept = self._kept(client, params, batch)
            return {**update, name: update[name] * kept}

        return hidden

    def _kept(self, client: Client, params: Params, batch: Batch) -> tuple[str, Tensor]:
        """The last linear layer's weight, and a mask for it: 0 where a feature is hidden."""
        x = batch.x.detach().requires_grad_()
        try:
            layer, reached = representation(client, params, replace(batch, x=x))
        except Untapped as reason:
            raise UsageError(f"{self!r}: {reason}; use it with a model that ends in a linear layer") from None
        if reached.ndim != 2:
            raise UsageError(f"{self!r}: the last linear layer of this model is given {reached.ndim - 1} axes an "
                             "example, not a row of features; use prune(by=layer)")
        told = (reached.abs() / _slopes(reached, x).clamp_min(1e-30)).sum(0).detach()
        kept = torch.ones_like(told)
        kept[told.topk(max(1, round(self.prune * len(told)))).indices] = 0
        return layer.name, kept[:, None] if layer.flipped else kept

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        """Leave out what was not sent; the other layers tell as much as ever."""
        return Prune(1.0).mimic(client, update)


def _slopes(reached: Tensor, x: Tensor) -> Tensor:
    """How strongly each example's features answer to its input."""
    each = []
    for some in torch.split(torch.eye(reached.shape[1]).to(reached), AT_ONCE):
        wanted = some[:, None].expand(-1, len(reached), -1)
        (slope,) = torch.autograd.grad(reached, x, wanted, retain_graph=True, is_grads_batched=True)
        each.append(slope.flatten(2).norm(dim=2))
    return torch.cat(each).mT
