"""Ridge regression with one penalty a block of features, all chosen by leaving one example out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize
from torch import Tensor

from gradleak.rng import Rng

STEPS, BOUNDS, ENOUGH = 40, (-8.0, 8.0), 3e-5
"""Steps of the search for the penalties' logarithms, how far it may go, and a relative gain too small to go on for."""

CONSTANT = 100.0
"""How much more weight an average has than a feature: it is hardly held back."""

GROWTHS = tuple(2.0**step for step in range(-1, 5))
"""Factors tried on all penalties at once."""

IDLE = 1e-4
"""A block that says less than this share (in power) is left out: it would cost time and change nothing."""

SKETCH = 64
"""Random directions of the target that stand for all of it while penalties are chosen."""

STRIP = 1024
"""Rows, or columns, of a product that are taken at a time."""


@dataclass(frozen=True)
class Noise:
    """What a random defense leaves of a block: its gain (1: all of it), and the variance it adds to each feature."""

    gain: Tensor
    variance: Tensor


def noise(quiet: Tensor, drawn: Tensor, slices: Sequence[slice]) -> Noise:
    """From the same examples without and with everything random drawn."""
    gain, variance = [], []
    for part in slices:
        still, loud = quiet[:, part], drawn[:, part]
        kept = (still * loud).sum() / still.square().sum().clamp_min(1e-30)
        rest = (loud - kept * still).square().mean()
        exact = torch.equal(still, loud)
        gain.append(torch.ones_like(kept) if exact else kept)
        variance.append(torch.zeros_like(rest) if exact else rest)
    return Noise(torch.stack(gain), torch.stack(variance))


@dataclass(frozen=True)
class Scales:
    """A penalty a block, beside what noise adds to it, for features of such power; the squared error to expect of a
    regression on the sample alone."""

    penalty: Tensor
    spread: Tensor
    power: Tensor
    error: float

    def factors(self, total: int) -> Tensor:
        """By how much each block's features are multiplied before a regression on `total` examples with penalty 1 (0:
        left out)."""
        return (1 / ((total * self.spread + self.penalty) * self.power.clamp_min(1e-30))).sqrt()


def chosen(
    features: Tensor, target: Tensor, slices: Sequence[slice], noisy: Noise, total: int, begin: float, rng: Rng,
) -> Scales:
    """Penalties from a sample of centred examples, for a regression on `total` of them; their logarithms begin at
    `begin`.

    A feature with noise of variance s on top is worth what ridge regression makes of it with a penalty of N s beside
    its own: the noise is integrated out, not drawn. What the noise on the example left out costs is counted too.
    """
    n, width = len(features), target.shape[1]
    power = torch.stack([features[:, part].square().sum() / n for part in slices])
    spread, penalty = noisy.variance / power.clamp_min(1e-30), torch.full_like(power, torch.inf)
    live = [i for i in range(len(slices)) if float(power[i]) > 1e-20]
    if not live:
        return Scales(penalty, spread, power, float(target.square().mean()))
    kernels = torch.stack([features[:, slices[i]] @ features[:, slices[i]].T / power[i] for i in live]).double()
    goal = (target if width <= SKETCH else target @ rng.normal((width, SKETCH), target) / SKETCH**0.5).double()
    left_out = LeftOut(kernels, spread[live].double(), goal)
    found = minimize(left_out, [begin] * len(live), jac=True, method="L-BFGS-B", bounds=[BOUNDS] * len(live),
                     options={"maxiter": STEPS, "ftol": ENOUGH})
    held_back = torch.from_numpy(found.x).to(goal).exp()
    says = left_out.power(1 / (total * left_out.spread + held_back))
    penalty[live] = held_back.where(says > IDLE * says.sum(), torch.inf).to(penalty)
    return Scales(penalty, spread, power, math.exp(found.fun) / width)


@dataclass(frozen=True)
class LeftOut:
    """Squared error on an example left out, by the shortcut that needs no second fit, and what its noise adds.

    Called with the penalties' logarithms; gives the error's logarithm and its slope in them.
    """

    kernels: Tensor
    spread: Tensor
    goal: Tensor

    def __call__(self, logs: Any) -> tuple[float, Any]:
        penalty = torch.as_tensor(logs).to(self.goal).exp()
        n, weight = len(self.goal), 1 / (len(self.goal) * self.spread + penalty)
        whole = self._sum(weight)
        # The average is learned too: what was centred together with the example left out would tell of it.
        whole += CONSTANT * whole.diagonal().mean()
        whole.diagonal().add_(1.0)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(whole))
        dual, own = inverse @ self.goal, inverse.diagonal()[:, None]
        size = dual.square().sum(1, keepdim=True)
        error, ahead, added = (size / own.square()).mean(), dual / own.square() / n, torch.zeros_like(weight)
        if bool(self.spread.any()):
            noisy = self.spread * weight.square()
            added = (self.kernels @ dual * dual).sum((1, 2))
            error, ahead = error + (noisy * added).sum(), ahead + self._sum(noisy) @ dual
        slope = 2 * ((inverse * (size / own**3 / n).T) @ inverse - inverse @ ahead @ dual.T)
        each = self.kernels.flatten(1) @ slope.flatten() + 2 * self.spread * weight * added
        in_logs = -each * weight.square() * penalty
        return float(error.log()), (in_logs / error).numpy()

    def _sum(self, weight: Tensor) -> Tensor:
        return (weight @ self.kernels.flatten(1)).view_as(self.kernels[0])

    def power(self, weight: Tensor) -> Tensor:
        """How much of what is said of the sample each block says, by itself."""
        whole = self._sum(weight)
        whole.diagonal().add_(1.0)
        dual = torch.cholesky_solve(self.goal, torch.linalg.cholesky(whole))
        return (weight[:, None, None] * (self.kernels @ dual)).square().sum((1, 2))


