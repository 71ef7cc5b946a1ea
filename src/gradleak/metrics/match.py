"""Which guess belongs to which truth: one one-to-one assignment, shared by every metric."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.metrics.overlap import f1, in_any_order, in_order
from gradleak.types import NOTHING

TIE = 1e-6
"""Weight of the tokens regardless of order: it decides only where the order leaves it open."""


def assign(readings: Tensor, truths: Tensor) -> list[int]:
    """For each truth, the number of the guess that stands for it.

    Images: least total squared error. Rows of tokens, of any two widths: most tokens in the same order.
    """
    text = not truths.is_floating_point()
    if len(readings) != len(truths) or readings.is_floating_point() == text or (
            not text and readings.shape != truths.shape):
        raise ValueError(f"{tuple(readings.shape)} guesses for {tuple(truths.shape)} truths")
    cost = _of_tokens(readings, truths) if text else _of_images(readings, truths)
    _, columns = linear_sum_assignment(cost)
    return [int(column) for column in columns]


def _of_images(readings: Tensor, truths: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    guesses = torch.nan_to_num(readings.flatten(1).double().cpu(), posinf=1e6, neginf=-1e6)
    return np.asarray(torch.cdist(truths.flatten(1).double().cpu(), guesses).square().numpy())


def _of_tokens(readings: Tensor, truths: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """A row a truth; `NOTHING` is no token."""
    guesses, wanted = ([[t for t in row if t != NOTHING] for row in rows.tolist()] for rows in (readings, truths))
    return np.array([[_distance(guess, truth) for guess in guesses] for truth in wanted])


def _distance(guess: list[int], truth: list[int]) -> float:
    ordered, loose = (f1(share(guess, truth), len(guess), len(truth)) for share in (in_order, in_any_order))
    return 1 - ordered + TIE * (1 - loose)
