"""How far replayed candidates are from the update. Each maps stacked updates (R lanes) to R numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gradleak.factored import TINY, Reference, Stacked
from gradleak.products import Products, differences, products

Objective = Callable[[Stacked, Reference], Tensor]

NEGLIGIBLE = 1e-12
"""A parameter with less than this share of the update's squared length has no direction but rounding: the bias of an
attention key, to which softmax is blind."""


@dataclass(frozen=True)
class ByProducts:
    """An objective that needs inner products only: no gradient is ever multiplied out for it."""

    of: Callable[[Products], Tensor]

    def __call__(self, stacked: Stacked, reference: Reference) -> Tensor:
        if self.of is _l2 and all(isinstance(value, Tensor) for value in stacked.values()):
            return differences(stacked, reference).squares.sum(1)
        return self.of(products(stacked, reference))


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


def _layer_cosine(found: Products) -> Tensor:
    cosines = found.dots / (found.squares.clamp_min(TINY) * found.sizes.clamp_min(TINY)).sqrt()
    return 1 - cosines[:, found.sizes > NEGLIGIBLE * found.sizes.sum()].mean(1)


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


def balanced(objective: Objective, power: float = 1.0) -> Objective:
    """The objective after dividing each layer by (its observed length)^(power/2).

    Early layers have small gradients but hold the picture: with power 1 every layer's share of a squared distance
    goes with its length instead of its square.
    """

    def weighed(stacked: Stacked, reference: Reference) -> Tensor:
        weights = {name: size.clamp_min(TINY).pow(-power / 4) for name, size in reference.sizes.items()}
        return objective({name: value * weights[name] for name, value in stacked.items()},
                         Reference({name: value * weights[name] for name, value in reference.items()}))

    return weighed
