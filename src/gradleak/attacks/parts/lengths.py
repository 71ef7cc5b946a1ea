"""How long the sentences are: granted, or read off the rank of the update."""

from collections import Counter

import torch
from torch import Tensor

from gradleak.errors import Unsuited
from gradleak.types import Know, Observation

MOST = 512
"""Ranks above this are not looked for."""

GAP = 30.0
"""Singular values must fall by this factor where the rank ends: signal above, rounding below."""

AGREE = 1 / 5
"""The share of layers that must have the same rank: where entries were changed, each falls somewhere else."""


def lengths(seen: Observation, count: int) -> Tensor:
    """Tokens of each sentence, its frame included."""
    if Know.LENGTHS in seen.facts:
        granted = seen.facts[Know.LENGTHS]
        assert isinstance(granted, Tensor)
        return granted
    total, words = tokens(seen), seen.vocabulary
    shortest = 1 if words is None else len(words.opening) + 1 + len(words.closing)
    if total is None or total < count * shortest:
        raise Unsuited("the number of tokens cannot be read off this update (its rank is hidden); grant the lengths, "
                       "as in curious+lengths")
    longest = seen.shape[0]
    each = torch.full((count,), total // count)
    each[: total % count] += 1
    return each.clamp_max(longest)


def tokens(seen: Observation) -> int | None:
    """All tokens of the batch: a layer's gradient has one rank for each token that reaches it, until it is full."""
    ranks = [rank(value) for name, value in seen.update.items()
             if value.ndim == 2 and min(value.shape) >= 8 and max(value.shape) <= 16 * min(value.shape)]
    times = Counter(r for r in ranks if r is not None)
    return max((r for r in times if times[r] >= AGREE * len(ranks)), default=None)


def rank(matrix: Tensor) -> int | None:
    """Where the singular values last fall off a cliff, if they do."""
    wide = min(*matrix.shape, MOST)
    probe = torch.randn(matrix.shape[1], wide, generator=torch.Generator().manual_seed(0)).to(matrix)
    values = torch.linalg.svdvals(matrix @ probe if wide < matrix.shape[1] else matrix)
    if float(values[0]) == 0:
        return None
    # The very last fall says nothing: the smallest value of a square random matrix is often tiny by chance.
    falls = values[:-2] / values[1:-1].clamp_min(values[0] * 1e-12)
    signal = values[:-2] > 10 * torch.finfo(values.dtype).eps * values[0]
    cliffs = (signal & (falls >= GAP)).nonzero()
    return int(cliffs[-1]) + 1 if len(cliffs) else None
