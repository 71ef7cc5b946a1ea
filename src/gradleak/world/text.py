"""Sentences, and what a model is trained to say about them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Know, Public, Secret, Vocabulary, following
from gradleak.world.corpora import Corpus, Sentences, Texts
from gradleak.world.language import Language, LanguageModel, MiniLm
from gradleak.world.learner import Learner
from gradleak.world.public import marked, refuse_overlap, set_apart
from gradleak.world.task import World, accuracy, hard_half, train

Freeze = Literal["frozen", "trained"]

@dataclass(frozen=True)
class Passages:
    """Private sentences by their numbers, as rows of tokens padded to the longest."""

    rows: tuple[Tensor, ...]
    y: Tensor
    vocabulary: Vocabulary
    causal: bool
    named: bool
    """Whether the model is told which words it is given: only where it trains their embeddings."""

    def __call__(self, ids: Sequence[int]) -> Secret:
        chosen, pad, table = [self.rows[i] for i in ids], self.vocabulary.pad, self.vocabulary.table
        if len(chosen) > 1 and pad is None:
            raise UsageError("the tokenizer has no padding token, so that a batch of several sentences cannot be made; "
                             "use batch = 1, or name a token to pad with, as in model=hf('gpt2', pad='<|endoftext|>')")
        readings = pad_sequence(chosen, batch_first=True, padding_value=NOTHING)
        there = readings != NOTHING
        tokens = readings.where(there, torch.tensor(pad or 0))
        extra = {"mask": there.long()} | ({"ids": tokens} if self.named else {})
        labels = following(readings) if self.causal else self.y[list(ids)]
        return Secret(readings, labels, tuple(ids), Batch(table[tokens], labels, extra))


@dataclass(frozen=True)
class Other:
    """For each sentence another one of the pool, nearest in length: as good a guess as any without the update."""

    passages: Passages
    pool: Tensor

    def __call__(self, secret: Secret) -> Tensor:
        left = [number for number in self.pool.tolist() if number not in secret.ids]
        found: list[Tensor] = []
        for row in secret.readings:
            length = int((row != NOTHING).sum())
            nearest = min(left, key=lambda n, m=length: abs(len(self.passages.rows[n]) - m), default=None)  # type: ignore[misc]
            found.append(row[:0] if nearest is None else self.passages.rows[nearest])
            if nearest is not None:
                left.remove(nearest)
        found.append(secret.readings[0])  # none is narrower than the truth
        return pad_sequence(found, batch_first=True, padding_value=NOTHING)[:-1]


@register("task", "text")
@dataclass(frozen=True)
class TextTask:
    """Text classification, or next words with a causal model. `train` AdamW steps on half the data come first.

    Word embeddings, and those of places and segments, are frozen unless `trained`. `limit` cuts sentences to so many
    tokens. mask=false lets the model attend to padding. draw=loss takes batches from the half of the pool with the
    highest loss. `public` are sentences the attacker may hold too, if the threat grants public_data (or
    know the tokens' shares of: token_frequencies): other data (public=lines('other.tsv')), or so many of these, set
    apart first (public=5000).
    """

    model: LanguageModel = field(default_factory=MiniLm)
    data: Corpus = field(default_factory=Sentences)
    embeddings: Freeze = "frozen"
    positions: Freeze = "frozen"
    train: int = 0
    rate: float = 5e-5
    limit: int | None = None
    mask: bool = True
    draw: Literal["random", "loss"] = "random"
    public: Corpus | int | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        readings = ("exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy", "token_f1")
        return readings if self.model.causal else (*readings, "label_accuracy")

    @property
    def grants(self) -> frozenset[Know]:
        """Labels of a causal model are the words themselves: nothing would be left to find."""
        batch = {Know.LENGTHS} if self.model.causal else {Know.LABELS, Know.LENGTHS}
        public = set() if self.public is None else {Know.PUBLIC_DATA, Know.TOKEN_FREQUENCIES}
        return frozenset(batch | public)

    def open(self, rng: Rng) -> World:
        texts = self.data.load()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((rng / "model").number)
            language = self.model.open(len(texts.classes))
        self._check_classes(texts, language)
        module = language.module
        _freeze(module, module.words, self.embeddings, self.positions)
        limit = self._limit(language)
        module.masked = self.mask
        take = Passages(self._rows(texts, language, limit), texts.y, language.vocabulary, self.model.causal,
                        self.embeddings == "trained")
        (pool, public), right = self._apart(take, texts, language, limit, rng / "public"), None
        alone = language.vocabulary.pad is None
        example = take(pool[: 1 if alone else 2].tolist()).batch
        self._check_output(module, example, language.classes)
        if self.train:
            order = pool[(rng / "split").permutation(len(pool))]
            seen, pool = order[: len(order) // 2], order[len(order) // 2 :]
            weights = [p for p in module.parameters() if p.requires_grad]
            optimiser = torch.optim.AdamW(weights, lr=self.rate)
            train(module, take, seen, self.train, optimiser, 1 if alone else 16, rng / "train")
            module.settle()
            right = accuracy(module, take, pool, 1 if alone else 64)
        shape = (limit, language.vocabulary.table.shape[1])
        learner = Learner(module, shape, language.classes, example, language.prefix)
        if self.draw == "loss":
            pool = hard_half(learner, take, pool, 1 if alone else 64)
        return World(learner, pool, right, take, Other(take, pool), language.vocabulary, public)

    def _apart(
        self, take: Passages, texts: Texts, language: Language, limit: int, rng: Rng,
    ) -> tuple[Tensor, Public | None]:
        """The private sentences' numbers, and the public sentences."""
        everyone = torch.arange(len(take.rows))
        if self.public is None:
            return everyone, None
        marks = marked(take.rows)
        if isinstance(self.public, int):
            chosen, pool = set_apart(marks, self.public, rng)
            rows, y = [take.rows[n] for n in chosen.tolist()], texts.y[chosen]
        else:
            other = self.public.load()
            if not self.model.causal and other.classes != texts.classes:
                raise UsageError(f"public={self.public!r} has the classes {', '.join(other.classes[:5])}, the private "
                                 f"data {', '.join(texts.classes[:5])}; use sentences of the same classes")
            rows, y, pool = list(self._rows(other, language, limit)), other.y, everyone
            refuse_overlap(marked(rows), marks, f"public={self.public!r}")
        readings = pad_sequence(rows, batch_first=True, padding_value=NOTHING)
        return pool, Public(readings, None if self.model.causal else y)

    def _check_classes(self, texts: Texts, language: Language) -> None:
        if self.model.causal:
            return
        if len(set(texts.y.tolist())) < 2:
            raise UsageError(f"{self.data!r} has one class only: a classifier needs two or more")
        if len(texts.classes) > language.classes:
            raise UsageError(f"{self.data!r} has {len(texts.classes)} classes ({', '.join(texts.classes[:5])}), but "
                             f"{self.model!r} was trained with a head of {language.classes}; use data that fit it")

    def _limit(self, language: Language) -> int:
        least = 1 + len(language.vocabulary.opening) + len(language.vocabulary.closing)
        if self.limit is None:
            return language.limit
        if not least <= self.limit <= language.limit:
            raise UsageError(f"limit = {self.limit}: {self.model!r} reads from {least} to {language.limit} tokens; "
                             "choose a limit among them")
        return self.limit

    def _rows(self, texts: Texts, language: Language, limit: int) -> tuple[Tensor, ...]:
        rows, closing = [], list(language.vocabulary.closing)
        for line, sentence in enumerate(texts.sentences, 1):
            tokens = language.encode(sentence)
            if len(tokens) > limit and self.limit is None:
                raise UsageError(f"{self.data!r}, line {line}: {len(tokens)} tokens, but {self.model!r} reads {limit}; "
                                 f"shorten it, or cut every sentence with limit={limit}")
            if len(tokens) > limit:
                tokens = tokens[: limit - len(closing)] + closing
            rows.append(torch.tensor(tokens))
        return tuple(rows)

    def _check_output(self, module: nn.Module, example: Batch, classes: int) -> None:
        try:
            with torch.no_grad():
                out = module.eval()(example.x, **example.extra)
        except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as problem:
            raise UsageError(f"model {self.model!r} does not take word embeddings: {str(problem).splitlines()[0]}; "
                             "use an encoder or decoder that accepts inputs_embeds") from None
        wanted = (*example.y.shape, classes)
        if not isinstance(out, Tensor) or tuple(out.shape) != wanted:
            found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UsageError(f"model {self.model!r} gives {found} for {len(example.x)} sentences, not {wanted}; "
                             f"make its last layer {classes} wide")


def _freeze(module: nn.Module, words: nn.Module, embeddings: Freeze, positions: Freeze) -> None:
    """Every table beside that of words is one of places or segments."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.requires_grad_(positions == "trained")
    words.requires_grad_(embeddings == "trained")
