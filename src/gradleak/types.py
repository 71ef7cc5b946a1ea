"""The nouns everything else speaks: see DESIGN section 3. Nothing here computes anything worth testing alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradleak.rng import Rng

Params = Mapping[str, Tensor]
Update = Mapping[str, Tensor]


NOTHING = -1
"""In a row of tokens: no token here."""

NO_LABEL = -100
"""Where a language model has no next token to predict."""


def following(readings: Tensor) -> Tensor:
    """A language model's labels: at each place of a row the token that follows, and none where none does."""
    after = torch.cat([readings[:, 1:], torch.full_like(readings[:, :1], NOTHING)], 1)
    return after.masked_fill(after == NOTHING, NO_LABEL)


@dataclass(frozen=True)
class Batch:
    """Model-ready examples: `x` pixels (B x C x H x W) or word embeddings (B x L x d), `y` class numbers (B) or soft
    labels (B x classes); a language model's `y` has one more axis, the place.

    `extra` goes to the model by name: `mask` (B x L, 1 where there is a token), `ids` (B x L, only where the word
    embeddings are trained), `drop.0`, `drop.1`, ... (dropout masks in the order in which the model drops).
    """

    x: Tensor
    y: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class Client(Protocol):
    """What a participant does with the weights it was sent: pure, and differentiable in the batch."""

    def __call__(self, params: Params, batch: Batch, rng: Rng | None) -> Update: ...


Replay = Callable[[Batch], Update]


@dataclass(frozen=True)
class Sentence:
    """Tokens as a person reads them: all without what frames a sentence, except `framed`."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    text: str
    framed: str


@dataclass(frozen=True)
class Vocabulary:
    """What everyone who holds the model knows about its tokens."""

    table: Tensor
    """The word embeddings, a row a token, as they enter the model."""
    usable: Tensor
    """Per token, whether it may stand inside a sentence."""
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    pad: int | None
    spell: Callable[[Sequence[int]], str]
    """Tokens as text."""
    piece: Callable[[int], str]
    """One token as it is written in the vocabulary."""

    def inner(self, reading: Tensor) -> list[bool]:
        """Per place of a row of tokens, whether one stands there that is not part of the frame."""
        frame = {*self.opening, *self.closing, self.pad, NOTHING}
        return [token not in frame for token in reading.tolist()]

    def sentence(self, reading: Tensor) -> Sentence:
        """A row of tokens, `NOTHING` where there is none."""
        framed = [int(t) for t in reading.tolist() if t != NOTHING]
        tokens = [token for token, inner in zip(reading.tolist(), self.inner(reading), strict=True) if inner]
        return Sentence(tuple(tokens), tuple(map(self.piece, tokens)), self.spell(tokens), self.spell(framed))


@dataclass(frozen=True)
class Site:
    """A place where the model drops: the shape of its mask and the share dropped."""

    shape: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class Secret:
    """The truth. Only `world` and `metrics` may look inside. `readings` are images, or rows of tokens."""

    readings: Tensor
    labels: Tensor
    ids: tuple[int, ...]
    batch: Batch


@dataclass(frozen=True)
class Public:
    """Examples that anyone could have, the attacker too: `seen.facts[Know.PUBLIC_DATA]`. None is a private one.

    `readings` are images (N x C x H x W, in [0, 1]), or rows of tokens framed as the model's tokenizer frames them,
    `NOTHING` past a row's end; `labels` (N) are the model's classes. A language model's public sentences have none:
    what follows a word is its label.
    """

    readings: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.readings)


class Know(Enum):
    """Side knowledge an attacker may be granted."""

    COUNT = "count"
    LABELS = "labels"
    LENGTHS = "lengths"
    NORM_STATS = "norm_stats"
    LOCAL_STEPS = "local_steps"
    DEFENSE = "defense"
    DROPOUT = "dropout"
    PUBLIC_DATA = "public_data"
    TOKEN_FREQUENCIES = "token_frequencies"
    GENERATOR = "generator"
    LANGUAGE_MODEL = "language_model"


class Facts(Mapping[Know, object]):
    """Granted knowledge that remembers what was read, so that the ledger can say what was used."""

    def __init__(self, granted: Mapping[Know, object]) -> None:
        self._granted = dict(granted)
        self.used: set[Know] = set()

    def __getitem__(self, key: Know) -> object:
        value = self._granted[key]
        self.used.add(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._granted

    def __iter__(self) -> Iterator[Know]:
        return iter(self._granted)

    def __len__(self) -> int:
        return len(self._granted)


Rehearse = Callable[[Batch, Rng | None], Update]


def _no_rehearsal(batch: Batch, rng: Rng | None) -> Update:
    raise RuntimeError("this observation was made by hand, without a client to rehearse")


def _no_sites(batch: Batch) -> tuple[Site, ...]:
    return ()


@dataclass(frozen=True)
class Release:
    """What leaves the client, and every fact a threat might grant beside it."""

    params: Params
    update: Update
    shape: tuple[int, ...]
    classes: int
    facts: Mapping[Know, object]
    vocabulary: Vocabulary | None = None
    sites: Callable[[Batch], tuple[Site, ...]] = _no_sites
    later: tuple[tuple[Params, Update], ...] = ()
    """Weights and updates of later rounds of the same client on the same examples."""


@dataclass(frozen=True)
class Observation:
    """The attacker's whole world: the weights, the update, and a replay of the client as far as it is known.

    Where several rounds were seen, the update and the replay hold all of them: a parameter of round n > 0 is `n:name`.
    """

    params: Params
    update: Update
    shape: tuple[int, ...]
    classes: int
    replay: Replay
    facts: Facts
    vocabulary: Vocabulary | None = None
    """Of the model's tokens; none where the data are images."""
    sites: Callable[[Batch], tuple[Site, ...]] = _no_sites
    """Where the model drops on such a batch; none if the client does not drop."""
    rehearse: Rehearse = _no_rehearsal
    """The client, with its defense as far as that is known, played forward on made-up data: what would have been sent.
    A learned attack is fitted on it. With a stream everything random is drawn; without one nothing is. (`replay`, by
    contrast, asks how a candidate explains *this* update: a mask is the one that was read off it.)"""

    @property
    def next_word(self) -> bool:
        """Whether the model predicts words: its labels are then the sentences themselves, one a place."""
        return self.vocabulary is not None and self.classes == len(self.vocabulary.table)


