"""What an inverter is trained to say: images, or a word for every place."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.attacks.learned.examples import Pictures
from gradleak.attacks.learned.network import Tensors, layer
from gradleak.attacks.learned.sentences import Sentences
from gradleak.attacks.parts.tokens import allowed
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Observation


class Answers(Protocol):
    """Made-up batches, and how far from them an inverter's output is."""

    epoch: int
    """Batches after which it is asked whether more training helps."""

    @property
    def about(self) -> tuple[object, ...]:
        """What of the observation the made-up batches were made like."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Of the hidden layers and the output."""
        ...

    def more(self, rng: Rng) -> Tensors:
        """Weights beside the perceptron's."""
        ...

    def drawn(self, numbers: Tensor, rng: Rng) -> tuple[Batch, Tensor]:
        """Stacked batches by their numbers, or anew where there is no end of them, and what to say of them."""
        ...

    def loss(self, out: Tensor, target: Tensor, weights: Mapping[str, Tensor]) -> Tensor: ...

    def guess(self, out: Tensor, weights: Mapping[str, Tensor]) -> Guess: ...


class ImageAnswers:
    """Pixels, by squared error; of several images of a batch each is compared with the one that it is nearest to, one
    to one."""

    def __init__(self, seen: Observation, pictures: Pictures, labels: Tensor, hidden: Sequence[int]) -> None:
        self.seen, self.pictures, self.labels, self.hidden = seen, pictures, labels, hidden
        self.epoch = len(pictures)

    @property
    def about(self) -> tuple[object, ...]:
        return () if self.pictures.labels is None else tuple(self.pictures.labels.tolist())

    @property
    def sizes(self) -> Sequence[int]:
        return [*self.hidden, self.pictures.count * self.pictures.images[0].numel()]

    def more(self, rng: Rng) -> Tensors:
        return {}

    def drawn(self, numbers: Tensor, rng: Rng) -> tuple[Batch, Tensor]:
        x, y = self.pictures(numbers)
        return Batch(x, y), x.flatten(2)

    def loss(self, out: Tensor, target: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        found = out.sigmoid().view_as(target)
        if target.shape[1] > 1:
            far = (found.detach()[:, :, None] - target[:, None]).square().mean(-1).numpy()
            order = torch.stack([torch.as_tensor(linear_sum_assignment(each)[1]) for each in far])
            target = target.gather(1, order[..., None].expand_as(target))
        return F.mse_loss(found, target)

    def guess(self, out: Tensor, weights: Mapping[str, Tensor]) -> Guess:
        x = out.sigmoid().view(len(self.labels), *self.seen.shape)
        return Guess(Batch(x, self.labels), x)


class WordAnswers:
    """A word a place, by cross-entropy. Each place has hidden units of its own; from them, one layer for all places
    leads to an embedding that is compared with those of words: in training of those that made-up sentences can hold, in
    reading of all that can be in the batch, those never met counting as the rarest."""

    def __init__(self, seen: Observation, sentences: Sentences, hidden: Sequence[int], epoch: int) -> None:
        self.sentences, self.hidden, self.epoch = sentences, hidden, epoch
        self.tokens = sentences.known()
        self.number = torch.full((len(sentences.room.table),), -1)
        self.number[self.tokens] = torch.arange(len(self.tokens))
        self.possible = allowed(seen, sentences.room.vocabulary).nonzero().flatten()

    @property
    def about(self) -> tuple[object, ...]:
        return self.sentences.about

    def _table(self, tokens: Tensor) -> Tensor:
        return F.normalize(self.sentences.room.table[tokens], dim=1)

    @property
    def sizes(self) -> Sequence[int]:
        return [*self.hidden[:-1], self.sentences.places * self.hidden[-1]]

    def more(self, rng: Rng) -> Tensors:
        often = self.sentences.source.shares[self.tokens]
        made = layer("word", self.hidden[-1], self.sentences.room.table.shape[1], rng)
        return {**made, "often": (often / often.sum()).log()}

    def drawn(self, numbers: Tensor, rng: Rng) -> tuple[Batch, Tensor]:
        inside = self.sentences.tokens(len(numbers), rng)
        return self.sentences.batch(inside), self.number[inside]

    def _embedded(self, out: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        hidden = out.view(len(out), self.sentences.places, -1).relu()
        return F.linear(hidden, weights["word.weight"], weights["word.bias"])

    def loss(self, out: Tensor, target: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        scores = self._embedded(out, weights) @ self._table(self.tokens).T + weights["often"]
        return F.cross_entropy(scores.flatten(0, 1), target.flatten())

    def guess(self, out: Tensor, weights: Mapping[str, Tensor]) -> Guess:
        number = self.number[self.possible]
        often = torch.where(number < 0, weights["often"].min(), weights["often"][number])
        scores = self._embedded(out, weights) @ self._table(self.possible).T + often
        return self.sentences.told(self.possible[scores.argmax(-1)][0])
