"""Words read together with their places.

Attention does not see order: words in another order, each with the difference of two places added to its embedding,
give the same update. So a search over embeddings ends in any order; but what its embeddings hold beside a word tells
the place it belongs to.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.asking import reached
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.calculus import layout
from gradleak.lanes import REFUSALS
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.types import Observation

NEARBY = 20
"""Words considered for each embedding."""


class Places:
    """Compares what reaches the model's first layer with what each word would send there from each place."""

    def __init__(self, seen: Observation, room: TokenRoom, layer: str) -> None:
        self.seen, self.room, self.layer = seen, room, layer

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """One candidate batch (n x L x d) as tokens; and, per place, the place its embedding was found at."""
        ids, orders = self.room.frame.clone(), torch.arange(x.shape[1]).repeat(len(x), 1)
        arrived = reached(self.seen, x, self.layer)[0]
        for which, inside in enumerate(self.room.inside):
            places = inside.nonzero().flatten()
            if len(places):
                words, fits = self._fits(x[which, places], arrived[which, places], places)
                here, there = _assigned(fits.amax(-1))
                ids[which, places[there]] = words[fits[here, there].argmax(-1)]
                orders[which, places[there]] = places[here]
        return ids, orders

    def _fits(self, x: Tensor, arrived: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Words, and for every embedding, place and word how well they agree."""
        words = torch.unique(self.room.nearest.several(x, NEARBY))
        rows = self.room.embed(words[:, None].expand(-1, self.room.shape[1]))
        sent = reached(self.seen, rows, self.layer)[0][:, places]
        middle = sent.mean((0, 1))
        fits = F.normalize(arrived - middle, dim=-1) @ F.normalize(sent - middle, dim=-1).flatten(0, 1).mT
        return words, fits.view(len(x), len(words), len(places)).mT


def _assigned(fits: Tensor) -> tuple[Tensor, Tensor]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(-torch.nan_to_num(fits, nan=-1.0).cpu().numpy())
    return torch.from_numpy(rows), torch.from_numpy(columns)


def places(seen: Observation, room: TokenRoom) -> Places | None:
    """None where the model's first layer cannot be told."""
    try:
        groups = layout(seen.replay, probe(seen, 1, Rng(0)))
        reader = Places(seen, room, groups[0][0].name)
        reader(room.embed(room.frame))
    except (*REFUSALS, IndexError):
        return None
    return reader
