"""Made-up sentences for rehearsals: stretches of public text, or tokens drawn by how often they occur."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.examples import public
from gradleak.attacks.parts.labels import Known, count
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Know, Observation, Vocabulary, following


@dataclass(frozen=True)
class Text:
    """Words in the order in which they were written, end to end."""

    tokens: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def draw(self, rows: int, length: int, rng: Rng) -> Tensor:
        """Stretches that begin anywhere; behind the last word the first comes again."""
        begin = torch.randint(len(self.tokens), (rows, 1), generator=rng.torch())
        return self.tokens[(begin + torch.arange(length)) % len(self.tokens)]

    @property
    def shares(self) -> Tensor:
        return torch.bincount(self.tokens).float()


@dataclass(frozen=True)
class Frequencies:
    """Words drawn one by one: no text is needed, and there is no end of them."""

    shares: Tensor

    def __len__(self) -> int:
        return 1 << 20

    def draw(self, rows: int, length: int, rng: Rng) -> Tensor:
        ends = self.shares.double().cumsum(0)
        at = torch.rand(rows * length, generator=rng.torch(), dtype=torch.float64) * ends[-1]
        return torch.searchsorted(ends, at, right=True).clamp_max(len(ends) - 1).view(rows, length)


def text(seen: Observation, words: Vocabulary) -> Text:
    """The public sentences without their frames."""
    rows = public(seen).readings
    inside = rows[(rows != NOTHING) & words.usable[rows.clamp_min(0)]]
    if not len(inside):
        raise Unsuited("the public sentences hold no word of the model's vocabulary; name others")
    return Text(inside)


def frequencies(seen: Observation, words: Vocabulary) -> Frequencies:
    """Of tokens that stand inside sentences."""
    shares = seen.facts.get(Know.TOKEN_FREQUENCIES)
    if not isinstance(shares, Tensor):
        raise Unsuited("it draws words by their frequencies, which were not granted; add +token_frequencies")
    inside = shares.where(words.usable, torch.zeros_like(shares))
    if not float(inside.sum()):
        raise Unsuited("no token that can stand inside a sentence has a frequency; name other public sentences")
    return Frequencies(inside)


class Sentences:
    """Batches of sentences as long as those observed, their frames around them and the observed labels."""

    def __init__(self, seen: Observation, words: Vocabulary, source: Text | Frequencies, rng: Rng) -> None:
        self.room, self.source, self.causal = TokenRoom(seen, words, count(seen), True), source, seen.next_word
        self.labels = None if seen.next_word else Known().read(seen, rng).labels
        self.places = int(self.room.inside.sum())

    def tokens(self, rows: int, rng: Rng) -> Tensor:
        """What stands inside (R x all places of the batch)."""
        each = self.room.inside.sum(1).tolist()
        return torch.cat([self.source.draw(rows, length, rng / number) for number, length in enumerate(each)], 1)

    def framed(self, inside: Tensor) -> Tensor:
        """Rows of tokens (R x B x L)."""
        rows = self.room.frame.expand(len(inside), *self.room.frame.shape).clone()
        rows[:, self.room.inside] = inside
        return rows

    def batch(self, inside: Tensor) -> Batch:
        """Stacked batches to rehearse."""
        rows = self.framed(inside)
        if self.causal:
            labels = following(rows.flatten(0, 1)).view(rows.shape)
        else:
            assert self.labels is not None
            labels = self.labels.expand(len(rows), -1)
        return self.room.told(rows, labels)

    def known(self) -> Tensor:
        """Tokens that made-up sentences can hold."""
        return (self.source.shares > 0).nonzero().flatten()


