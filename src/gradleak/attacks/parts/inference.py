"""Labels of batches: the published rules beside those in `labels`, and all of them by name.

A row of the last layer's gradient is mean_i (p_ic - [y_i = c]) h_i: it is negative where class c is in the batch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.parts.evolution import evolved
from gradleak.attacks.parts.labels import Counted, Given, Joint, Known, Labels, Read, count, head, made_up
from gradleak.calculus import peek
from gradleak.rng import Rng
from gradleak.types import Batch, Know, Observation, Public

ROUNDS = 15
"""Of finding mean features and what the model makes of them."""


def _distinct(scores: Tensor, n: int) -> Read:
    """The n classes with the lowest scores, each once; where there are fewer classes than that, the lowest again.

    Only negative scores are evidence, and none is for the second time.
    """
    order = scores.argsort(stable=True)
    again = order.repeat(-(-n // len(order)))[:n]
    sure = (scores[again] < 0) & (torch.arange(n, device=again.device) < len(order))
    return Read(again, sure.float())


@dataclass(frozen=True)
class Lowest:
    """iDLG's rule: the classes whose rows have the lowest sums, each once."""

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        return _distinct(seen.update[head(seen)[0]].sum(1), count(seen))


@dataclass(frozen=True)
class Minimum:
    """GradInversion's rule: the classes whose rows have the lowest single entries, each once."""

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        return _distinct(seen.update[head(seen)[0]].amin(1), count(seen))


@dataclass(frozen=True)
class Evolved:
    """HF-GradInv's rule: which classes are there from the rows' signs, how often from the entries of sorted features
    that vary least among public images, in whole numbers by evolution.

    Without public images made-up grey ones with some grain stand in. Differs from the paper, unless `published`: the
    bias is a feature too, the one that does not vary at all; what the model predicts is taken into account, from the
    public images and then from the rows themselves, so that trained models and few classes can be read; classes whose
    rows the predictions have made positive are considered where there are few enough to know them.
    """

    images: int = 40
    entries: int = 20
    published: bool = False

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        n, (weight, bias) = count(seen), head(seen)
        features, gradient, weights = self._features(seen, weight, rng), seen.update[weight], seen.params[weight]
        if self.published:
            classes = _lowest_below(gradient.mean(1), torch.zeros_like(gradient[:, 0]), n)
            found = _steady(features, self.entries, -gradient[classes])
        else:
            if bias is not None:  # one more feature, always 1
                features = F.pad(features, (0, 1), value=1.0)
                gradient = torch.cat([gradient, seen.update[bias][:, None]], 1)
                weights = torch.cat([weights, seen.params[bias][:, None]], 1)
            classes, parts = _shares(gradient, features, weights.detach(), bias is not None, n)
            found = _steady(features, self.entries, parts) if bias is None else parts[:, -1]
        return _whole(classes, n * found, n, rng)

    def _features(self, seen: Observation, weight: str, rng: Rng) -> Tensor:
        if Know.PUBLIC_DATA in seen.facts:
            public = seen.facts[Know.PUBLIC_DATA]
            assert isinstance(public, Public)
            x = public.readings[: self.images].to(next(iter(seen.params.values())))
        else:
            x = made_up(seen, self.images, rng, 0).x
        return peek(seen.replay, Batch(x, torch.zeros(len(x), dtype=torch.long, device=x.device)), weight)[0].flatten(1)


def _lowest_below(rows: Tensor, bar: Tensor, most: int) -> Tensor:
    """The classes whose rows are below their bar, at most so many; the one nearest to it where none is."""
    gap = rows - bar
    return gap.argsort(stable=True)[: max(1, min(most, int((gap < 0).sum())))].sort().values


def _steady(features: Tensor, entries: int, rows: Tensor) -> Tensor:
    """How much of a typical feature is in each row, by the sorted entries that vary least among the features."""
    ordered = features.sort(1).values
    mean = ordered.mean(0)
    spread = torch.where(mean > 1e-6 * mean.amax(), ordered.std(0) / mean, torch.inf)
    steady = spread.argsort(stable=True)[: min(entries, int(spread.isfinite().sum()))]
    typical = mean[steady]
    return rows.sort(1).values[:, steady] @ typical / typical.square().sum().clamp_min(1e-30)


def _shares(gradient: Tensor, features: Tensor, weights: Tensor, even: bool, n: int) -> tuple[Tensor, Tensor]:
    """Which classes are there, and for each its share of the batch times its examples' mean feature.

    The shares X solve gradient = (P^T - 1) X, P[c, k] being what the model predicts of k for an example of c: at first
    as for the public images, then as for the mean feature found. What the equations leave open is pinned by the public
    images' mean. `even`: the last feature is always 1, and measures shares exactly.
    """
    typical, predicted = features.mean(0), (features @ weights.mT).softmax(-1)
    measure = F.one_hot(torch.tensor(len(typical) - 1), len(typical)).to(typical) if even else (
        torch.ones_like(typical) / typical.sum())
    bar = torch.zeros_like(predicted[0])
    if len(bar) <= len(features):
        bar = (predicted.mean(0) - 0.5 / n - predicted.std(0) / n**0.5).clamp_min(0)
    classes = _lowest_below(gradient @ measure, bar, n)
    mix = predicted.mean(0)[classes].expand(len(classes), -1)
    whole = torch.cat([gradient[classes], typical[None]])
    for _ in range(ROUNDS):
        system = torch.cat([mix.mT - torch.eye(len(classes)).to(mix), torch.ones_like(mix[:1])])
        parts = torch.linalg.pinv(system) @ whole
        share = (parts @ measure).clamp_min(1e-4)[:, None]
        if bool((features >= 0).all()):
            parts = parts.clamp_min(0)
        kept = share * n / (share * n + 1)
        mean = kept * parts / share + (1 - kept) * typical
        mix = (mix + (mean @ weights.mT).softmax(-1)[:, classes]) / 2
    return classes, parts


def _whole(classes: Tensor, amounts: Tensor, n: int, rng: Rng) -> Read:
    """Whole numbers for amounts, and how sure each of the labels is: less where the amount is far from its number."""
    counts = evolved(amounts.clamp_min(0), n, rng / "evolution")
    doubt = (amounts - counts).abs()
    return Read(classes.repeat_interleave(counts), (1 - doubt).clamp(0, 1).repeat_interleave(counts))


def ways(name: str) -> Labels:
    """By name: joint, given, known (given where granted, else counted), counted, lowest, minimum, evolved."""
    found: dict[str, Labels] = {"joint": Joint(), "given": Given(), "known": Known(), "counted": Counted(),
                                "lowest": Lowest(), "minimum": Minimum(), "evolved": Evolved(),
                                "evolved_published": Evolved(published=True)}
    return found[name]
