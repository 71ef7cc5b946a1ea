"""What is done to a gradient before the optimiser sees it."""

from collections.abc import Callable

import torch
from torch import Tensor

Direction = Callable[[Tensor], Tensor]


def plain(gradient: Tensor) -> Tensor:
    """The gradient itself."""
    return gradient


def sign(gradient: Tensor) -> Tensor:
    """Only its signs: every pixel moves at the same pace, however little it matters to the loss."""
    return torch.sign(gradient)


def clipped(length: float) -> Direction:
    """Scaled down, lane by lane, where it is longer than this."""

    def clip(gradient: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return gradient * torch.clamp(length / lengths.clamp_min(1e-30), max=1.0)

    return clip
