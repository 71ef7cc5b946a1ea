"""What the labels are: given, read off the last layer, or unknowns of the search."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Know, Observation, Update


@dataclass(frozen=True)
class Read:
    """Labels for a batch with how sure each one is; `joint` leaves them to the search, started from `soft`."""

    labels: Tensor
    confidence: Tensor
    joint: bool = False


class Labels(Protocol):
    """A way to come by labels."""

    def read(self, seen: Observation, rng: Rng) -> Read: ...


def count(seen: Observation) -> int:
    """How many examples the update is made of."""
    value = seen.facts[Know.COUNT]
    assert isinstance(value, int)
    return value


@dataclass(frozen=True)
class Joint:
    """Soft labels, solved for together with the data."""

    def read(self, seen: Observation, rng: Rng) -> Read:
        n = count(seen)
        return Read(torch.zeros(n, dtype=torch.long), torch.zeros(n), joint=True)


@dataclass(frozen=True)
class Given:
    """As granted by the threat."""

    def read(self, seen: Observation, rng: Rng) -> Read:
        labels = seen.facts[Know.LABELS]
        assert isinstance(labels, Tensor)
        return Read(labels, torch.ones(len(labels)))


def head(seen: Observation) -> tuple[str, str | None]:
    """The last fully connected layer with an output a class: names of its weight and, if it has one, its bias."""
    last = [name for name, value in seen.params.items() if value.ndim == 2 and value.shape[0] == seen.classes]
    if not last:
        raise Unsuited(f"no final linear layer with {seen.classes} outputs to read labels from; use labels=joint")
    bias = last[-1].removesuffix("weight") + "bias"
    return last[-1], bias if bias in seen.params else None


@dataclass(frozen=True)
class Counted:
    """Which classes are in the batch and how often, from the last layer's gradient, whose row for class c is
    mean_i (p_ic - [y_i = c]) h_i.

    The attacker replays plain random inputs under two labels to learn the typical feature h and the typical
    prediction p; projecting each row on h (a matched filter, sturdy under noise) then gives the count of its class.
    """

    probes: int = 8

    def read(self, seen: Observation, rng: Rng) -> Read:
        n = count(seen)
        direction, typical, scale = self._typical(seen, n, rng)
        rows = _rows(seen, seen.update) @ direction / scale
        counts = n * (typical - rows)
        return _apportion(counts, n)

    def _typical(self, seen: Observation, n: int, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
        features, predictions = [], []
        for probe in range(self.probes):
            level = (rng / "level" / probe).uniform((n, *[1] * len(seen.shape)), next(iter(seen.params.values())))
            grain = (rng / "grain" / probe).normal((n, *seen.shape), level)
            x = (level + 0.2 * grain).clamp(0, 1)
            with torch.no_grad():
                first, second = (_rows(seen, seen.replay(Batch(x, torch.full((n,), y)))) for y in (0, 1))
            h = (second - first)[0] / 1.0
            features.append(h)
            predictions.append((first, h))
        mean = torch.stack(features).mean(0)
        scale = (mean @ mean).clamp_min(1e-30)
        p = torch.stack([first @ mean / (h @ mean).clamp_min(1e-30) for first, h in predictions]).mean(0)
        p = p + torch.nn.functional.one_hot(torch.tensor(0), len(p))
        return mean, p, scale


def _rows(seen: Observation, update: Update) -> Tensor:
    """The head's gradient, a row a class, the bias as one more column; each block scaled by its size."""
    weight, bias = head(seen)
    return update[weight] if bias is None else torch.cat([update[weight], update[bias][:, None]], 1)


def _apportion(counts: Tensor, n: int) -> Read:
    """Whole numbers that sum to n (largest remainders), and how far each was from being otherwise."""
    share = counts.clamp_min(0)
    share = share * n / share.sum().clamp_min(1e-12)
    whole = share.floor().long()
    missing = n - int(whole.sum())
    order = (share - whole).argsort(descending=True)
    whole[order[:missing]] += 1
    labels = torch.repeat_interleave(torch.arange(len(whole)), whole)
    doubt = (share - whole).abs()
    return Read(labels, (1 - doubt[labels]).clamp(0, 1))
