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
