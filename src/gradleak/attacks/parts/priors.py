"""What images look like before any update is seen. Each maps candidates (R x B x C x H x W) to R numbers."""

from collections.abc import Callable

from torch import Tensor

Prior = Callable[[Tensor], Tensor]


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    return down + across
