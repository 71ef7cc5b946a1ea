"""How far replayed candidates are from the update. Each maps stacked updates (R lanes) to R numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.types import Update

Objective = Callable[[Update, Update], Tensor]


def _dot(stacked: Update, reference: Update) -> Tensor:
    """Per lane, the inner product with the reference over all parameters; no weight-sized temporary."""
    parts = [stacked[name].flatten(1) @ value.flatten() for name, value in reference.items()]
    return torch.stack(parts).sum(0)


def _sq_norm(stacked: Update) -> Tensor:
    parts = [torch.linalg.vecdot(flat, flat) for flat in (value.flatten(1) for value in stacked.values())]
    return torch.stack(parts).sum(0)


def l2(stacked: Update, reference: Update) -> Tensor:
    """Sum of squared differences."""
    parts = [(stacked[name] - value).flatten(1).square().sum(1) for name, value in reference.items()]
    return torch.stack(parts).sum(0)


def cosine(stacked: Update, reference: Update) -> Tensor:
    """One minus the cosine over all parameters together."""
    size = torch.stack([value.square().sum() for value in reference.values()]).sum().sqrt()
    return 1 - _dot(stacked, reference) / (_sq_norm(stacked).clamp_min(1e-30).sqrt() * size)


def balanced(objective: Objective, power: float = 1.0) -> Objective:
    """The objective after dividing each layer by (its observed length)^(power/2).

    Early layers have small gradients but hold the picture: with power 1 every layer's share of a squared distance
    goes with its length instead of its square.
    """

    def weighed(stacked: Update, reference: Update) -> Tensor:
        weights = {name: value.square().sum().clamp_min(1e-30).pow(-power / 4) for name, value in reference.items()}
        return objective({name: value * weights[name] for name, value in stacked.items()},
                         {name: value * weights[name] for name, value in reference.items()})

    return weighed
