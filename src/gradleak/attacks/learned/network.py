"""A plain multi-layer perceptron and Adam, as tensors by name, so that a fit can stop and go on anywhere."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

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
        x = F.linear(x, weights[f"net.{number}.weight"], weights[f"net.{number}.bias"])
        x = x.relu() if number + 1 < depth else x
    return x


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
