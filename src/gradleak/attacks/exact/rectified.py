"""Batches through a fully connected first layer with a rectifier, exactly (SPEAR: Dimitrov et al., 2024).

The gradient of n examples, G = D^T X, has rank n: G = L R, and the examples are X = A^-1 R for the one n x n matrix A
with D^T = L A. Its column a_i tells how example i changes each neuron, L a_i, which is zero wherever the rectifier was
off. So n - 1 neurons that were all off for one example give its a_i away: the only direction that vanishes on their
rows of L, and on many other rows too. Mixes of two examples vanish where both are off, which is less often: so the
directions that vanish most often are the examples'.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.exact.linear import first_layer, single
from gradleak.attacks.exact.patches import told
from gradleak.attacks.exact.span import CLIFF, least_squares
from gradleak.attacks.parts.labels import count
from gradleak.errors import Unsuited
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.types import Guess, Know, Observation

BLOCK, BLOCKS = 2048, 64
"""Sets of neurons tried together, and how many times at most."""

MOST = 16
"""Examples: of more, too many sets of neurons would have to be tried."""

ZERO = (1e-3, 1e-4, 1e-5)
"""The share of a neuron's row up to which it vanishes: at first, and as the direction becomes surer. The last is what
rounding leaves; similar examples of one class leave more."""

MORE = 2
"""So many more rows than those chosen must vanish. By chance hardly one in ten thousand does."""

NEW = 1e-2
"""The share of a direction that must lie outside those already found."""

EXPLAINED = 1e-6
"""The residual up to which the examples, replayed, explain the update: then they are proven."""


@dataclass(frozen=True)
class Rectified:
    """Every example of a batch, each neuron being off for some."""

    needs = frozenset({Know.COUNT})
    evaluations = 1

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        weight, bias = (seen.update[name].double() for name in first_layer(seen))
        n = count(seen)
        x = single(weight, bias)[None] if n == 1 else parted(weight, bias, n, rng / "rows")
        guess = told(seen, x.reshape(n, *seen.shape), {})
        proven = residual(seen, guess.batch).cosine < EXPLAINED
        yield replace(guess, notes={**guess.notes, "certain": float(proven)})


def parted(weight: Tensor, bias: Tensor, n: int, rng: Rng) -> Tensor:
    """The n examples, as rows."""
    if n > MOST:
        raise Unsuited(f"{n} examples: up to {MOST} are told apart by the neurons that are off; audit smaller batches")
    left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
    if n >= len(sizes) or sizes[n - 1] < CLIFF * sizes[n]:
        raise Unsuited(f"the first layer's gradient does not have rank {n}: noise or compression fills it, the layer "
                       "is too narrow, or examples are alike; audit smaller batches, or use an attack such as ig")
    mixed = left[:, :n] * sizes[:n]
    directions = _directions(mixed, n, rng)
    if len(directions) < n:
        raise Unsuited(f"only {len(directions)} of {n} examples could be told apart: {n - 1} neurons that are off for "
                       "one of them hardly occur, or nothing is ever off; audit smaller batches")
    whole = torch.stack(directions, 1)
    scales = least_squares(mixed @ whole, bias[:, None])
    examples: Tensor = torch.linalg.solve(whole, right[:n]) / scales
    return examples


def _directions(mixed: Tensor, n: int, rng: Rng) -> list[Tensor]:
    """Those that vanish most often, each with something new: tried until twice as many tries bring no other."""
    length = mixed.norm(dim=1)
    rows = mixed[length > 1e-6 * length.max()]
    rows = rows / rows.norm(dim=1, keepdim=True)
    if len(rows) < 2 * n:
        return []
    needed = n - 1 + MORE
    seen: list[tuple[int, Tensor]] = []
    found, complete = list[Tensor](), 0
    for block in range(1, BLOCKS + 1):
        order = (rng / block).uniform((BLOCK, len(rows)), rows).argsort(1)[:, : n - 1]
        tried = torch.linalg.svd(rows[order]).Vh[:, -1]
        gone = (tried @ rows.mT).abs() < ZERO[0]
        gone = torch.unique(gone[gone.sum(1) >= needed], dim=0)
        best = gone.sum(1).argsort(descending=True)[: 16 * n].tolist()
        seen += [each for number in best if (each := _refined(rows, gone[number], needed)) is not None]
        before, (found, seen) = found, _basis(seen)
        if len(found) < n or not all(any(one is other for other in before) for one in found):
            complete = block
        elif block >= 2 * complete:
            break
    return _sparser(found, rows)


def _sparser(found: list[Tensor], rows: Tensor) -> list[Tensor]:
    """Directions rid of what they have of each other: as much of another is added as makes the most rows vanish, while
    that helps. Two like examples are off together so often that chance hardly ever tells them apart."""
    found, better = found.copy(), True
    often = [int(((rows @ each).abs() < ZERO[-1]).sum()) for each in found]
    while better:
        better = False
        for one in range(len(found)):
            for other in range(len(found)):
                if one == other:
                    continue
                mine, theirs = rows @ found[one], rows @ found[other]
                shares = (-mine / theirs)[theirs.abs() > ZERO[0]]
                tried = found[one] + shares[:, None] * found[other]
                tried = tried / tried.norm(dim=1, keepdim=True)
                counts = ((tried @ rows.mT).abs() < ZERO[-1]).sum(1)
                if len(counts) and int(counts.max()) > often[one]:
                    found[one], often[one], better = tried[int(counts.argmax())], int(counts.max()), True
    return found


def _basis(seen: list[tuple[int, Tensor]]) -> tuple[list[Tensor], list[tuple[int, Tensor]]]:
    """Of all directions, those that vanish most often and are no mix of those before; and these with their counts."""
    axes: list[Tensor] = []
    kept: list[tuple[int, Tensor]] = []
    for often, direction in sorted(seen, key=lambda each: -each[0]):
        fresh = direction
        for axis in axes:
            fresh = fresh - (fresh @ axis) * axis
        if float(fresh.norm()) > NEW:
            axes.append(fresh / fresh.norm())
            kept.append((often, direction))
    return [direction for _, direction in kept], kept


def _refined(rows: Tensor, gone: Tensor, needed: int) -> tuple[int, Tensor] | None:
    """The direction that vanishes on these rows, and how often it does, if that is often the closer one looks."""
    direction = rows[0]
    for share in ZERO[1:]:
        if int(gone.sum()) < needed:
            return None
        direction = torch.linalg.svd(rows[gone]).Vh[-1]
        gone = (rows @ direction).abs() < share
    often = int(gone.sum())
    return (often, direction) if often >= needed else None
