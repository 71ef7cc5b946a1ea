"""What several tests stand on: a tiny world, and observations made from it."""

from collections.abc import Callable

import pytest
import torch

from gradleak import registry
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Client, Defense, Observation, Secret
from gradleak.world.round import Sent, send
from gradleak.world.task import World

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def open_world() -> Callable[..., World]:
    from functools import cache

    @cache
    def opened(spec: str = "image(model=lenet, data=photos(size=16, count=40))") -> World:
        return registry.build("task", parse(spec)).open(Rng(3))  # type: ignore[no-any-return]

    return opened


class Scene:
    """One played round, with both sides of the wall in view of the test."""

    def __init__(self, world: World, defense: Defense, who: str, count: int, client: str, trial: int) -> None:
        self.world, self.defense = world, defense
        self.part = registry.build("client", parse(client))
        self.client: Client = self.part.of(world.learner)
        self.secret: Secret = world.draw(count, trial, self.part, Rng(5))
        self.sent: Sent = send(world, self.part, self.client, defense, self.secret, Rng(6) / trial)
        self.seen: Observation = threat(who).observe(self.sent.release, self.client, defense)


@pytest.fixture
def play(open_world: Callable[..., World]) -> Callable[..., Scene]:
    def played(
        defense: str = "none", who: str = "informed", count: int = 1, client: str = "one_step", trial: int = 0,
        task: str = "image(model=lenet, data=photos(size=16, count=40))",
    ) -> Scene:
        return Scene(open_world(task), registry.build("defense", parse(defense)), who, count, client, trial)

    return played
