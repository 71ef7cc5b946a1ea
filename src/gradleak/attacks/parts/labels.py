"""What the labels are: given, read off the last layer, or unknowns of the search."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.calculus import peek
from gradleak.errors import Unsuited
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.tap import Untapped
from gradleak.types import Batch, Guess, Know, Observation, Update


@dataclass(frozen=True)
class Read:
    """Labels for a batch with how sure each one is; `joint` leaves them to the search."""

    labels: Tensor
    confidence: Tensor
    joint: bool = False


class Labels(Protocol):
    """A way to come by labels, and the knowledge it takes."""

    @property
    def needs(self) -> frozenset[Know]: ...

    def read(self, seen: Observation, rng: Rng) -> Read: ...


def count(seen: Observation) -> int:
    """How many examples the update is made of."""
    value = seen.facts[Know.COUNT]
    assert isinstance(value, int)
    return value


@dataclass(frozen=True)
class Joint:
    """Soft labels, solved for together with the data."""

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        n = count(seen)
        return Read(torch.zeros(n, dtype=torch.long), torch.zeros(n), joint=True)


@dataclass(frozen=True)
class Said:
    """A language model's: the sentences themselves, so that there is nothing to read beforehand."""

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        n = count(seen)
        return Read(torch.zeros(n, dtype=torch.long), torch.ones(n))


@dataclass(frozen=True)
class Given:
    """As granted by the threat."""

    needs = frozenset({Know.COUNT, Know.LABELS})

    def read(self, seen: Observation, rng: Rng) -> Read:
        labels = seen.facts[Know.LABELS]
        assert isinstance(labels, Tensor)
        return Read(labels, torch.ones(len(labels)))


def head(seen: Observation) -> tuple[str, str | None]:
    """The last fully connected layer with an output a class: names of its weight and, if it has one, its bias."""
    last = [name for name, value in seen.params.items() if value.ndim == 2 and value.shape[0] == seen.classes]
    if not last:
        raise Unsuited(f"no final linear layer with {seen.classes} outputs to read labels from; use labels=joint")
    bias = last[-1].removesuffix("weight") + "bias"
    return last[-1], bias if bias in seen.params else None


