"""Products of some rows with a large matrix, by oneDNN: faster than what torch hands them to, without packed copies."""

import math
from functools import cache

import torch
from torch import Tensor

LARGE, ROWS = 2**20, 4
"""Entries of a matrix, and rows multiplied with it, from which this product is the faster one."""


def large(rows: Tensor, matrix: Tensor) -> bool:
    """Whether `product` takes these, and pays."""
    return (matrix.numel() >= LARGE and math.prod(rows.shape[:-1]) >= ROWS and rows.dtype == torch.float32
            and rows.device.type == "cpu" and _there())


@cache
def _there() -> bool:
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return there and "_linear_pointwise" in dir(torch.ops.mkldnn)


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows matrix^T + bias; outside any graph."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), matrix, bias, "none", [], "")
    return found
