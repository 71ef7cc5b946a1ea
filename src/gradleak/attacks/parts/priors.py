"""What data look like before any update is seen. Each maps candidates (R x B x ...) to R numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.attacks.parts.spaces import Room
from gradleak.attacks.parts.tokens import TokenRoom

Prior = Callable[[Tensor, Room], Tensor]


def total_variation(x: Tensor, room: Room | None = None) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    return down + across


def word_length(x: Tensor, room: Room) -> Tensor:
    """How far the mean length of the embeddings is from that of the model's words, squared."""
    assert isinstance(room, TokenRoom)
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1)
    gap: Tensor = lengths.flatten(1).mean(1) - room.norm
    return gap.square()