@dataclass(frozen=True)
class Counted:
    """Which classes are in the batch and how often, from the last layer's gradient, whose row for class c is
    mean_i (p_ic - [y_i = c]) h_i.

    Replaying plain random inputs under every label teaches the attacker, row by row and through whatever the defense
    does to it, the typical feature h and prediction p; projecting the observed row on h (a matched filter, sturdy under
    noise) then gives the count of its class. With many classes only those with the lowest rows are considered. Where
    nothing is done to the head's gradient (found by trying two inputs) it is written down from what reaches the head:
    one forward pass instead of a replay a class.
    """

    needs = frozenset({Know.COUNT})

    replays: int = 64
    candidates: int = 100

    def read(self, seen: Observation, rng: Rng) -> Read:
        n = count(seen)
        observed = rows(seen, seen.update)
        likely = observed.sum(1).argsort()[: max(self.candidates, 2 * n)].sort().values
        feature, prediction = self._typical(seen, likely, n, rng)
        share = (observed[likely] * feature).sum(1) / feature.square().sum(1).clamp_min(1e-30)
        counts = torch.zeros(seen.classes).to(observed)
        counts[likely] = n * (prediction - share) * (feature.square().sum(1) > 0)
        read = apportion(counts, n)
        # Every example lowers its class's row. Where none that was sent is lowered, the update does not say which.
        return read if bool((share < 0).any()) else replace(read, confidence=torch.zeros_like(read.confidence))

    def _typical(self, seen: Observation, likely: Tensor, n: int, rng: Rng) -> tuple[Tensor, Tensor]:
        """Per likely class: the feature its row shows, and the share of it that is there without the class."""
        bare, features, predictions = _bare(seen, made_up(seen, min(n, 2), rng, 0)), [], []
        each = max(len(likely), n) if bare else len(likely)  # by the formula only examples take time
        for number in range(min(8, max(1, self.replays // each))):
            batch = made_up(seen, n, rng, number)
            absent, feature = _written(seen, batch, likely) if bare else self._replayed(seen, batch, likely)
            features.append(feature)
            predictions.append((absent * feature).sum(1) / feature.square().sum(1).clamp_min(1e-30))
        return torch.stack(features).mean(0), torch.stack(predictions).mean(0)

    @torch.no_grad()
    def _replayed(self, seen: Observation, batch: Batch, likely: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of likely classes that are not in the batch, and by how much they would be lower if all of it were."""
        each = [rows(seen, seen.replay(replace(batch, y=y.expand(len(batch.x)))))[likely] for y in likely]
        present = torch.stack([rows[i] for i, rows in enumerate(each)])
        absent = (torch.stack(each).sum(0) - present) / (len(likely) - 1)
        return absent, absent - present


@torch.no_grad()
def _reaching(seen: Observation, batch: Batch) -> tuple[Tensor, Tensor]:
    """What reaches the head, with a one for its bias, and what a softmax makes of it."""
    weight, bias = head(seen)
    feature = peek(seen.replay, batch, weight)[0]
    if bias is None:
        return feature, (feature @ seen.params[weight].mT).softmax(-1)
    scores = feature @ seen.params[weight].mT + seen.params[bias]
    return F.pad(feature, (0, 1), value=1.0), scores.softmax(-1)


def _written(seen: Observation, batch: Batch, likely: Tensor) -> tuple[Tensor, Tensor]:
    """As `_replayed`, by the formula."""
    feature, predicted = _reaching(seen, batch)
    absent = predicted[:, likely].mT @ feature / len(feature)
    return absent, feature.mean(0).expand_as(absent)


def _bare(seen: Observation, batch: Batch) -> bool:
    """Whether a replay's head rows are just what the formula says."""
    batch = replace(batch, y=torch.arange(len(batch.x), device=batch.x.device) % seen.classes)
    try:
        feature, predicted = _reaching(seen, batch)
    except Untapped:
        return False
    if feature.shape[:-1] != batch.y.shape:  # scored place by place, or in parts
        return False
    written = (predicted - F.one_hot(batch.y, seen.classes)).mT @ feature / len(feature)
    with torch.no_grad():
        told = rows(seen, seen.replay(batch))
    return bool((told - written).norm() <= 1e-3 * written.norm())


def made_up(seen: Observation, n: int, rng: Rng, number: int) -> Batch:
    """Sentences of random words, or grey images with some grain; their labels mean nothing."""
    if seen.vocabulary is not None:
        return probe(seen, n, rng / "words" / number)
    level = (rng / "level" / number).uniform((n, *[1] * len(seen.shape)), next(iter(seen.params.values())))
    x = (level + 0.2 * (rng / "grain" / number).normal((n, *seen.shape), level)).clamp(0, 1).detach()
    return Batch(x, torch.zeros(n, dtype=torch.long))


def rows(seen: Observation, update: Update) -> Tensor:
    """The head's gradient, a row a class, the bias as one more column."""
    weight, bias = head(seen)
    return update[weight] if bias is None else torch.cat([update[weight], update[bias][:, None]], 1)


def apportion(counts: Tensor, n: int) -> Read:
    """Whole numbers that sum to n (largest remainders), and how far each was from being otherwise."""
    share = counts.clamp_min(0)
    share = share * n / share.sum().clamp_min(1e-12)
    whole = share.floor().long()
    missing = n - int(whole.sum())
    order = (share - whole).argsort(descending=True)
    whole[order[:missing]] += 1
    labels = torch.repeat_interleave(torch.arange(len(whole), device=whole.device), whole)
    doubt = (share - whole).abs()
    return Read(labels, (1 - doubt[labels]).clamp(0, 1))


@dataclass(frozen=True)
class Known:
    """As granted where they are, else counted."""

    needs = frozenset({Know.COUNT})

    def read(self, seen: Observation, rng: Rng) -> Read:
        return Given().read(seen, rng) if Know.LABELS in seen.facts else Counted().read(seen, rng)


def handed(seen: Observation, start: Guess | None, read: Read) -> Read:
    """Those of an earlier answer where none were granted: it may hold other sentences, or know its images' better."""
    if start is None or read.joint or Know.LABELS in seen.facts:
        return read
    kept = start.state.get("labels", start.batch.y)
    if kept.shape != read.labels.shape:
        return read
    sure = start.notes.get("label_confidence", float(read.confidence.mean()))
    return replace(read, labels=kept, confidence=torch.full_like(read.confidence, sure))
