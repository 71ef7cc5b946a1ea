"""Small reference models, and the door for anyone's own. Each is a description; `build` makes a module."""

import importlib
import inspect
import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from gradleak.errors import UsageError
from gradleak.registry import kind_of, register

Shape = tuple[int, ...]


class Model(Protocol):
    """Makes a classifier for inputs of a shape."""

    def build(self, shape: Shape, classes: int) -> nn.Module: ...


kind_of(Model, "model")


def _features(body: nn.Module, shape: Shape) -> int:
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).flatten(1).shape[1])


@register("model", "lenet")
@dataclass(frozen=True)
class LeNet:
    """DLG's network: three 5x5 convolutions with sigmoids, weights and biases from U(-spread, spread)."""

    channels: int = 12
    spread: float = 0.5

    def build(self, shape: Shape, classes: int) -> nn.Module:
        sizes = [shape[0], *[self.channels] * 3]
        layers: list[nn.Module] = []
        for (into, out), stride in zip(pairwise(sizes), (2, 2, 1), strict=True):
            layers += [nn.Conv2d(into, out, 5, stride, 2), nn.Sigmoid()]
        body = nn.Sequential(*layers, nn.Flatten())
        model = nn.Sequential(body, nn.Linear(_features(body, shape), classes))
        for weights in model.parameters():
            nn.init.uniform_(weights, -self.spread, self.spread)
        return model


@register("model", "convnet")
@dataclass(frozen=True)
class ConvNet:
    """Plain ReLU convolutions without normalisation, strided instead of pooled."""

    width: int = 32

    def build(self, shape: Shape, classes: int) -> nn.Module:
        sizes = [shape[0], self.width, 2 * self.width, 2 * self.width, 2 * self.width]
        layers: list[nn.Module] = []
        for (into, out), stride in zip(pairwise(sizes), (1, 2, 1, 2), strict=True):
            layers += [nn.Conv2d(into, out, 3, stride, 1), nn.ReLU()]
        body = nn.Sequential(*layers, nn.Flatten())
        return nn.Sequential(body, nn.Linear(_features(body, shape), classes))


@register("model", "mlp")
@dataclass(frozen=True)
class Mlp:
    """Two hidden fully connected layers."""

    width: int = 256

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), self.width), nn.ReLU(),
            nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, classes),
        )


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )
        same = into == out and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _resnet(shape: Shape, classes: int, widths: list[int], blocks: list[int]) -> nn.Module:
    small = shape[-1] < 128
    stem: list[nn.Module] = [nn.Conv2d(shape[0], widths[0], 3 if small else 7, 1 if small else 2, 1 if small else 3,
                                       bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    if not small:
        stem.append(nn.MaxPool2d(3, 2, 1))
    into = widths[0]
    for stage, (out, many) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(many):
            stem.append(Residual(into, out, 2 if stage and not block else 1))
            into = out
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))


@register("model", "resnet20")
@dataclass(frozen=True)
class ResNet20:
    """The CIFAR residual network of depth 20."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _resnet(shape, classes, [16, 32, 64], [3, 3, 3])


@register("model", "resnet18")
@dataclass(frozen=True)
class ResNet18:
    """The ImageNet residual network of depth 18; a 3x3 stem below 128 pixels, the 7x7 one with pooling from there."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _resnet(shape, classes, [64, 128, 256, 512], [2, 2, 2, 2])


@register("model", "resnet34")
@dataclass(frozen=True)
class ResNet34:
    """The ImageNet residual network of depth 34; its stem as in resnet18."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _resnet(shape, classes, [64, 128, 256, 512], [3, 4, 6, 3])


class Attention(nn.Module):
    """Every token asks all tokens, several ways at once. Written out: the fused kernel has no second derivative."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        share = (query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        return self.out((share @ value).transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and two linear layers, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.between = nn.LayerNorm(width, eps=1e-6)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mix(self.between(x))  # type: ignore[no-any-return]


class Patchwork(nn.Module):
    """An image as a row of patches behind one token that stands for the whole, whose last state is classified."""

    def __init__(self, shape: Shape, classes: int, vit: "Vit") -> None:
        super().__init__()
        channels, height, across = shape
        places = (height // vit.patch) * (across // vit.patch)
        self.project = nn.Conv2d(channels, vit.width, vit.patch, vit.patch)
        self.whole = nn.Parameter(torch.empty(1, 1, vit.width))
        self.position = nn.Parameter(torch.empty(1, 1 + places, vit.width))
        self.blocks = nn.Sequential(*[Block(vit.width, vit.heads) for _ in range(vit.layers)])
        self.norm, self.head = nn.LayerNorm(vit.width, eps=1e-6), nn.Linear(vit.width, classes)
        for name, weights in self.named_parameters():
            if weights.ndim > 1:
                nn.init.trunc_normal_(weights, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weights)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.project(2 * x - 1).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.whole.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])  # type: ignore[no-any-return]


@register("model", "vit")
@dataclass(frozen=True)
class Vit:
    """A vision transformer that normalises before each layer; everything is trained. Pixels are scaled to [-1, 1], as
    published ones scale them. `vit(patch=16, width=768, layers=12, heads=12)` at 224 pixels is ViT-B/16."""

    patch: int = 4
    width: int = 192
    layers: int = 4
    heads: int = 3

    def __post_init__(self) -> None:
        if min(self.patch, self.width, self.layers, self.heads) < 1 or self.width % self.heads:
            raise UsageError(f"{self!r}: all must be at least 1, and the width a multiple of the heads")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if len(shape) != 3 or shape[1] % self.patch or shape[2] % self.patch:
            raise UsageError(f"{self!r} cannot cut images of shape {shape} into patches; choose a size of image that "
                             "is a multiple of the patch")
        return Patchwork(shape, classes, self)


@register("model", "python")
@dataclass(frozen=True)
class FromPython:
    """Your own module: `python('package.module:build')`, called as build(shape, classes) or build().

    This imports and runs that module: use it only with code you trust.
    """

    path: str

    def build(self, shape: Shape, classes: int) -> nn.Module:
        where, _, name = self.path.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            maker = getattr(importlib.import_module(where), name)
            module = maker(shape, classes) if len(inspect.signature(maker).parameters) >= 2 else maker()
        except Exception as problem:
            raise UsageError(f"python({self.path!r}): {type(problem).__name__}: {problem}; name an importable function "
                             "as 'package.module:build' that returns a module") from problem
        if not isinstance(module, nn.Module):
            raise UsageError(f"python({self.path!r}) returned {type(module).__name__}; return a torch.nn.Module")
        return module
