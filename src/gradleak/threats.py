"""The only door in the wall: what an attacker sees, and what it was told beside it."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gradleak.errors import UsageError, did_you_mean
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Defense, Facts, Know, Observation, Params, Release, Update

PROTOCOL = frozenset({Know.COUNT, Know.LOCAL_STEPS})
"""What a server learns by running the protocol: it sets the local steps and is told the number of examples."""

_PRESETS = {"curious": frozenset[Know](), "informed": frozenset({Know.DEFENSE})}


def _replay(client: Client, params: Params, batch: Batch) -> Update:
    return client(params, batch, None)


def _rehearse(client: Client, defense: Defense | None, params: Params, batch: Batch, rng: Rng | None) -> Update:
    if defense is None:
        return client(params, batch, rng)
    return defense.clean(defense.protect(client)(params, batch, rng))


@dataclass(frozen=True)
class Threat:
    """An honest-but-curious server with stated knowledge beyond the protocol."""

    name: str
    knows: frozenset[Know]

    def __repr__(self) -> str:
        return self.name

    def observe(self, release: Release, client: Client, defense: Defense) -> Observation:
        """What this attacker works with. Knowing the defense means replaying through it and undoing what can be."""
        params = {name: value.detach().requires_grad_() for name, value in release.params.items()}
        update = {name: value.detach().clone() for name, value in release.update.items()}
        facts = Facts({key: self._told(release, key) for key in self.knows | PROTOCOL if key in release.facts})
        known = defense if Know.DEFENSE in self.knows else None
        rehearse = partial(_rehearse, client, known, params)
        if known is not None:
            facts.used.add(Know.DEFENSE)
            client = defense.mimic(client, update)
            update = dict(defense.clean(update))
        return Observation(params, update, release.shape, release.classes, partial(_replay, client, params), facts,
                           release.vocabulary, release.sites, rehearse)

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
