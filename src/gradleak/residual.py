"""The one figure of merit an attacker can see: how well a candidate explains the update."""

from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.types import Batch, Observation, Update

TINY = 1e-30


class Residual(NamedTuple):
    """Distance of a replayed candidate from the update; smaller explains it better, 0 perfectly."""

    cosine: float
    l2: float


def dot(one: Update, other: Update) -> Tensor:
    """Inner product over all parameters."""
    return torch.stack([torch.sum(one[name].double() * other[name].double()) for name in other]).sum()


def norm(update: Update) -> float:
    """Length of the whole update."""
    return float(dot(update, update).detach().clamp_min(0).sqrt())


def distance(candidate: Update, reference: Update) -> Residual:
    """Cosine distance, and l2 distance relative to the reference, in float64."""
    gap = {name: candidate[name].double() - reference[name].double() for name in reference}
    size, other = norm(reference), norm(candidate)
    cosine = 1.0 - float(dot(candidate, reference).detach()) / max(size * other, TINY)
    return Residual(max(cosine, 0.0), norm(gap) / max(size, TINY))


def residual(seen: Observation, batch: Batch) -> Residual:
    """How well `batch` explains what was seen, as far as the attacker knows the client."""
    with torch.no_grad():
        return distance(seen.replay(batch), seen.update)
