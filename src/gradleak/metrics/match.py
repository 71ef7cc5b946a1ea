"""Which guess belongs to which truth: one one-to-one assignment, shared by every metric."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assign(readings: Tensor, truths: Tensor) -> list[int]:
    """For each truth, the number of the guess that stands for it; least total squared error."""
    if readings.shape != truths.shape:
        raise ValueError(f"{tuple(readings.shape)} guesses for {tuple(truths.shape)} truths")
    guesses = torch.nan_to_num(readings.flatten(1).double().cpu(), posinf=1e6, neginf=-1e6)
    cost = torch.cdist(truths.flatten(1).double().cpu(), guesses).square().numpy()
    rows, columns = linear_sum_assignment(np.asarray(cost))
    return [int(columns[list(rows).index(i)]) for i in range(len(truths))]
