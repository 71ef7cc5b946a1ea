"""How far replayed candidates are from the update. Each maps stacked updates (R lanes) to R numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.factored import TINY, Reference, Stacked, dense
from gradleak.products import Products, differences, products

Objective = Callable[[Stacked, Reference], Tensor]

NEGLIGIBLE = 1e-12
"""A parameter with less than this share of the update's squared length has no direction but rounding: the bias of an
attention key, to which softmax is blind."""

EXACT = 1e-14
"""One minus a cosine below this is rounding."""


@dataclass(frozen=True)
class ByProducts:
    """An objective that needs inner products only: no gradient is ever multiplied out for it. `balance` divides each
    layer by (its observed length)^(balance/2)."""

    of: Callable[[Products], Tensor]
    balance: float = 0.0

    def __call__(self, stacked: Stacked, reference: Reference) -> Tensor:
        if self.of is _l2 and all(isinstance(value, Tensor) for value in stacked.values()):
            return (differences(stacked, reference).squares * self._weights(reference.all_sizes)).sum(1)
        return self.judged(products(stacked, reference))

    def judged(self, found: Products) -> Tensor:
        return self.of(found.weighed(self._weights(found.sizes)) if self.balance else found)

    def _weights(self, sizes: Tensor) -> Tensor:
        return sizes.clamp_min(TINY).pow(-self.balance / 2)


class ByEntries:
    """An objective that looks at some entries only (R x M numbers), which add up over the sentences of a batch."""

    def entries(self, stacked: Stacked) -> Tensor:
        raise NotImplementedError

    def of(self, entries: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, stacked: Stacked, reference: Reference) -> Tensor:
        return self.of(self.entries(stacked))


def _l2(found: Products) -> Tensor:
    return (found.squares - 2 * found.dots + found.sizes).clamp_min(0).sum(1)


def _cosine(found: Products) -> Tensor:
    return 1 - found.dots.sum(1) / (found.squares.sum(1).clamp_min(TINY) * found.sizes.sum()).sqrt()


def cosines(found: Products) -> tuple[Tensor, Tensor]:
    """Of each parameter that has a direction; and which these are."""
    told = found.sizes > NEGLIGIBLE * found.sizes.sum()  # chosen first: a layer of zeros has a cosine of no slope
    lengths = found.squares[:, told].clamp_min(TINY).sqrt() * found.sizes[told].sqrt()
    return found.dots[:, told] / lengths, told


def _layer_cosine(found: Products) -> Tensor:
    return 1 - cosines(found)[0].mean(1)


def _norms(found: Products) -> Tensor:
    return (found.squares - 2 * found.dots + found.sizes).clamp_min(TINY).sqrt().sum(1)


norms = ByProducts(_norms)
"""Sum over the parameters of the length of their difference."""

l2 = ByProducts(_l2)
"""Sum of squared differences."""

cosine = ByProducts(_cosine)
"""One minus the cosine over all parameters together."""

layer_cosine = ByProducts(_layer_cosine)
"""One minus the cosine of each parameter, averaged over those that have a direction."""


def l2_l1(weight: float = 0.01) -> Objective:
    """Sum of squared differences and `weight` times the sum of their magnitudes."""

    def total(stacked: Stacked, reference: Reference) -> Tensor:
        found = differences(stacked, reference)
        return (found.squares + weight * found.magnitudes).sum(1)

    return total


def norms_l1(weight: float = 0.01) -> Objective:
    """Sum over the parameters of the length of their difference and `weight` times the sum of its magnitudes."""

    def total(stacked: Stacked, reference: Reference) -> Tensor:
        found = differences(stacked, reference)
        return (found.squares.clamp_min(TINY).sqrt() + weight * found.magnitudes).sum(1)

    return total


def balanced(objective: ByProducts, power: float = 1.0) -> ByProducts:
    """The objective after dividing each layer by (its observed length)^(power/2).

    Early layers have small gradients but hold the picture: with power 1 every layer's share of a squared distance
    goes with its length instead of its square.
    """
    return replace(objective, balance=power)


def likelihood(stacked: Stacked, reference: Reference) -> Tensor:
    """One minus the cosine of each parameter, their geometric mean over all entries.

    Every layer may have been scaled and carries noise, both unknown: then the logarithm of this, times half the number
    of entries, is how unlikely the update is. Noise as large as each layer's entries, or as large everywhere, need not
    be told apart. Angles are taken from differences, as the truth's are small and one minus a cosine is all rounding.
    """
    whole = dense(stacked)
    told = [name for name, size in reference.sizes.items()
            if float(size) > NEGLIGIBLE * float(reference.all_sizes.sum()) and name in whole]
    counts = [reference[name].numel() for name in told]
    turns = [count * _turn(whole[name].flatten(1), reference[name].flatten()).log()
             for name, count in zip(told, counts, strict=True)]
    return (torch.stack(turns).sum(0) / sum(counts)).exp()


def _turn(found: Tensor, sent: Tensor) -> Tensor:
    """One minus the cosine, a number a lane, in float64."""
    size = sent.square().sum(dtype=torch.float64)
    length = found.square().sum(1, dtype=torch.float64).clamp_min(TINY)
    off = found * (size / length).sqrt().to(found)[:, None] - sent
    return (off.square().sum(1, dtype=torch.float64) / (2 * size)).clamp_min(EXACT)