def grown(
    features: Tensor, target: Tensor, held: Tensor, truth: Tensor, grow: bool, rng: Rng,
) -> tuple[float, float]:
    """By how much all penalties should grow for as many examples, and the squared error on held-out ones then.

    Where a target is not a line in the features, what is left of it is like noise that the features share: the more
    examples there are, the more a penalty must weigh against them.
    """
    width = target.shape[1]
    if width > SKETCH:
        way = rng.normal((width, SKETCH), target) / SKETCH**0.5
        target, truth = target @ way, truth @ way
    kernel, across = torch.zeros(len(features), len(features)).to(features), held @ features.T
    _add_half(kernel, features.T)
    best = 1.0, math.inf
    for growth in GROWTHS if grow else (1.0,):
        found = across @ _over(kernel / growth, target) / growth
        error = float((found - truth).square().sum(1).mean()) / width
        best = (growth, error) if error < best[1] else best
    return best


LADDER = tuple(10.0 ** (step / 2) for step in range(-10, 5))
"""Penalties, in units of the features' power, from which one is chosen for all features alike."""


def left_out(features: Tensor, target: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """What regressions say of each example that learned from all the rest, and of others what one does that learned
    from all, with the one penalty that says the former best. All from one spectrum."""
    centre, mean = features.mean(0), target.mean(0)
    features, goal = features - centre, (target - mean).double()
    kernel, across = torch.zeros(len(features), len(features)).to(features), (others - centre) @ features.T
    _add_half(kernel, features.T)
    power = kernel.diagonal().mean().clamp_min(1e-30)
    # The average is learned too, hence the constant. Only the lower half is read.
    values, ways = torch.linalg.eigh((kernel / power).double() + CONSTANT)
    turned, shares = ways.T @ goal, ways.square()
    best, dual, missed = math.inf, goal, goal
    for penalty in LADDER:
        weight = 1 / (values.clamp_min(0) + penalty)
        tried = ways @ (weight[:, None] * turned)
        far = tried / (shares @ weight)[:, None]
        error = float(far.square().mean())
        if error < best:
            best, dual, missed = error, tried, far
    return target - missed.to(target), mean + (across / power) @ dual.to(target)


Rows = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Line:
    """target = mean + (features - centre) @ weights."""

    weights: Tensor
    centre: Tensor
    mean: Tensor


def solved(rows: Rows, total: int, centre: Tensor, mean: Tensor) -> Line:
    """A ridge regression with penalty 1 on `total` rows of features and targets, given piece by piece.

    By the smaller of two matrices: with more rows than features, none of them is kept. `centre` and `mean` are guesses
    of the averages, so that what is summed up stays small.
    """
    pieces = _gathered((features - centre, target - mean) for features, target in rows)
    if total <= len(centre):
        features, target = (torch.cat(part) for part in zip(*pieces, strict=True))
        off, over = features.mean(0), target.mean(0)
        features -= off
        kernel = torch.zeros(total, total).to(centre)
        _add_half(kernel, features.T)
        return Line(features.T @ _over(kernel, target - over), centre + off, mean + over)
    square = torch.zeros(len(centre), len(centre)).to(centre)
    cross, off, over = torch.zeros(len(centre), len(mean)).to(centre), torch.zeros_like(centre), torch.zeros_like(mean)
    for features, target in pieces:
        _add_half(square, features)
        cross.addmm_(features.T, target)
        off += features.sum(0) / total
        over += target.sum(0) / total
    square.addr_(off, off, alpha=-total)
    cross.addr_(off, over, alpha=-total)
    return Line(_over(square, cross), centre + off, mean + over)


def _gathered(rows: Rows) -> Rows:
    """Fewer and larger pieces: each one costs a pass over the whole square."""
    kept: list[tuple[Tensor, Tensor]] = []
    for piece in rows:
        kept.append(piece)
        if sum(len(features) for features, _ in kept) >= STRIP:
            yield _stacked(kept)
            kept = []
    if kept:
        yield _stacked(kept)


def _stacked(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([features for features, _ in pieces]), torch.cat([target for _, target in pieces])


def _add_half(square: Tensor, rows: Tensor) -> None:
    """Add rows.T @ rows, on and below the diagonal only (and what lies beside it in a strip)."""
    for first in range(0, len(square), STRIP):
        square[first:, first : first + STRIP].addmm_(rows[:, first:].T, rows[:, first : first + STRIP])


def _over(square: Tensor, right: Tensor) -> Tensor:
    """(square + 1)^-1 right; of the matrix only what is on and below the diagonal is read, and it is used up.

    Sums in float32 are off by a share of the largest entries. Where that makes the matrix indefinite, its root is
    sought in float64, with no more added to the diagonal than such rounding, times ten until it is enough.
    """
    square.diagonal().add_(1.0)
    root, failed = torch.linalg.cholesky_ex(square)
    extra = float(square.diagonal().max()) * torch.finfo(square.dtype).eps
    while int(failed):
        if not math.isfinite(extra):
            raise ArithmeticError("the rehearsed updates hold NaN or infinite values: nothing can be learned from them")
        wide = square.double()
        wide.diagonal().add_(extra)
        root, failed = torch.linalg.cholesky_ex(wide)
        extra *= 10
    return torch.cholesky_solve(right, root.to(right))
