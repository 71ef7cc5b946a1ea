"""Gradients of which only some entries were sent: the rest follows, as few inputs made them all.

A layer's gradient has no more dimensions than its inputs had tokens, so that a share of its entries says them all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.rng import Rng

EMPTY = 0.3
"""The share of entries that are exactly zero from which on entries were left out."""

DISTINCT = 0.5
"""Entries sent as computed are nearly all different: zeros among fewer values than that are rounded, not left out."""

RANKS, IDLE = (2, 4, 6, 9, 13, 18, 25, 35), 2
"""Numbers of dimensions tried, until so many in a row do not help to foretell entries held out: one alone may only have
ended badly."""

HELD_OUT = 0.05
RIDGE = 0.1
"""Added for every dimension, beside entries of size one: rows with few entries stay small."""

TRIED, FINAL = 12, 15
"""Iterations while a rank is being chosen, and for good."""


def pruned(part: Tensor) -> bool:
    """Whether entries were left out, as far as the gradient itself tells."""
    sent = part[part != 0]
    return 0 < len(sent) < (1 - EMPTY) * part.numel() and len(torch.unique(sent.abs())) > DISTINCT * len(sent)


def completed(parts: Sequence[Tensor], rng: Rng) -> tuple[list[Tensor], float]:
    """Pruned gradients of layers with one input, completed; and how wrong entries are that were not sent, beside their
    size."""
    parts = [part / part[part != 0].square().mean().sqrt() if bool(part.any()) else part for part in parts]
    stack = torch.cat(list(parts)).float()
    sent = (stack != 0).float()
    kept = sent * (rng.uniform(stack.shape, stack) >= HELD_OUT)
    out = sent - kept
    size = float((out * stack).norm().clamp_min(1e-30))
    chosen, error, idle = RANKS[0], 1.0, 0
    for rank in (each for each in RANKS if each < min(stack.shape)):
        found = float((out * (_fitted(stack, kept, rank, TRIED) - stack)).norm()) / size
        idle += 1
        if found < error:
            chosen, error, idle = rank, found, 0
        if idle == IDLE:
            break
    whole = _fitted(stack, sent, chosen, FINAL).double()
    return list(torch.split(whole, [len(part) for part in parts])), error


def _fitted(stack: Tensor, sent: Tensor, rank: int, steps: int) -> Tensor:
    """The matrix of a rank that fits the entries sent, rows and columns in turn by least squares."""
    _, values, rows = torch.linalg.svd(stack * sent, full_matrices=False)
    right = rows[:rank].mT * values[:rank].sqrt()
    left = right
    for _ in range(steps):
        left = _side(stack * sent, sent, right)
        right = _side((stack * sent).mT, sent.mT, left)
    return torch.mm(left, right.mT)


def _side(stack: Tensor, sent: Tensor, other: Tensor) -> Tensor:
    """One factor, given the other: a small least squares for every row."""
    rank = other.shape[1]
    squares = (sent @ (other[:, :, None] * other[:, None, :]).flatten(1)).view(-1, rank, rank)
    ridge: Tensor = RIDGE * torch.eye(rank).to(squares)
    found: Tensor = torch.linalg.solve(squares + ridge, (stack @ other)[..., None])
    return found[..., 0]
