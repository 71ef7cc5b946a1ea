"""Ways to rearrange the words of a sentence. Each takes an order of places and returns another."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Order = list[int]
Move = Callable[[Order, np.random.Generator], Order]


def swap(order: Order, rng: np.random.Generator) -> Order:
    """Two words change places."""
    i, j = rng.integers(len(order), size=2)
    moved = list(order)
    moved[i], moved[j] = moved[j], moved[i]
    return moved


def token(order: Order, rng: np.random.Generator) -> Order:
    """One word goes elsewhere."""
    i, j = rng.integers(len(order), size=2)
    moved = list(order)
    moved.insert(j, moved.pop(i))
    return moved


def span(order: Order, rng: np.random.Generator) -> Order:
    """Some neighbours go elsewhere together."""
    i, j = sorted(rng.integers(len(order), size=2))
    rest = order[:i] + order[j + 1 :]
    place = int(rng.integers(len(rest) + 1))
    return rest[:place] + order[i : j + 1] + rest[place:]


def prefix(order: Order, rng: np.random.Generator) -> Order:
    """The beginning becomes the end."""
    i = int(rng.integers(len(order)))
    return order[i:] + order[:i]


ALL: tuple[Move, ...] = (swap, token, span, prefix)


def propose(inside: Tensor, moves: Sequence[Move], count: int, rng: np.random.Generator) -> Tensor:
    """Orders of all places of a sentence (count x L), one move each on those inside its frame; one is as it is."""
    places = inside.nonzero().flatten()
    orders = torch.arange(len(inside)).repeat(count, 1)
    if len(places) < 2 or not moves:
        return orders[:1]
    start = places.tolist()
    for row in range(1, count):
        orders[row, places] = torch.tensor(moves[int(rng.integers(len(moves)))](start, rng))
    distinct: Tensor = torch.unique(orders, dim=0)
    return distinct


def permutations(inside: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Random orders of all places of a sentence (count x L), the first as it is."""
    places = inside.nonzero().flatten()
    orders = torch.arange(len(inside)).repeat(count, 1)
    for row in range(1, count):
        orders[row, places] = places[torch.from_numpy(rng.permutation(len(places)))]
    return orders
