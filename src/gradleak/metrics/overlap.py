"""How much two rows of tokens share."""

from collections import Counter
from collections.abc import Hashable, Sequence


def in_order(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence."""
    where: dict[Hashable, int] = {}
    for place, token in enumerate(other):
        where[token] = where.get(token, 0) | 1 << place
    every = (1 << len(other)) - 1
    # A whole row of the usual table in one number: a bit that was cleared is a place where the length grows by one.
    row = every
    for token in one:
        met = row & where.get(token, 0)
        row = (row + met | row - met) & every
    return len(other) - row.bit_count()


def in_any_order(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many tokens both hold, each counted as often as both hold it."""
    return (Counter(one) & Counter(other)).total()


def f1(shared: int, one: int, other: int) -> float:
    """Harmonic mean of the shares of two lengths; two empty rows agree."""
    return 2 * shared / (one + other) if one + other else 1.0
