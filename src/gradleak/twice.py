"""Layers that matching differentiates twice, and never in their weights: faster than layers that may be trained."""

import math
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE, ROWS = 2**20, 4
"""Entries of a weight, and rows multiplied with it, from which oneDNN's product is the faster one."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b; no gradient goes to the weight. A few rows times a large weight are most of a step: oneDNN takes them
    faster than the product torch chooses for training, forwards and, by far, backwards."""
    large = weight.numel() >= LARGE and x[..., 0].numel() >= ROWS
    if large and x.dtype == torch.float32 and x.device.type == "cpu" and _onednn():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return F.linear(x, weight, bias)


@cache
def _onednn() -> bool:
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return there and "_linear_pointwise" in dir(torch.ops.mkldnn)


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), matrix, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _product(g, weight.mT), None, None
        return _Linear.apply(g, weight.mT, None), None, None  # type: ignore[no-untyped-call]


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), in its exact form."""
    return _Gelu.apply(x) if x.requires_grad else F.gelu(x)  # type: ignore[no-untyped-call]


class _Gelu(torch.autograd.Function):
    """Its slope is Phi + x phi, and the slope's own (2 - x^2) phi."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x * x
        phi = torch.exp(square * -0.5).mul_(1 / math.sqrt(2 * math.pi))
        below = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)
        ctx.save_for_backward(x, torch.addcmul(below, x, phi), phi.mul_(2 - square))
        return below.mul_(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, slope, bend = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return g * cast(Tensor, slope)
        return _Sloped.apply(g, x, slope, bend)  # type: ignore[no-any-return, no-untyped-call]


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, slope: Tensor, bend: Tensor) -> Tensor:
        ctx.save_for_backward(g, slope, bend)
        return g * slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        g, slope, bend = ctx.saved_tensors
        return v * slope, (g * bend).mul_(v), None, None
