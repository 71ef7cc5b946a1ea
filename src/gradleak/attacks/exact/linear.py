"""The input of a fully connected first layer, from its weight and bias gradient."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.parts.labels import Counted
from gradleak.errors import Unsuited
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation


@register("attack", "linear")
@dataclass(frozen=True)
class Linear:
    """A layer y = W x + b has gradients G_W = sum_i d_i x_i^T and G_b = sum_i d_i.

    One example: x = G_W^T G_b / |G_b|^2, exactly. Several: behind a ReLU some neurons fire for one example only, and
    their rows divided by their bias gradient are examples; rows that agree with others, or at least look like
    images, come first.
    """

    needs = frozenset({Know.COUNT})
    evaluations = 1

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        weight, bias = first_layer(seen)
        read = Counted().read(seen, rng)
        n = len(read.labels)
        rows = seen.update[weight].double(), seen.update[bias].double()
        x = single(*rows)[None] if n == 1 else _several(*rows, n)
        x = x.reshape(n, *seen.shape).to(seen.update[weight])
        notes = {"label_confidence": float(read.confidence.mean())}
        yield Guess(Batch(x, read.labels), x.clamp(0, 1), step=1, notes=notes)


def first_layer(seen: Observation) -> tuple[str, str]:
    """The names of the weight and the bias of a fully connected layer that is as wide as the data."""
    width = math.prod(seen.shape)
    for name, value in seen.params.items():
        bias = name.removesuffix("weight") + "bias"
        if value.ndim == 2 and value.shape[1] == width and bias in seen.params:
            return name, bias
    raise Unsuited(f"no fully connected layer with a bias takes the {width} input values directly; "
                   "linear works on models such as mlp")


def single(weight: Tensor, bias: Tensor) -> Tensor:
    """The one example that a layer was given."""
    return weight.T @ bias / bias.square().sum().clamp_min(1e-30)


def _several(weight: Tensor, bias: Tensor, n: int) -> Tensor:
    used = bias.abs() > 1e-6 * bias.abs().max()
    rows = weight[used] / bias[used][:, None]
    outside = (rows - rows.clamp(0, 1)).square().mean(1)
    near = torch.cdist(rows, rows) < 1e-3 * math.sqrt(rows.shape[1])
    order = sorted(range(len(rows)), key=lambda i: (-int(near[i].sum()), float(outside[i])))
    chosen: list[int] = []
    for i in order:
        if len(chosen) < n and not any(bool(near[i, j]) for j in chosen):
            chosen.append(i)
    found = rows[chosen].clamp(0, 1)
    return torch.cat([found, torch.full((n - len(found), rows.shape[1]), 0.5).to(rows)])
