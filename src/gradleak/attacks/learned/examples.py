"""Made-up batches for rehearsals, out of public examples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Know, Observation, Public


def public(seen: Observation) -> Public:
    """The public examples, where they were granted."""
    fact = seen.facts.get(Know.PUBLIC_DATA)
    if not isinstance(fact, Public):
        raise Unsuited("it learns from public examples, which were not granted; add +public_data to the threat")
    return fact


@dataclass(frozen=True)
class Pictures:
    """Batches of `count` public images, one for each of them, in an order that an answer can be given in.

    Batch number r holds image r and others drawn once and for all; the numbers after the last image mean the same
    batches again, seen in a mirror: as good as more images where left and right are alike. All are given the same
    `labels`, or, without any, their own. Examples are ordered by label, equal ones by brightness: a client does not
    care, a regression must.
    """

    images: Tensor
    own: Tensor | None
    labels: Tensor | None
    count: int

    def __len__(self) -> int:
        return len(self.images)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images (R x count x ...) and labels (R x count) of the batches with these numbers."""
        turned, rows = rows >= len(self), rows % len(self)
        which = torch.stack([rows, *(self._partner(number)[rows] for number in range(1, self.count))], 1)
        x = self.images[which]
        x[turned] = x[turned].flip(-1)
        y = self._own[which] if self.labels is None else self.labels.expand(len(rows), self.count)
        if self.count == 1:
            return x, y
        if self.labels is None:
            order = (y.double() + x.flatten(2).mean(2).double().clamp(0, 0.999)).argsort(1)
            return x[torch.arange(len(x))[:, None], order], y.gather(1, order)
        x = x.clone()
        for label in sorted(set(self.labels.tolist())):
            mine = (self.labels == label).nonzero().flatten()
            order = mine[x[:, mine].flatten(2).mean(2).argsort(1)]
            x[:, mine] = x[torch.arange(len(x))[:, None], order]
        return x, y

    @property
    def _own(self) -> Tensor:
        if self.own is None:
            raise Unsuited("the public images have no labels of their own; let them be relabelled")
        return self.own

    def _partner(self, number: int) -> Tensor:
        return (Rng(0) / "partners" / number).permutation(len(self.images))
