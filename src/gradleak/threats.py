"""The only door in the wall: what an attacker sees, and what it was told beside it."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gradleak.calculus import each_lane
from gradleak.errors import UsageError, did_you_mean
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Defense, Facts, Know, Observation, Params, Release, Remembers, Replay, Update

PROTOCOL = frozenset({Know.COUNT, Know.LOCAL_STEPS})
"""What a server learns by running the protocol: it sets the local steps and is told the number of examples."""

Rounds = tuple[tuple[Client, Params], ...]
"""The weights of each round, with the client as far as it is known."""

_PRESETS = {"curious": frozenset[Know](), "informed": frozenset({Know.DEFENSE})}


def _replay(rounds: Rounds, batch: Batch) -> Update:
    return {_named(name, number): value for number, (client, params) in enumerate(rounds)
            for name, value in client(params, batch, None).items()}


def _replay_remembering(defense: Remembers, rounds: Rounds, sent: tuple[Update, ...], batch: Batch) -> Update:
    """Of a client that carries over what it does not send, all rounds at once; that needs entries."""
    computed = [each_lane(dict, client(params, batch, None)) for client, params in rounds]
    return {_named(name, number): value for number, update in enumerate(defense.replayed(computed, sent))
            for name, value in update.items()}


def _named(name: str, number: int) -> str:
    """A parameter of the first round by its own name, which is what attacks that read layers look for."""
    return f"{number}:{name}" if number else name


def _rehearse(
    client: Client, defense: Defense | None, rounds: tuple[Params, ...], batch: Batch, rng: Rng | None,
) -> Update:
    found: dict[str, Tensor] = {}
    for number, params in enumerate(rounds):
        draws = rng / number if rng and number else rng
        sent = client(params, batch, draws) if defense is None else defense.clean(
            defense.protect(client)(params, batch, draws))
        found |= {_named(name, number): value for name, value in sent.items()}
    return found


@dataclass(frozen=True)
class Threat:
    """An honest-but-curious server with stated knowledge beyond the protocol."""

    name: str
    knows: frozenset[Know]

    def __repr__(self) -> str:
        return self.name

    def observe(self, release: Release, client: Client, defense: Defense) -> Observation:
        """What this attacker works with. Knowing the defense means replaying through it and undoing what can be."""
        facts = Facts({key: self._told(release, key) for key in self.knows | PROTOCOL if key in release.facts})
        known = defense if Know.DEFENSE in self.knows else None
        if known is not None:
            facts.used.add(Know.DEFENSE)
        rounds: list[tuple[Client, Params]] = []
        sent_in: list[Update] = []
        seen: dict[str, Tensor] = {}
        carrying = defense if isinstance(defense, Remembers) and known is not None and release.later else None
        for number, (weights, sent) in enumerate(((release.params, release.update), *release.later)):
            update: Update = {name: value.detach().clone() for name, value in sent.items()}
            params = {name: value.detach().requires_grad_() for name, value in weights.items()}
            rounds.append((client if known is None or carrying else known.mimic(client, update), params))
            update = update if known is None else known.clean(update)
            sent_in.append(update)
            seen |= {_named(name, number): value for name, value in update.items()}
        replay: Replay = partial(_replay, tuple(rounds))
        if carrying is not None:
            replay = partial(_replay_remembering, carrying, tuple(rounds), tuple(sent_in))
        return Observation(rounds[0][1], seen, release.shape, release.classes, replay, facts,
                           release.vocabulary, release.sites,
                           partial(_rehearse, client, known, tuple(params for _, params in rounds)))

    def _told(self, release: Release, key: Know) -> object:
        """A fact as this attacker gets it: lengths in the order of the labels would tell of labels not granted."""
        fact = release.facts[key]
        if key is Know.LENGTHS and Know.LABELS not in self.knows and isinstance(fact, Tensor):
            return fact.sort().values
        return fact


def threat(text: str) -> Threat:
    """`curious`, `informed`, or either with more knowledge: `curious+labels`."""
    first, *more = [part.strip() for part in text.split("+")]
    if first not in _PRESETS:
        raise UsageError(f"unknown threat {first!r}: {did_you_mean(first, list(_PRESETS))}")
    knows = set(_PRESETS[first])
    for word in more:
        try:
            knows.add(Know(word))
        except ValueError:
            raise UsageError(f"unknown knowledge {word!r} in threat {text!r}: "
                             f"{did_you_mean(word, [k.value for k in Know])}") from None
    return Threat("+".join([first, *more]), frozenset(knows))
