"""Products of some rows with a large matrix, by oneDNN: faster than what torch hands them to, without packed copies."""

import math
from functools import cache

import torch
from torch import Tensor

LARGE, ROWS = 2**20, 4
"""Entries of a matrix, and rows multiplied with it, from which this product is the faster one."""

TURNED = range(8, 128)
"""Rows from and up to which it is faster still to multiply the matrix with them, and turn what comes of it."""


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
    rows = rows.contiguous()
    if not matrix.is_contiguous() or rows.numel() // rows.shape[-1] not in TURNED:
        return _linear(rows, matrix, bias)
    turned = _linear(matrix, rows.view(-1, rows.shape[-1])).mT
    found = rows.new_empty(*rows.shape[:-1], len(matrix))  # as it should lie: sums keep the order of what they add
    into = found.view(turned.shape)
    if bias is None:
        into.copy_(turned)
    else:
        torch.add(turned, bias, out=into)
    return found


def _linear(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "none", [], "")
    return found
