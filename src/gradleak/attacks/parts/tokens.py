"""Text as the search sees it: a word embedding for every place inside a sentence's frame."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.parts.lengths import lengths
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Know, Observation, Vocabulary

if TYPE_CHECKING:
    from gradleak.attacks.parts.masks import Masks
    from gradleak.attacks.parts.places import Places


SHARP = 40.0
"""How much nearness tells where a place is asked for its word: a word's own embedding then says hardly any other."""

Listing = Callable[[Observation, Tensor], Tensor]
"""Per token whether it may stand in sentences of such lengths, as far as an observation tells."""


@dataclass(frozen=True)
class Embeddings:
    """Word embeddings; what opens and closes a sentence is known and stays. `scaled` starts them at the length that
    words have, else they are standard normal. With `placed` each is read both as the word it is nearest to and as a
    word that belongs somewhere else. Where lengths of several are not granted, `spare` places are empty at first. A
    `listing` narrows the words down before the search, which also starts at some of them."""

    scaled: bool = True
    placed: bool = False
    listing: Listing | None = None
    spare: int = 0

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> "TokenRoom":
        if seen.vocabulary is None:
            raise Unsuited("this attack reads text, and the data are images; use an image attack, such as ig")
        if there is None:
            there = _there(seen, count, self.spare)
        room = TokenRoom(seen, seen.vocabulary, count, self.scaled, there, self.listing)
        if self.placed:
            from gradleak.attacks.parts.places import places

            room.places = places(seen, room)
        return room


def _there(seen: Observation, count: int, spare: int = 0) -> Tensor:
    """Per sentence and place, whether a token is taken to be there."""
    each = lengths(seen, count)
    longest = int(each.max())
    if Know.LENGTHS not in seen.facts and count > 1:
        longest = min(longest + spare, max(longest, seen.shape[0]))
    return torch.arange(longest) < each[:, None]


class Nearest:
    """The word whose embedding points most nearly the same way; one table, measured once, for all questions."""

    def __init__(self, vocabulary: Vocabulary, allowed: Tensor) -> None:
        most = int(allowed.sum()) > len(allowed) // 2
        # A large table is used as it is, not copied: what may not be said is ruled out afterwards.
        self.tokens = torch.arange(len(allowed)) if most else allowed.nonzero().flatten()
        self.table = vocabulary.table if most else vocabulary.table[self.tokens]
        self.shrink = 1 / torch.linalg.vector_norm(self.table, dim=1).clamp_min(1e-12)
        self.never = ~allowed[self.tokens]
        self.allowed = int(allowed.sum())
        self.piece, self._spelt = vocabulary.piece, dict[tuple[str, ...], Tensor]()

    def __call__(self, x: Tensor) -> Tensor:
        return self.several(x, 1)[..., 0]

    def spelt(self, words: Sequence[str]) -> Tensor:
        """Of some words those that are tokens which may be said; a mark before a word, for a space, does not count."""
        if tuple(words) not in self._spelt:
            wanted, kept = set(words), self.tokens[~self.never].tolist()
            found = [token for token in kept if self.piece(token).lstrip("\u0120\u2581") in wanted]
            self._spelt[tuple(words)] = torch.tensor(found, dtype=torch.long)
        return self._spelt[tuple(words)]

    def several(self, x: Tensor, many: int) -> Tensor:
        """The nearest words, one more axis of them."""
        return self._top(x, self.shrink, many)

    def steepest(self, slope: Tensor, many: int) -> Tensor:
        """The words that lower something most, as far as its slope in the embedding can tell."""
        return self._top(-slope, torch.ones_like(self.shrink), many)

    def some(self, x: Tensor) -> Tensor:
        """Words at random: the embeddings of those that random vectors are nearest to."""
        return self.table[torch.searchsorted(self.tokens, self(x))]

    def _top(self, x: Tensor, weights: Tensor, many: int) -> Tensor:
        flat, many = x.detach().reshape(-1, x.shape[-1]), min(many, self.allowed)
        found = [((part @ self.table.mT) * weights).masked_fill(self.never, -torch.inf).topk(many, -1).indices
                 for part in torch.split(flat, 512)]
        return self.tokens[torch.cat(found)].reshape(*x.shape[:-1], many)


def allowed(seen: Observation, vocabulary: Vocabulary) -> Tensor:
    """Which tokens can be in the batch. Where the word embeddings are trained, only rows with a gradient can."""
    for name, value in seen.params.items():
        if value.shape == vocabulary.table.shape and name in seen.update:
            touched = seen.update[name].abs().sum(1) > 0
            if int((touched & vocabulary.usable).sum()) and float(touched.float().mean()) < 0.5:
                return vocabulary.usable & touched
    return vocabulary.usable


def embed(words: Vocabulary, ids: Tensor) -> Tensor:
    """Rows of the table; where there is no token, the padding's, or nothing where there is no padding."""
    x = words.table[torch.where(ids == NOTHING, 0 if words.pad is None else words.pad, ids)]
    return x * (ids != NOTHING)[..., None] if words.pad is None else x


def looks_up(seen: Observation, words: Vocabulary) -> bool:
    """Whether the model's own table is trained, so that replays must know which rows a sentence is made of."""
    return any(value.shape == words.table.shape for value in seen.params.values())


def _granted_masks(seen: Observation, length: int) -> dict[str, Tensor]:
    """What the client dropped, where that was granted; without it replays drop nothing."""
    granted = seen.facts.get(Know.DROPOUT, {})
    assert isinstance(granted, dict)
    fits = all(value.shape[1] == length for value in granted.values() if value.ndim == 3)
    return dict(granted) if fits else {}


