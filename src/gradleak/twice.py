"""Layers that matching differentiates twice, and never in their weights: faster than layers that may be trained."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from gradleak.onednn import large, product

HEAVY = 2**21
"""Multiplications from which a convolution is worth the Python around it."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b; no gradient goes to the weight. A few rows times a large weight are most of a step: oneDNN takes them
    faster than the product torch chooses for training, forwards and, by far, backwards."""
    if not large(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class Twice(TorchFunctionMode):
    """While a gradient is recorded that will be differentiated in the data only: convolutions by what that needs.

    Torch's own second derivative of a convolution also works out how the weights would have to change, one pass in
    eight, and throws it away.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _conv2d(*args, **(kwargs or {})) if func is F.conv2d else func(*args, **(kwargs or {}))


def _conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Tensor:
    """As torch's; by `_Convolution` where it is heavy and its weights are not made of the data."""
    heavy = x.numel() * weight.numel() >= HEAVY * x.shape[-3]
    if not heavy or isinstance(padding, str) or x.ndim != 4 or not weight.is_leaf:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    plan = (*((each, each) if isinstance(each, int) else tuple(each) for each in (stride, padding, dilation)), groups)
    found: Tensor = _Convolution.apply(x, weight, plan)  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias[:, None, None]


def _back(g: Tensor, x: Tensor, weight: Tensor, plan: Any, which: int) -> Tensor:
    """The gradient of a convolution's input (0) or weight (1)."""
    stride, padding, dilation, groups = plan
    found: Tensor = torch.ops.aten.convolution_backward(
        g, x, weight, None, stride, padding, dilation, False, (0, 0), groups, (which == 0, which == 1, False))[which]
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plan: Any) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, None, *plan)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not torch.is_grad_enabled():  # the second time
            return _back(g, x, weight, ctx.plan, 0), None, None
        into_x = _Backwards.apply(g, x, weight, ctx.plan) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        return into_x, _Slope.apply(g, x, weight, ctx.plan), None  # type: ignore[no-untyped-call]


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, plan: Any) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(weight)
        return _back(g, x, weight, plan, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        return F.conv2d(v, ctx.saved_tensors[0], None, *ctx.plan), None, None, None


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, plan: Any) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(g, x)
        return _back(g, x, weight, plan, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        g, x = ctx.saved_tensors
        v = v.contiguous()
        into_x = _back(g, x, v, ctx.plan, 0) if ctx.needs_input_grad[1] else None
        return F.conv2d(x, v, None, *ctx.plan), into_x, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return product(g, weight.mT), None, None
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
