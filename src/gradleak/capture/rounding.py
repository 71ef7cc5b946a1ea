"""What rounding leaves when weights are sent instead of gradients: noise of a known size, which can be taken out.

The weights after a step are rounded to float32; their difference from those before, divided by a small rate, is the
gradient and a rounding error that is large beside float32's own. It fills every direction of a layer's gradient a
little, where the gradient itself has only as many as there were tokens or examples.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

ABOVE = 1.3
"""Singular values count from this far above the largest that such noise has: its edge is sharp."""

LARGEST = 4096
"""Layers with more rows and columns than this are left as they are: they would take minutes."""


def spread(before: Tensor, difference: Tensor) -> float:
    """The rounding error's standard deviation, over a weight that was stored as float32 after it moved."""
    after = (before - difference).float().abs()
    step = torch.nextafter(after, torch.full_like(after, math.inf)) - after
    return float(step.double().square().mean().sqrt()) / math.sqrt(12)


def unrounded(differences: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same without what only rounding can have made, of every weight that is a matrix."""
    return {name: _unrounded(value, before[name]) if value.ndim == 2 and name in before else value
            for name, value in differences.items()}


def _unrounded(difference: Tensor, before: Tensor) -> Tensor:
    rows, columns = difference.shape
    if min(rows, columns) < 2 or min(rows, columns) > LARGEST or max(rows, columns) > 8 * LARGEST:
        return difference
    edge = ABOVE * spread(before, difference) * (math.sqrt(rows) + math.sqrt(columns))
    left, values, right = torch.linalg.svd(difference.double(), full_matrices=False)
    kept = int((values > edge).sum())
    if kept in (0, len(values)):
        return difference
    whole: Tensor = (left[:, :kept] * values[:kept]) @ right[:kept]
    return whole.to(difference)
