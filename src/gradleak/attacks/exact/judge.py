"""How likely an update is, given the sentences it may have been made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.completion import pruned
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.remainder import remainder
from gradleak.attacks.parts.objectives import ByProducts, Objective, cosines
from gradleak.attacks.parts.sampled import SAMPLE, Sampled
from gradleak.attacks.scoring import Scoring
from gradleak.calculus import undefended
from gradleak.factored import Reference
from gradleak.lanes import Lanes
from gradleak.products import Products
from gradleak.types import NO_LABEL, Batch, Know, Update, following

MANY = 16
"""Classes up to which all are tried."""

ENTIRE = 1e-5
"""The share of what was sent that the truth may leave unexplained, on average over the layers: one wrong word leaves
far more, rounding far less."""

SURE, TELLING = 3.0, 8.0
"""Standard deviations by which noise alone may seem to be more, and that a word must be worth on average for a missing
one to be seen."""

STRIDES, STRIDE = 30, 0.6
"""How often vectors that need be no words are moved, and how far each time, beside the spread of words."""


@dataclass(frozen=True)
class Company:
    """The sentences of a batch, and their labels (none for a language model, which labels itself)."""

    sentences: tuple[Sentence, ...]
    labels: tuple[int, ...] | None

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Every token with its place, sentence after sentence."""
        return [(token, place) for sentence in self.sentences for place, token in enumerate(sentence)]

    def but(self, which: int, sentence: Sentence) -> "Company":
        """With another sentence in one's place."""
        return replace(self, sentences=(*self.sentences[:which], sentence, *self.sentences[which + 1 :]))

    def without(self, which: int) -> "Company":
        labels = None if self.labels is None else self.labels[:which] + self.labels[which + 1 :]
        return Company(self.sentences[:which] + self.sentences[which + 1 :], labels)


class Single(Protocol):
    """Says how likely sentences are, each alone."""

    def __call__(self, sentences: Sequence[Sentence], label: int | None) -> list[float]: ...

    def slope(self, sentence: Sentence, label: int | None) -> Tensor: ...

    def first(self, sentence: Sentence) -> tuple[int | None, float]: ...

    def entire(self, score: float) -> bool: ...


