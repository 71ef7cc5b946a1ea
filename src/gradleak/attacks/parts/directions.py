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


def stepped(share: float = 0.2, levels: int = 8) -> Direction:
    """The sign by `share`, the rest the gradient in so many steps of its lane's largest entry: pixels that matter move
    faster, and none stands still for being small."""

    def mixed(gradient: Tensor) -> Tensor:
        largest = gradient.abs().flatten(1).amax(1).reshape(-1, *[1] * (gradient.ndim - 1)).clamp_min(1e-30)
        return share * torch.sign(gradient) + (1 - share) * torch.ceil(levels * gradient.abs() / largest) / levels * (
            torch.sign(gradient))

    return mixed
