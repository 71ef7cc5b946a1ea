"""One round: the client computes, the defense acts, the update leaves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from gradleak.residual import distance, norm
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Client, Defense, Know, Params, Release, Remembers, Secret, Update
from gradleak.world.clients import Participation, Rounds
from gradleak.world.learner import Learner
from gradleak.world.public import frequencies
from gradleak.world.task import World

GRANTS = frozenset({Know.COUNT, Know.LOCAL_STEPS, Know.DEFENSE, Know.DROPOUT})
"""What can be told of any round; its task says what more."""


@dataclass(frozen=True)
class Sent:
    """A release, with what only the owner of the training can know about it."""

    release: Release
    distortion: float
    """Length of what the defense changed, relative to the undefended update: for noise, the noise-to-gradient ratio."""

    strength: float
    """Length of the undefended update."""

    alive: float
    """Share of its parameters, by name, that are not zero throughout."""

    masks: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client dropped, as extras of its batch, where that can be told."""


def send(
    world: World, participation: Participation, client: Client, defense: Defense, secret: Secret, rng: Rng,
) -> Sent:
    """Play the client once, with and without the defense, on the same draws."""
    learner, params = world.learner, world.learner.params
    masks = participation.dropped(learner, secret.batch, rng / "client")
    with torch.no_grad():
        plain = client(params, _with(secret.batch, masks), rng / "client")
        update = defense.protect(client)(params, _with(secret.batch, masks), rng / "client")
        later = tuple(_later(learner, participation, client, defense, secret.batch, (plain, update), rng))
    facts: dict[Know, object] = {
        Know.COUNT: len(secret.ids), Know.LOCAL_STEPS: dict(participation.protocol), Know.DEFENSE: repr(defense),
        **_of_batch(secret, world.vocabulary is not None),
    }
    facts |= _of_public(world)
    if later:
        masks = {}  # each round drops anew
    if learner.statistics:
        facts[Know.NORM_STATS] = learner.statistics
    if masks:  # the one fact that keeps the client's order of examples
        facts[Know.DROPOUT] = dict(masks)
    release = Release(params, _unsigned(update), learner.shape, learner.classes, facts, world.vocabulary,
                      partial(participation.sites, learner), later)
    alive = sum(bool(value.any()) for value in plain.values()) / len(plain)
    return Sent(release, distance(update, plain).l2, norm(plain), alive, masks)


def _with(batch: Batch, masks: Mapping[str, Tensor]) -> Batch:
    """With what is dropped among its extras, so that a defense may part the examples."""
    return replace(batch, extra={**batch.extra, **masks})


def _later(
    learner: Learner, participation: Participation, client: Client, defense: Defense, batch: Batch,
    first: tuple[Update, Update], rng: Rng,
) -> Iterator[tuple[Params, Update]]:
    """The rounds after the first: the server steps along what it was sent, the client sends again."""
    if not isinstance(participation, Rounds):
        return
    params, (plain, update) = learner.params, first
    memory = defense.carry(plain, {})[1] if isinstance(defense, Remembers) else {}
    for number in range(1, participation.times):
        here = rng / "client" / number
        params = {name: value - participation.rate * update[name] for name, value in params.items()}
        own = _with(batch, participation.dropped(learner, batch, here))
        if isinstance(defense, Remembers):
            update, memory = defense.carry(client(params, own, here), memory)
        else:
            update = defense.protect(client)(params, own, here)
        yield params, _unsigned(update)


def _unsigned(update: Update) -> Update:
    """With zeros that say nothing: a number that is multiplied by zero leaves its sign behind."""
    return {name: value + 0.0 for name, value in update.items()}


def _of_batch(secret: Secret, text: bool) -> dict[Know, object]:
    """Labels sorted; lengths, frame included, sorted by label and then by length, so that the two go together."""
    if secret.labels.ndim > 1:  # next tokens: the sentence itself
        return {Know.LENGTHS: _lengths(secret).sort().values}
    if not text:
        return {Know.LABELS: secret.labels.sort().values}
    by_length = _lengths(secret).argsort(stable=True)
    order = by_length[secret.labels[by_length].argsort(stable=True)]
    return {Know.LABELS: secret.labels[order], Know.LENGTHS: _lengths(secret)[order]}


def _of_public(world: World) -> dict[Know, object]:
    """The public examples, and how often each token occurs in them: the weaker thing to know."""
    if world.public is None:
        return {}
    if world.vocabulary is None:
        return {Know.PUBLIC_DATA: world.public}
    return {Know.PUBLIC_DATA: world.public, Know.TOKEN_FREQUENCIES: frequencies(world.public, world.vocabulary)}


def _lengths(secret: Secret) -> Tensor:
    return (secret.readings != NOTHING).sum(1)