class Judge:
    """How much likelier the update is, given sentences, than given nothing: in nats, by replaying them.

    Every parameter's gradient may have been scaled and carries noise, both unknown; what remains is the angle between
    what was sent and what the sentence gives: -n/2 log(1 - cos^2) for n numbers sent. So sentences are replayed as they
    are before a defense, known or not. `most` is what only sentences that leave nothing unexplained can reach.
    """

    def __init__(self, door: Entrance) -> None:
        self.door = door
        counts = [(value != 0).sum() for value in door.seen.update.values()]
        self.objective: Objective = ByProducts(partial(_unlikely, torch.stack(counts)))
        self.gaps = any(pruned(value) for value in door.seen.update.values() if value.ndim > 1)
        if self.gaps:
            self.objective = sent(door.seen.update)
            counts = [count.clamp_max(SAMPLE) for count in counts]
        self.reference = Reference(door.seen.update)
        self.most = -math.log(ENTIRE) / 2 * float(sum(counts))
        self._scoring: Scoring | None = None

    def __call__(self, sentences: Sequence[Sentence], label: int | None) -> list[float]:
        """Of sentences, each alone."""
        return self.companies([alone(each, label) for each in sentences])

    def given(self, company: Company) -> Update:
        """What a client with these sentences would have sent, were it not for a defense."""
        x, y, extra = self._together(company, max(map(len, company.sentences)))
        with torch.no_grad():
            return undefended(self.door.seen.replay)(Batch(x, y, extra))

    def entire(self, score: float) -> bool:
        """Whether hardly anything is left to explain, so that no other sentences need be tried."""
        return score > self.most

    def quiet(self, company: Company, score: float) -> bool:
        """Whether what a batch leaves is noise alone, and its words count so much that others would leave more: then no
        other sentences need be tried."""
        if self.gaps or self.door.altered:  # rounding leaves what looks like words
            return False
        x, y, extra = self._together(company, max(map(len, company.sentences)))
        left = remainder(self.door, Batch(x, y, extra), self.given(company))
        return left.more < SURE * left.chance and score > TELLING * left.chance * len(company.keys)

    def slope(self, sentence: Sentence, label: int | None) -> Tensor:
        """How much likelier, to first order, every token makes the update in every place (L x V)."""
        return self.slopes(alone(sentence, label))[0]

    def first(self, sentence: Sentence) -> tuple[int | None, float]:
        """The label that is likeliest (none for a language model, which labels itself), and how likely it is so."""
        seen = self.door.seen
        if seen.next_word:
            return None, self([sentence], None)[0]
        told = seen.facts.get(Know.LABELS)
        labels = [int(told.flatten()[0])] if isinstance(told, Tensor) else list(range(min(seen.classes, MANY)))
        scores = self.companies([alone(sentence, label) for label in labels])
        return max(zip(labels, scores, strict=True), key=lambda one: one[1])

    def near(self, company: Company) -> Tensor:
        """How near each token, but the one that stands there, is to where every place goes that need hold no word (n x
        L x V): all vectors inside the frames move at once, to where the update is likelier. Words that slopes do not
        know of come near so."""
        x, y, extra = self._together(company, max(map(len, company.sentences)))
        words, free = self.door.vocabulary, torch.zeros(x.shape[:2]).to(x)
        for row, sentence in enumerate(company.sentences):
            free[row, len(words.opening) : len(sentence) - len(words.closing)] = 1
        extra = {name: value[None] for name, value in extra.items()}
        table = words.table.detach().to(x)
        x = x.detach().clone().requires_grad_()
        optimiser = torch.optim.Adam([x], lr=STRIDE * float(table[words.usable].std()))
        for _ in range(STRIDES):
            x.grad = -self._uphill(x[None], y[None], extra)[0] * free[..., None]
            optimiser.step()
        near = -torch.cdist(x.detach(), table[None]).masked_fill(~words.usable, torch.inf)
        for row, sentence in enumerate(company.sentences):
            near[row, range(len(sentence)), list(sentence)] = -torch.inf
        return near

    def _uphill(self, x: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
        """The slope of how likely one candidate (1 x n x L x d) is."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            value = self.objective(self._scored(x, y, extra).replay(x, y, extra), self.reference)
            (rise,) = torch.autograd.grad(-value.sum(), x)
        return rise

    def _rise(self, x: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
        """How much likelier each token of the vocabulary would make one candidate (1 x n x L x d), to first order."""
        rise = self._uphill(x, y, extra)
        gain = rise[0] @ self.door.vocabulary.table.detach().mT - (rise[0] * x.detach()[0]).sum(-1, keepdim=True)
        return gain.masked_fill(~self.door.vocabulary.usable, -torch.inf)

    def companies(self, many: Sequence[Company]) -> list[float]:
        """Of whole batches, each of as many sentences."""
        if not many:
            return []
        longest = max(len(sentence) for each in many for sentence in each.sentences)
        laid = [self._together(each, longest) for each in many]
        x, y = torch.stack([each[0] for each in laid]), torch.stack([each[1] for each in laid])
        extra = {name: torch.stack([each[2][name] for each in laid]) for name in laid[0][2]}
        scores = self._scored(x[:1], y[:1], _first(extra))(x, y, extra)
        return [-score for score in scores.tolist()]

    def instead(self, company: Company, which: int, rivals: Sequence[Sentence]) -> list[float]:
        """Of a batch with each rival in a sentence's place: only rivals are replayed."""
        if not rivals:
            return []
        x, y, extra = self._together(company, max(map(len, [*company.sentences, *rivals])))
        if "ids" in extra or company.labels is None:  # what is looked up, or comes next, changes with the words
            return self.companies([company.but(which, rival) for rival in rivals])
        others = x[which].repeat(len(rivals), 1, 1)
        mask = torch.zeros(others.shape[:2]).to(extra["mask"])
        for row, rival in enumerate(rivals):
            others[row, : len(rival)] = self.door.vocabulary.table[list(rival)].detach().to(x)
            mask[row, : len(rival)] = 1
        scoring = self._scored(x[None], y[None], {name: value[None] for name, value in extra.items()})
        return [-score for score in scoring.changed(x, y, extra, which, others, {"mask": mask}).tolist()]

    def slopes(self, company: Company) -> Tensor:
        """As `slope`, for every sentence (n x L x V)."""
        x, y, extra = self._together(company, max(map(len, company.sentences)))
        return self._rise(x[None], y[None], {name: value[None] for name, value in extra.items()})

    def _together(self, company: Company, longest: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        labels = torch.tensor(company.labels or [0] * len(company.sentences))
        batch, rows = self.door.told(list(company.sentences), labels)
        y = following(rows) if company.labels is None else batch.y
        more = longest - rows.shape[1]
        extra = {name: F.pad(value, (0, more)) for name, value in batch.extra.items()}
        return F.pad(batch.x, (0, 0, 0, more)), y if y.ndim == 1 else F.pad(y, (0, more), value=NO_LABEL), extra

    def _scored(self, x: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Scoring:
        """Made when first asked, and tried on such a candidate."""
        if self._scoring is None:
            twice = {name: torch.cat([value, value]) for name, value in extra.items()}
            lanes = Lanes(undefended(self.door.seen.replay), torch.cat([x, x]), torch.cat([y, y]), twice, factor=True)
            self._scoring = Scoring(lanes, self.objective, self.reference)
        return self._scoring


def sent(update: Update) -> Sampled:
    """How unlikely where entries were left out, which anyone sees: only those that were sent are compared, of each
    parameter a sample of them. The truth then agrees entirely."""
    counts = [(value != 0).sum().clamp_max(SAMPLE) for value in update.values() if bool(value.any())]
    return Sampled(update, partial(_unlikely, torch.stack(counts)), close=True)


def alone(sentence: Sentence, label: int | None = None) -> Company:
    """A company of one."""
    return Company((sentence,), None if label is None else (label,))


def _first(extra: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[:1] for name, value in extra.items()}


def _unlikely(sent: Tensor, found: Products) -> Tensor:
    angles, there = cosines(found)
    likely = torch.log1p(-angles.double().clamp(0, 1).square().clamp_max(1 - 1e-12))
    return (sent[there] * likely).sum(1) / 2
