"""How much of a gradient each token in each place accounts for, before anyone knows which of them belong together.

The inputs are scale * gain * (word + place) + shift, so that a gradient is a sum over words plus a sum over places:
one least squares gives every word's and every place's part, summed over the pairs it is in. What stands in few pairs is
known at once; the rest is the lightest way to move the words' parts to the places.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.dictionary import Dictionary
from gradleak.attacks.exact.span import least_squares

ROUNDS = 40


@dataclass(frozen=True)
class Shares:
    """Per (token, place): its part of the gradient (`deltas`, n x outputs), and that part's size beside all of its
    token's and all of its place's."""

    pairs: list[tuple[int, int]]
    deltas: Tensor
    of_token: Tensor
    of_place: Tensor


def shares(atoms: Dictionary, gradient: Tensor, tokens: list[list[int]]) -> Shares:
    """Of a gradient (outputs x d) to which only these tokens per place contribute."""
    pairs = [(token, place) for place, here in enumerate(tokens) for token in here]
    every = sorted({token for token, _ in pairs})
    rows = {token: row for row, token in enumerate(every)}
    parts = _parts(atoms, gradient, torch.tensor(every), len(tokens))
    at = torch.tensor([rows[token] for token, _ in pairs]), torch.tensor([len(every) + place for _, place in pairs])
    incidence = torch.zeros(len(parts), len(pairs), dtype=torch.float64)
    for which in at:
        incidence[which, torch.arange(len(pairs))] = 1
    deltas = _lightest(incidence, parts)
    size = deltas.norm(dim=1)
    total = incidence @ size
    return Shares(pairs, deltas, size / total[at[0]].clamp_min(1e-300), size / total[at[1]].clamp_min(1e-300))


def _parts(atoms: Dictionary, gradient: Tensor, tokens: Tensor, places: int) -> Tensor:
    """Every token's and then every place's part (x outputs)."""
    words = atoms.words(tokens) * atoms.gain
    spots = atoms.places[:places] * atoms.gain
    rows = torch.cat([words, spots, atoms.shift[None]])
    return least_squares(rows.mT, gradient.mT)[:-1]


def _lightest(incidence: Tensor, parts: Tensor) -> Tensor:
    """Of all ways to share the parts out among pairs the one with the least sum of lengths, by reweighting."""
    left, values, right = torch.linalg.svd(parts, full_matrices=False)
    thin = left * values
    weights = torch.ones(incidence.shape[1], dtype=torch.float64)
    jitter = torch.eye(len(parts), dtype=torch.float64)
    found: Tensor = thin
    for number in range(ROUNDS):
        matrix = (incidence * weights) @ incidence.mT
        matrix = matrix + 1e-10 * matrix.diagonal().mean() * jitter
        found = weights[:, None] * (incidence.mT @ torch.linalg.solve(matrix, thin))
        size = found.norm(dim=1)
        weights = (size.square() + (size.mean() * max(1e-4, 0.5**number)).square()).sqrt()
        weights = weights / weights.mean()
    return torch.matmul(found, right)