class TokenRoom:
    """Sentences that fill the places `there` (n x L), by default as many as are granted or estimated."""

    def __init__(
        self, seen: Observation, vocabulary: Vocabulary, count: int, scaled: bool, there: Tensor | None = None,
        listing: Listing | None = None,
    ) -> None:
        self.vocabulary, self.table, self.scaled, self.listed = vocabulary, vocabulary.table, scaled, bool(listing)
        self.mask = _there(seen, count) if there is None else there
        self.lengths = self.mask.sum(1)
        self.masks: Masks | None = None
        self.places: Places | None = None
        self.shape = (*self.mask.shape, self.table.shape[1])
        self.tokens, self.unknowns = int(self.lengths.sum()), math.prod(self.shape)
        possible = allowed(seen, vocabulary)
        self.nearest = Nearest(vocabulary, possible & listing(seen, self.lengths) if listing else possible)
        self.norm = self.table[vocabulary.usable].norm(dim=1).mean()
        self.looks_up = looks_up(seen, vocabulary)
        self.dropped = _granted_masks(seen, self.shape[1])
        self.frame = self._frame(torch.arange(self.shape[1]))
        self.inside = self.mask & (self.frame == NOTHING)

    def _frame(self, place: Tensor) -> Tensor:
        """Per place the token that is known to be there, NOTHING elsewhere."""
        ids = torch.full(self.shape[:2], NOTHING)
        opening, closing = self.vocabulary.opening, self.vocabulary.closing
        for offset, token in enumerate(opening):
            ids[:, offset] = token
        for offset, token in enumerate(closing):
            ids = torch.where(place == self.lengths[:, None] - len(closing) + offset, token, ids)
        return ids

    def begin(self, lanes: int, rng: Rng) -> Tensor:
        x = rng.normal((lanes, *self.shape), self.table)
        if self.listed:
            x = self.nearest.some(x)
        elif self.scaled:
            x = x * (self.norm / x.norm(dim=-1, keepdim=True))
        x = self.settle(x).flatten(1)
        return x if self.masks is None else torch.cat([x, self.masks.begin(lanes, rng, x)], 1)

    @property
    def beside(self) -> int:
        return 0 if self.masks is None else self.masks.size

    def decode(self, unknowns: Tensor) -> Tensor:
        return unknowns.reshape(-1, *self.shape)

    def encode(self, data: Tensor) -> Tensor:
        return data.flatten(1)

    def embed(self, ids: Tensor) -> Tensor:
        return embed(self.vocabulary, ids)

    def settle(self, data: Tensor) -> Tensor:
        return torch.where(self.inside[..., None], data, self.embed(self.frame))

    def extra(self, lanes: int, beside: Tensor | None = None) -> dict[str, Tensor]:
        whole = {"mask": self.mask.long(), **self.dropped}
        learnt = {} if self.masks is None or beside is None else self.masks.extra(beside)
        return {**{name: value.expand(lanes, *value.shape) for name, value in whole.items()}, **learnt}

    def kept(self, extra: Mapping[str, Tensor]) -> Tensor | None:
        return None if self.masks is None else self.masks.flat(extra)

    def readings(self, data: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        """Stacked candidates as words, with what was dropped; where places are read too, first as they stand and then,
        as many again, in their places."""
        ids = self.read(data)
        dropped = beside if self.masks is None else self.masks.trusted(beside)
        if self.places is None:
            return ids, dropped
        found = [self.places(one) for one in data]
        moved = torch.stack([self.reordered(row, orders) for row, (_, orders) in zip(dropped, found, strict=True)])
        return torch.cat([ids, torch.stack([words for words, _ in found])]), torch.cat([dropped, moved])

    def reordered(self, beside: Tensor, orders: Tensor) -> Tensor:
        """What was dropped of one batch, after the tokens of each sentence took other places."""
        if self.masks is not None:
            for which, order in enumerate(orders):
                beside = self.masks.reordered(beside, which, order)
        return beside

    def read(self, data: Tensor) -> Tensor:
        """The nearest words, with the frame around them."""
        return torch.where(self.inside, self.nearest(data), self.frame)

    def said(self, data: Tensor) -> Tensor:
        """A language model's labels for stacked candidates (R x B x L x words): at each place the word that follows,
        as softly as its embedding tells it. The search can then differentiate in what is said as in what is read."""
        near = (F.normalize(data, dim=-1) @ F.normalize(self.table, dim=1).mT * SHARP).masked_fill(
            ~self.vocabulary.usable, -torch.inf).softmax(-1)
        known = F.one_hot(self.frame.clamp_min(0), len(self.table)).to(near)
        near = torch.where((self.frame == NOTHING)[..., None], near, known) * self.mask[..., None]
        return F.pad(near[..., 1:, :], (0, 0, 0, 1))

    def told(self, ids: Tensor, labels: Tensor, beside: Tensor | None = None) -> Batch:
        """Stacked rows of tokens as batches to replay."""
        looked_up = {"ids": ids.clamp_min(0)} if self.looks_up else {}
        there = {"mask": (ids != NOTHING).long()}
        return Batch(self.embed(ids), labels, {**self.extra(len(ids), beside), **there, **looked_up})

    def answer(self, data: Tensor, labels: Tensor) -> tuple[Batch, Tensor]:
        ids = self.read(data)
        return self.told(ids, labels), ids
