"""A plain multi-layer perceptron and Adam, as tensors by name, so that a fit can stop and go on anywhere."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradleak.onednn import large, product
from gradleak.rng import Rng

Tensors = dict[str, Tensor]


def layer(name: str, inputs: int, outputs: int, rng: Rng) -> Tensors:
    """A linear layer's weight and bias, uniform within one over the root of its inputs."""
    like, bound = torch.zeros(()), inputs**-0.5
    return {f"{name}.weight": (2 * (rng / name / "weight").uniform((outputs, inputs), like) - 1) * bound,
            f"{name}.bias": (2 * (rng / name / "bias").uniform((outputs,), like) - 1) * bound}


def perceptron(sizes: Sequence[int], rng: Rng) -> Tensors:
    made: Tensors = {}
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        made |= layer(f"net.{number}", inputs, outputs, rng)
    return made


def forward(weights: Mapping[str, Tensor], x: Tensor, depth: int) -> Tensor:
    """ReLU between layers, nothing behind the last."""
    for number in range(depth):
        x = _linear(x, weights[f"net.{number}.weight"], weights[f"net.{number}.bias"])
        x = x.relu() if number + 1 < depth else x
    return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not large(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(torch.autograd.Function):
    """A layer that is trained, by faster products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        into_x = product(g, weight.mT) if ctx.needs_input_grad[0] else None
        return into_x, product(g.flatten(0, -2).mT, x.flatten(0, -2).mT), g.flatten(0, -2).sum(0)


class Adam:
    """Adam whose memory is part of a fit's state: `first.*` and `second.*` beside the weights. Works in place."""

    def __init__(self, names: Sequence[str], betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.names, self.betas = list(names), betas

    def begin(self, weights: Mapping[str, Tensor]) -> Tensors:
        return {f"{kind}.{name}": torch.zeros_like(weights[name]) for kind in ("first", "second")
                for name in self.names}

    @torch.no_grad()
    def step(self, state: Mapping[str, Tensor], slopes: Sequence[Tensor], time: int, rate: float) -> None:
        """Every weight is read and written once."""
        weights, first, second = ([state[f"{kind}{name}"] for name in self.names]
                                  for kind in ("", "first.", "second."))
        times = [torch.tensor(float(time)) for _ in weights]
        torch._fused_adam_(weights, list(slopes), first, second, [], times, lr=rate, beta1=self.betas[0],
                           beta2=self.betas[1], weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