@dataclass(frozen=True)
class Guess:
    """One candidate: replayable, readable by a person, and with enough state to go on from."""

    batch: Batch
    reading: Tensor
    step: int = 0
    steps: int = 1
    state: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)
    certain: Tensor | None = None
    """Per token of the reading, whether the attack has proven, rather than found likely, that it stood in its place in
    one of the sentences."""

    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    """Readings on the way, by the step at which the goal changed: what had come back until then."""

@runtime_checkable
class Attack(Protocol):
    """Yields guesses, the last one being its answer; `start` continues an earlier guess exactly.

    An attack with an attribute `uses` says there, by name, what it brings along that no one granted: a language model.
    """

    @property
    def needs(self) -> frozenset[Know]: ...

    @property
    def evaluations(self) -> int:
        """About how many replays a full run costs: what a plan shows."""
        ...

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]: ...


@runtime_checkable
class Defense(Protocol):
    """A pair: what the client does, and what an attacker who knows of it does about it."""

    @property
    def random(self) -> bool: ...

    def protect(self, client: Client) -> Client: ...

    def clean(self, update: Update) -> Update: ...

    def mimic(self, client: Client, update: Update) -> Client: ...


@runtime_checkable
class Remembers(Protocol):
    """A defense that carries something over from round to round. In a chain it forgets."""

    def carry(self, update: Update, memory: Update) -> tuple[Update, Update]:
        """What is sent of an update, given what was left before, and what is left now."""
        ...

    def replayed(self, computed: Sequence[Update], seen: Sequence[Update]) -> list[Update]:
        """What a client that computed these updates, round by round from the first, would have sent, as far as can be
        told from what it did send."""
        ...


@runtime_checkable
class Metric(Protocol):
    """One number per sample, of images, or of sentences, or (`about = "labels"`) of labels.

    `leak_at` is the score from which a sample counts as read; None never judges.
    """

    name: str
    better: Literal["higher", "lower"]
    leak_at: float | None

    def __call__(self, readings: Any, truths: Any) -> list[float]: ...
