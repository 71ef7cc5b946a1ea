"""Dropout as it really is, by one mechanism for modules and functional calls alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradleak.rng import Rng

CHANNELWISE = (F.dropout1d, F.dropout2d, F.dropout3d)


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
        if func is F.dropout:
            return self._drop(False, *args, **(kwargs or {}))
        if func in CHANNELWISE:
            return self._drop(True, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(self, channels: bool, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        self.sites += 1
        if self.rng is None:
            return x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if channels else x.shape
        return x * ((self.rng / self.sites).uniform(shape, x) >= p) / (1 - p)


def controlled(module: nn.Module, x: Tensor) -> bool:
    """Whether every draw of a forward pass comes from the stream: twice the same stream, twice the same output."""
    with torch.no_grad():
        with Dropped(Rng(0)):
            one = module(x)
        with Dropped(Rng(0)):
            other = module(x)
    return bool(torch.equal(one, other))


def sites(module: nn.Module, x: Tensor) -> int:
    """How many times one forward pass in this mode drops something."""
    seen = Dropped(None)
    with torch.no_grad(), seen:
        module(x)
    return seen.sites
