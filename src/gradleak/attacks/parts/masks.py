"""What the client dropped, as unknowns of the search."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gradleak.attacks.parts.tokens import Embeddings, TokenRoom
from gradleak.rng import Rng
from gradleak.types import Batch, Know, Observation, Site

NAME = "drop."
"""How a batch's extras name the masks, by the place of their site in the order of calls."""


@dataclass(frozen=True)
class WithMasks:
    """Word embeddings, and beside them a number in [0, 1] for everything the client may have dropped.

    They begin at their mean, or `drawn` as the client draws; `share` is the share taken to be dropped, by default that
    of the model. An answer's masks go only `trust` of the way from their mean: what was learnt with words that are not
    yet the right ones fits those too well. Those that are not `learnt` stay as they begin.
    """

    words: Embeddings = field(default_factory=Embeddings)
    begin: Literal["mean", "drawn"] = "mean"
    share: float | None = None
    trust: float = 0.5
    learnt: bool = True

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> TokenRoom:
        room = self.words.open(seen, count, there)
        if Know.DROPOUT in seen.facts:
            return room
        found = masks(seen, room, self)
        if self.learnt:
            room.masks = found
        elif found is not None:
            room.dropped = {name: value[0] for name, value in found.extra(found.begin(1, Rng(0), room.table)).items()}
        return room


Dropout = Literal["averaged", "drawn", "learnt"]
"""What a search takes to be dropped where it was not told: nothing, the mean; what the client might have drawn; or
that, too, is searched for."""


def dropping(words: Embeddings, dropout: Dropout) -> "Embeddings | WithMasks":
    """Word embeddings where the client may drop."""
    if dropout == "averaged":
        return words
    return WithMasks(words, "drawn" if dropout == "drawn" else "mean", learnt=dropout == "learnt")


def masks(seen: Observation, room: TokenRoom, plan: WithMasks) -> "Masks | None":
    """One for each site that has a mask a sentence; which of its axes count tokens is told by a shorter batch."""
    length = room.shape[1]
    sites, shorter = (seen.sites(_blank(room, tokens)) for tokens in (length, length - 1))
    if len(sites) != len(shorter):
        return None
    found = {f"{NAME}{number}": (site, _grown(site, other))
             for number, (site, other) in enumerate(zip(sites, shorter, strict=True))
             if site.shape[0] == room.shape[0] and len(site.shape) == len(other.shape) and site.share < 1}
    return Masks(found, plan) if found else None


def _grown(site: Site, other: Site) -> tuple[int, ...]:
    return tuple(axis for axis, (a, b) in enumerate(zip(site.shape, other.shape, strict=True)) if a != b)


def _blank(room: TokenRoom, tokens: int) -> Batch:
    ids = room.frame[:, :tokens]
    return Batch(room.embed(ids), torch.zeros(len(ids), dtype=torch.long), {"mask": torch.ones_like(ids)})


class Masks:
    """The masks of a batch: flat, one row a lane."""

    def __init__(self, sites: Mapping[str, tuple[Site, tuple[int, ...]]], plan: WithMasks) -> None:
        self.sites, self.plan = dict(sites), plan
        self.sizes = [torch.Size(site.shape).numel() for site, _ in self.sites.values()]
        self.size = sum(self.sizes)
        share = [(1 - (plan.share if plan.share is not None else site.share)) for site, _ in self.sites.values()]
        self.mean = torch.cat([torch.full((size,), keep) for size, keep in zip(self.sizes, share, strict=True)])

    @property
    def axes(self) -> dict[str, tuple[int, ...]]:
        """By name, those that count tokens."""
        return {name: axes for name, (_, axes) in self.sites.items()}

    def begin(self, lanes: int, rng: Rng, like: Tensor) -> Tensor:
        mean = self.mean.to(like).expand(lanes, -1)
        if self.plan.begin == "mean":
            return mean.clone()
        return ((rng / "masks").uniform(mean.shape, like) < mean).to(like)

    def trusted(self, flat: Tensor) -> Tensor:
        """As far as they are believed."""
        return torch.lerp(self.mean.to(flat).expand_as(flat), flat, self.plan.trust)

    def extra(self, flat: Tensor) -> dict[str, Tensor]:
        """By name, stacked as candidates are."""
        parts = torch.split(flat, self.sizes, -1)
        return {name: part.reshape(*flat.shape[:-1], *site.shape)
                for (name, (site, _)), part in zip(self.sites.items(), parts, strict=True)}

    def flat(self, extra: Mapping[str, Tensor]) -> Tensor | None:
        """Those of one batch, if it names all of them."""
        if any(name not in extra or extra[name].shape != site.shape for name, (site, _) in self.sites.items()):
            return None
        return torch.cat([extra[name].flatten() for name in self.sites])

    def moved(self, flat: Tensor, which: int, orders: Tensor) -> dict[str, Tensor]:
        """Those of one sentence (of one lane) when its tokens go elsewhere, for each of K orders of its places."""
        found = {}
        for name, whole in self.extra(flat).items():
            mask = whole[which].expand(len(orders), *whole.shape[1:])
            for axis in self.sites[name][1]:
                where = orders.view(len(orders), *[-1 if a == axis else 1 for a in range(1, mask.ndim)])
                mask = mask.gather(axis, where.expand_as(mask))
            found[name] = mask
        return found

    def reordered(self, flat: Tensor, which: int, order: Tensor) -> Tensor:
        """All of them, after the tokens of one sentence went elsewhere."""
        parts = self.extra(flat.clone())
        for name, mask in self.moved(flat, which, order[None]).items():
            parts[name][which] = mask[0]
        return torch.cat([part.flatten() for part in parts.values()])
