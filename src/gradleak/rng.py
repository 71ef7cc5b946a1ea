"""Named random streams: the same path from the same seed gives the same numbers, whatever else was drawn."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rng:
    """A place in a tree of streams. `rng / "client" / 3` names another; drawing never moves a shared state."""

    seed: int
    path: tuple[str, ...] = ()

    def __truediv__(self, name: object) -> "Rng":
        return Rng(self.seed, (*self.path, str(name)))

    def sealed(self) -> "Rng":
        """A root of its own: whoever holds it cannot find the way back to this place's seed or its siblings."""
        return Rng(self.number)

    @property
    def number(self) -> int:
        """The 63-bit number this place stands for."""
        digest = hashlib.sha256(repr((self.seed, self.path)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def torch(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.number)

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.number)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal numbers with the device and type of `like`, drawn on the CPU so that devices agree."""
        return torch.randn(tuple(shape), generator=self.torch(), dtype=torch.float32).to(like)

    def uniform(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Numbers in [0, 1) with the device and type of `like`."""
        return torch.rand(tuple(shape), generator=self.torch(), dtype=torch.float32).to(like)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.torch())
