"""Asking a model of words what reaches its layers."""

import torch
from torch import Tensor

from gradleak.calculus import peek
from gradleak.types import Batch, Observation


def reached(seen: Observation, x: Tensor, *names: str) -> list[Tensor]:
    """What the named layers are given when word embeddings (n x L x d) come in: n x L x inputs each, in float64."""
    count, length = x.shape[:2]
    labels = torch.zeros(count, dtype=torch.long, device=x.device)
    if seen.next_word:  # a label a place
        labels = labels[:, None].expand(count, length)
    mask = torch.ones(count, length, dtype=torch.long, device=x.device)
    found = peek(seen.replay, Batch(x, labels, {"mask": mask}), *names)
    if any(each.numel() != count * length * each.shape[-1] for each in found):
        if count == 1:
            raise ValueError(f"{', '.join(names)}: not given one row a token")
        # A client that takes its examples in turn was seen taking the first only.
        alone = [reached(seen, one[None], *names) for one in x]
        return [torch.cat(each) for each in zip(*alone, strict=True)]
    return [each.double().reshape(count, length, -1) for each in found]
