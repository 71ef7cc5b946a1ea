"""The nouns everything else speaks: see DESIGN section 3. Nothing here computes anything worth testing alone."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from gradleak.rng import Rng

Params = Mapping[str, Tensor]
Update = Mapping[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Model-ready examples: `x` pixels, `y` class numbers (B) or soft labels (B x classes)."""

    x: Tensor
    y: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class Client(Protocol):
    """What a participant does with the weights it was sent: pure, and differentiable in the batch."""

    def __call__(self, params: Params, batch: Batch, rng: Rng | None) -> Update: ...


Replay = Callable[[Batch], Update]


@dataclass(frozen=True)
class Secret:
    """The truth. Only `world` and `metrics` may look inside."""

    readings: Tensor
    labels: Tensor
    ids: tuple[int, ...]
    batch: Batch


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


@dataclass(frozen=True)
class Release:
    """What leaves the client, and every fact a threat might grant beside it."""

    params: Params
    update: Update
    shape: tuple[int, ...]
    classes: int
    facts: Mapping[Know, object]


@dataclass(frozen=True)
class Observation:
    """The attacker's whole world: the weights, the update, and a replay of the client as far as it is known."""

    params: Params
    update: Update
    shape: tuple[int, ...]
    classes: int
    replay: Replay
    facts: Facts


@dataclass(frozen=True)
class Guess:
    """One candidate: replayable, readable by a person, and with enough state to go on from."""

    batch: Batch
    reading: Tensor
    step: int = 0
    steps: int = 1
    state: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Attack(Protocol):
    """Yields guesses, the last one being its answer; `start` continues an earlier guess exactly."""

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
class Metric(Protocol):
    """One number per sample. `leak_at` is the score from which a sample counts as read; None never judges."""

    name: str
    better: Literal["higher", "lower"]
    leak_at: float | None

    def __call__(self, readings: Tensor, truths: Tensor) -> list[float]: ...
