"""One round: the client computes, the defense acts, the update leaves."""

from dataclasses import dataclass

import torch

from gradleak.residual import distance, norm
from gradleak.rng import Rng
from gradleak.types import Client, Defense, Know, Release, Secret
from gradleak.world.clients import Participation
from gradleak.world.task import World

GRANTS = frozenset({Know.COUNT, Know.LABELS, Know.LOCAL_STEPS, Know.DEFENSE})
"""What this world can grant a threat."""


@dataclass(frozen=True)
class Sent:
    """A release, with what only the owner of the training can know about it."""

    release: Release
    distortion: float
    """Length of what the defense changed, relative to the undefended update: for noise, the noise-to-gradient ratio."""

    strength: float
    """Length of the undefended update."""


def send(
    world: World, participation: Participation, client: Client, defense: Defense, secret: Secret, rng: Rng,
) -> Sent:
    """Play the client once, with and without the defense, on the same draws."""
    params = world.learner.params
    with torch.no_grad():
        plain = client(params, secret.batch, rng / "client")
        update = defense.protect(client)(params, secret.batch, rng / "client")
    facts = {
        Know.COUNT: len(secret.ids),
        Know.LABELS: secret.labels.sort().values,
        Know.LOCAL_STEPS: dict(participation.protocol),
        Know.DEFENSE: repr(defense),
    }
    release = Release(params, update, world.learner.shape, world.learner.classes, facts)
    return Sent(release, distance(update, plain).l2, norm(plain))
