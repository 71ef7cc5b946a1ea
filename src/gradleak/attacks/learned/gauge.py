"""Which word is meant where a regression says an embedding that is none: by how it errs on words that are known."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.keep import State

FIRM = 1e-3
"""Held against a slope, in units of what embeddings differ by."""


@dataclass(frozen=True)
class Gauge:
    """Per place, what is said of a word is `level + (embedding - usual) @ slope`, and an error whose inverse covariance
    is `sharp`."""

    level: Tensor
    usual: Tensor
    slope: Tensor
    sharp: Tensor

    @staticmethod
    def of(state: State) -> "Gauge":
        return Gauge(*(state[f"gauge.{name}"] for name in ("level", "usual", "slope", "sharp")))

    @property
    def state(self) -> State:
        return {f"gauge.{name}": value for name, value in asdict(self).items()}

    def __call__(self, said: Tensor, table: Tensor) -> Tensor:
        """How likely each word of the table makes what is said of each place (places x words: logarithms, up to a
        constant of the place)."""
        each = zip(said, self.level, self.usual, self.slope, self.sharp, strict=True)
        return torch.stack([_likely(off - level, (table - usual) @ slope, sharp)
                            for off, level, usual, slope, sharp in each])


def _likely(said: Tensor, words: Tensor, sharp: Tensor) -> Tensor:
    return words @ (sharp @ said) - 0.5 * ((words @ sharp) * words).sum(1)


def gauged(said: Tensor, meant: Tensor) -> Gauge:
    """From what was said (N x places x d) of embeddings that are known.

    As many numbers are estimated as there are examples, or more: what can be told of an error is drawn towards an error
    alike in all directions, the more the fewer examples there are.
    """
    said, meant = said.double().transpose(0, 1), meant.double().transpose(0, 1)
    n, wide = meant.shape[1:]
    level, usual = said.mean(1, keepdim=True), meant.mean(1, keepdim=True)
    said, meant = said - level, meant - usual
    eye = torch.eye(wide).to(said)
    firm = FIRM * n * meant.square().mean().clamp_min(1e-30) * eye
    slope = torch.linalg.solve(meant.mT @ meant + firm, meant.mT @ said)
    off = said - meant @ slope
    spread = off.mT @ off / n
    even = spread.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30) * eye
    unsure = wide / (wide + n)
    sharp = torch.linalg.inv((1 - unsure) * spread + unsure * even)
    return Gauge(*(value.float() for value in (level[:, 0], usual[:, 0], slope, sharp)))
