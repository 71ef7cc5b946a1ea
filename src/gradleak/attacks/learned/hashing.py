"""Feature hashing (Weinberger et al., 2009): a long update as few sums of its entries, whatever its length."""

from collections.abc import Iterable

import torch
from torch import Tensor

PIECE = 1 << 18
"""Entries hashed at a time: bins are computed as they are needed, never kept."""


def _mixed(numbers: Tensor, key: int) -> Tensor:
    """32 bits that look random, of each number (a finaliser: shifts and odd factors), in int64 arithmetic."""
    mixed = (numbers + key * 0x9E3779B9) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x1B873593):
        mixed = ((mixed ^ (mixed >> 16)) * factor) & 0xFFFFFFFF
    return mixed ^ (mixed >> 15)


def bins(start: int, stop: int, count: int, key: int = 0, device: torch.device | None = None) -> Tensor:
    """The bin, of `count`, of each entry from `start` to `stop`."""
    return (_mixed(torch.arange(start, stop, device=device), key) * count) >> 32


def signs(start: int, stop: int, key: int = 0, device: torch.device | None = None) -> Tensor:
    """1 or -1 for each entry, independent of its bin: what shares a bin then cancels instead of adding up."""
    return 1 - 2 * (_mixed(torch.arange(start, stop, device=device), ~key & 0xFFFF) & 1)


def hashed(parts: Iterable[Tensor], count: int, signed: bool = False, key: int = 0) -> Tensor:
    """Rows (R x m, in parts that are read as one behind the other) as rows of `count` sums."""
    out: Tensor | None = None
    start = 0
    for part in parts:
        flat = part.flatten(1)
        out = torch.zeros(len(flat), count).to(flat) if out is None else out
        for first in range(0, flat.shape[1], PIECE):
            piece = flat[:, first : first + PIECE]
            span = (start + first, start + first + piece.shape[1])
            piece = piece * signs(*span, key, flat.device).to(piece) if signed else piece
            out.index_add_(1, bins(*span, count, key, flat.device), piece)
        start += flat.shape[1]
    if out is None:
        raise ValueError("nothing to hash")
    return out
