"""How likely an update is, given the sentences it may have been made of."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.parts.objectives import NEGLIGIBLE, ByProducts
from gradleak.attacks.scoring import Scoring
from gradleak.factored import Reference
from gradleak.lanes import Lanes
from gradleak.products import Products
from gradleak.types import Know, following

MANY = 16
"""Classes up to which all are tried."""


class Judge:
    """How much likelier the update is, given a sentence, than given nothing: in nats, by replaying it.

    Every parameter's gradient may have been scaled and carries noise, both unknown; what remains is the angle between
    what was sent and what the sentence gives: -n/2 log(1 - cos^2) for n numbers sent.
    """

    def __init__(self, door: Entrance) -> None:
        self.door = door
        sent = [(value != 0).sum() for value in door.seen.update.values()]
        self.objective = ByProducts(partial(_unlikely, torch.stack(sent)))
        self.reference = Reference(door.seen.update)
        self._lanes: Lanes | None = None

    def __call__(self, sentences: Sequence[Sentence], label: int | None) -> list[float]:
        """Of sentences of one length."""
        if not sentences:
            return []
        x, y, extra = self._laid(sentences, label)
        scores = Scoring(self._replay(x, y, extra), self.objective, self.reference)(x, y, extra)
        return [-score for score in scores.tolist()]

    def slope(self, sentence: Sentence, label: int | None) -> Tensor:
        """How much likelier, to first order, every token makes the update in every place (L x V)."""
        x, y, extra = self._laid([sentence], label)
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            value = self.objective(self._replay(x, y, extra)(x, y, extra), self.reference)
            (rise,) = torch.autograd.grad(-value.sum(), x)
        table = self.door.vocabulary.table.detach()
        gain = rise[0, 0] @ table.mT - (rise[0, 0] * x.detach()[0, 0]).sum(1, keepdim=True)
        return gain.masked_fill(~self.door.vocabulary.usable, -torch.inf)

    def first(self, sentences: Sequence[Sentence]) -> tuple[int | None, list[float]]:
        """The label (none for a language model, which labels itself) and the sentences' scores under it."""
        seen = self.door.seen
        if seen.next_word:
            return None, [self([each], None)[0] for each in sentences]
        told = seen.facts.get(Know.LABELS)
        labels = [int(told.flatten()[0])] if isinstance(told, Tensor) else list(range(min(seen.classes, MANY)))
        tried = {label: [self([each], label)[0] for each in sentences] for label in labels}
        best = max(tried, key=lambda label: max(tried[label]))
        return best, tried[best]

    def _laid(self, sentences: Sequence[Sentence], label: int | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Each sentence as a batch of its own, side by side."""
        batch, rows = self.door.told(list(sentences), torch.full((len(sentences),), label or 0))
        y = following(rows) if label is None else batch.y
        return batch.x[:, None], y[:, None], {name: value[:, None] for name, value in batch.extra.items()}

    def _replay(self, x: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Lanes:
        if self._lanes is None:
            twice = {name: torch.cat([value, value]) for name, value in extra.items()}
            self._lanes = Lanes(self.door.seen.replay, torch.cat([x, x]), torch.cat([y, y]), twice, factor=True)
        return self._lanes


def _unlikely(sent: Tensor, found: Products) -> Tensor:
    cosines = found.dots / (found.squares.clamp_min(1e-30) * found.sizes.clamp_min(1e-30)).sqrt()
    there = found.sizes > NEGLIGIBLE * found.sizes.sum()
    likely = torch.log1p(-cosines.double().clamp(0, 1).square().clamp_max(1 - 1e-12))
    return (sent * likely)[:, there].sum(1) / 2
