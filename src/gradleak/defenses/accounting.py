"""What noise is worth, in epsilon: asked of Opacus's accountants."""

import warnings
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, Literal

from gradleak.errors import UsageError

Accountant = Literal["prv", "rdp"]

TOLERANCE = 1e-3
"""How far below the wanted epsilon the found noise may stay."""


QUIETEST, LARGEST = 0.1, 100.0
"""Noise below, or an epsilon above, this takes the PRV accountant minutes and gigabytes."""


@dataclass(frozen=True)
class Privacy:
    """A guarantee: (epsilon, delta) after so many steps, each of which takes an example with probability `rate`."""

    epsilon: float
    delta: float
    steps: int
    rate: float
    accountant: Accountant

    def __str__(self) -> str:
        return (f"epsilon {self.epsilon:.4g} at delta {self.delta:g} after {self.steps:,} steps that each sample "
                f"{self.rate:.3g} of the data ({self.accountant.upper()} accountant)")


@cache
def epsilon(multiplier: float, rate: float, steps: int, delta: float, accountant: Accountant) -> float:
    """What so many steps with noise of `multiplier` times the clipping bound amount to."""
    if multiplier <= 0:
        return inf
    if accountant == "prv" and multiplier < QUIETEST:
        raise UsageError(f"dpsgd(multiplier={multiplier:g}): the PRV accountant cannot count so little noise in any "
                         "reasonable time; use accountant=rdp")
    counted = _accountants().create_accountant(mechanism=accountant)
    counted.history = [(multiplier, rate, steps)]
    with warnings.catch_warnings():  # where the best order lies at the end of its list RDP says so; it is a bound still
        warnings.simplefilter("ignore")
        return float(counted.get_epsilon(delta=delta))


@cache
def multiplier(wanted: float, rate: float, steps: int, delta: float, accountant: Accountant) -> float:
    """The least noise that keeps so many steps within the wanted epsilon."""
    utils = _accountants("utils")
    if accountant == "prv" and wanted > LARGEST:
        raise UsageError(f"dpsgd(epsilon={wanted:g}): the PRV accountant cannot count so little noise in any "
                         "reasonable time; use accountant=rdp")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(utils.get_noise_multiplier(
                target_epsilon=wanted, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant,
                epsilon_tolerance=TOLERANCE * wanted))
    except ValueError as problem:
        raise UsageError(f"dpsgd(epsilon={wanted:g}): no noise reaches it over {steps} steps at rate {rate:g} "
                         f"({problem}); allow a larger epsilon or fewer steps") from None


def _accountants(part: str = "") -> Any:
    from importlib import import_module

    try:
        return import_module("opacus.accountants" + (f".{part}" if part else ""))
    except ImportError:
        raise UsageError("epsilon is computed by Opacus: pip install 'gradleak[dp]'") from None
