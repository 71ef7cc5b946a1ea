"""Dropout as it really is, by one mechanism for modules and functional calls alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.rng import Rng
from gradleak.types import Site

CHANNELWISE = (F.dropout1d, F.dropout2d, F.dropout3d)


class Dropped(TorchFunctionMode):
    """Replaces every active dropout: by the mask given for its place in the order of calls, else by one drawn from
    the stream, else, without a stream, by the masks' mean (nothing is dropped)."""

    def __init__(self, rng: Rng | None, masks: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()
        self.rng, self.masks = rng, masks or {}
        self.sites: list[Site] = []
        self.drawn: list[Tensor] = []

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
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if channels else tuple(x.shape)
        number = len(self.sites)
        self.sites.append(Site(shape, p))
        if number in self.masks:
            mask = self.masks[number]
        elif self.rng is not None:
            mask = ((self.rng / (number + 1)).uniform(shape, x) >= p).to(x)
            self.drawn.append(mask)
        else:
            return x
        # A certain drop (p = 1) has no mean to keep.
        return x * mask / (1 - p) if p < 1 else torch.zeros_like(x)
