"""Made-up sentences for rehearsals: stretches of public text, or tokens drawn by how often they occur."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.examples import public
from gradleak.attacks.learned.keep import as_bytes
from gradleak.attacks.parts.labels import Known, count
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Guess, Know, Observation, Vocabulary, following


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
        self.each: list[int] = self.room.inside.sum(1).tolist()

    @property
    def about(self) -> tuple[object, ...]:
        """What of the observation they are made like: lengths, labels, what was dropped."""
        dropped = hashlib.blake2b(b"".join(as_bytes(value) for value in self.room.dropped.values()), digest_size=16)
        return (tuple(self.room.lengths.tolist()), None if self.labels is None else tuple(self.labels.tolist()),
                dropped.hexdigest() if self.room.dropped else None)

    def tokens(self, rows: int, rng: Rng) -> Tensor:
        """What stands inside (R x all places of the batch)."""
        return self.ordered(torch.cat([self.source.draw(rows, length, rng / number)
                                       for number, length in enumerate(self.each)], 1))

    def ordered(self, inside: Tensor) -> Tensor:
        """Sentences of one length and label in the order of a number of their words' embeddings: a client does not care
        which comes first, whoever learns to tell them must."""
        parts, groups = list(torch.split(inside, self.each, 1)), dict[tuple[int, int], list[int]]()
        for number, length in enumerate(self.each):
            groups.setdefault((length, 0 if self.labels is None else int(self.labels[number])), []).append(number)
        for group in (one for one in groups.values() if len(one) > 1):
            alike = torch.stack([parts[number] for number in group], 1)
            order = self.room.table[alike][..., 0].sum(2).argsort(1)
            for number, part in zip(group, alike.gather(1, order[..., None].expand_as(alike)).unbind(1), strict=True):
                parts[number] = part
        return torch.cat(parts, 1)

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

    def told(self, inside: Tensor) -> Guess:
        """These words (all places of the batch) as an answer."""
        batch = self.batch(inside[None])
        return Guess(Batch(batch.x[0], batch.y[0], {name: value[0] for name, value in batch.extra.items()}),
                     self.framed(inside[None])[0])

    def known(self) -> Tensor:
        """Tokens that made-up sentences can hold."""
        return (self.source.shares > 0).nonzero().flatten()


