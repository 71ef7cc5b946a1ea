"""Dropout as it really is, by one mechanism for modules and functional calls alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradleak.rng import Rng


class Dropped(TorchFunctionMode):
    """Replaces every active dropout: masks from the stream, or, without one, their mean (no dropping)."""

    def __init__(self, rng: Rng | None) -> None:
        super().__init__()
        self.rng = rng
        self.sites: int = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.dropout:
            return func(*args, **(kwargs or {}))
        return self._drop(*args, **(kwargs or {}))

    def _drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        self.sites += 1
        if self.rng is None:
            return x
        return x * (self.rng.__truediv__(self.sites).uniform(x.shape, x) >= p) / (1 - p)


def sites(module: nn.Module, x: Tensor) -> int:
    """How many times one forward pass in this mode drops something."""
    seen = Dropped(None)
    with torch.no_grad(), seen:
        module(x)
    return seen.sites
