"""The client's side."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradleak import registry
from gradleak.calculus import straight
from gradleak.errors import UsageError
from gradleak.residual import distance, residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Batch
from gradleak.world.learner import Learner


@pytest.mark.parametrize(("model", "size"), [("lenet", 32), ("convnet", 32), ("mlp", 32), ("resnet20", 32),
                                             ("resnet18", 32), ("resnet18", 224), ("lenet", 8)])
def test_models_classify(model: str, size: int) -> None:
    module = registry.build("model", parse(model)).build((3, size, size), 7)
    with torch.no_grad():
        assert module.eval()(torch.rand(2, 3, size, size)).shape == (2, 7)


def test_lenet_is_dlgs(play) -> None:
    module = registry.build("model", parse("lenet")).build((3, 32, 32), 10)
    assert sum(p.numel() for p in module.parameters()) == 15_826
    assert all(float(p.detach().abs().max()) <= 0.5 for p in module.parameters())


def test_photos_are_many_and_distinct() -> None:
    images = registry.build("data", parse("photos(size=32)")).load()
    assert images.x.shape == (640, 3, 32, 32) and len(images.classes) == 10
    assert torch.bincount(images.y).tolist() == [64] * 10
    gaps = torch.cdist(images.x.flatten(1), images.x.flatten(1)) + 1e9 * torch.eye(640)
    assert float(gaps.min()) > 0.3
    assert float(images.x.min()) >= 0 and float(images.x.max()) <= 1


def test_digits() -> None:
    pytest.importorskip("sklearn")
    images = registry.build("data", parse("digits")).load()
    assert images.x.shape == (1797, 1, 8, 8) and float(images.x.max()) == 1


def test_folders_and_arrays(tmp_path: Path) -> None:
    from PIL import Image

    for kind in ("cats", "dogs"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.random.default_rng(i).integers(0, 255, (20, 30, 3), np.uint8)).save(
                tmp_path / "pets" / kind / f"{i}.png")
    images = registry.build("data", parse(f"folder('{tmp_path}/pets', size=16)")).load()
    assert images.x.shape == (6, 3, 16, 16) and images.classes == ("cats", "dogs")
    assert images.y.tolist() == [0] * 3 + [1] * 3
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 9, 9, 3), np.uint8), y=np.arange(5))
    assert registry.build("data", parse(f"npz('{tmp_path}/a.npz')")).load().x.shape == (5, 3, 9, 9)


def test_trials_draw_distinct_examples_and_defenses_share_them(open_world) -> None:
    world = open_world()
    part = registry.build("client", parse("one_step"))
    drawn = [world.draw(4, t, part, Rng(0)).ids for t in range(5)]
    assert len({i for ids in drawn for i in ids}) == 20
    assert drawn[2] == world.draw(4, 2, part, Rng(0)).ids


def test_per_sample_is_the_mean_gradient_where_examples_do_not_interact(play) -> None:
    one, each = play(count=3, client="one_step"), play(count=3, client="per_sample")
    assert distance(each.sent.release.update, one.sent.release.update).l2 < 1e-5


def test_local_steps_are_sgd(play) -> None:
    scene = play(count=4, client="local_steps(steps=2, rate=0.1)")
    learner, batch = scene.world.learner, scene.secret.batch
    weights = {k: v.clone().requires_grad_() for k, v in learner.params.items()}
    optimiser = torch.optim.SGD(list(weights.values()), lr=0.1)
    for half in (slice(0, 2), slice(2, 4)):
        optimiser.zero_grad()
        learner.loss(weights, Batch(batch.x[half], batch.y[half]), "train").backward()
        optimiser.step()
    for name, value in scene.sent.release.update.items():
        assert torch.allclose(value, (learner.params[name] - weights[name].detach()) / 0.1, atol=1e-4)
    assert residual(scene.seen, batch).cosine < 1e-9


def test_small_local_steps_come_to_their_number_times_the_gradient(play) -> None:
    far = {}
    for rate in (1e-3, 1e-4):
        scene = play(count=4, client=f"local_steps(steps=4, rate={rate})")
        far[rate] = distance(straight(scene.seen.replay)(scene.secret.batch), scene.seen.update).l2
        assert residual(scene.seen, scene.secret.batch).l2 < 1e-6
    assert far[1e-4] < far[1e-3] / 5 and far[1e-4] < 0.02


def test_the_order_of_local_steps_is_the_clients_own(play) -> None:
    scene = play(count=4, client="local_steps(steps=6, rate=0.1)")
    assert scene.part.random(scene.world.learner, 4)
    assert 1e-3 < residual(scene.seen, scene.secret.batch).cosine < 0.5
    assert not scene.part.random(scene.world.learner, 6)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(12, 3), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(nn.functional.dropout(self.drop(x.flatten(1)), 0.2, self.training))


def test_dropout_is_drawn_from_the_clients_stream() -> None:
    learner = Learner(Dropping(), (3, 2, 2), 3)
    assert learner.drops
    batch = Batch(torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))
    one, same, other, mean = (float(learner.loss(learner.params, batch, "train", rng))
                              for rng in (Rng(1), Rng(1), Rng(2), None))
    assert one == same != other
    assert mean == pytest.approx(float(learner.loss(learner.params, batch, "eval")))
    assert registry.build("client", parse("one_step(mode=train)")).random(learner, 2)
    assert not registry.build("client", parse("one_step(mode=eval)")).random(learner, 2)


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.layer = nn.Dropout2d(0.5), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.drop(x).flatten(1))


class Noisy(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))


def test_channel_dropout_is_drawn_and_other_randomness_refused() -> None:
    learner = Learner(Channels(), (3, 2, 2), 3)
    batch = Batch(torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]))
    one, same, other = (float(learner.loss(learner.params, batch, "train", rng)) for rng in (Rng(1), Rng(1), Rng(2)))
    assert learner.drops and one == same != other
    with pytest.raises(UsageError, match="random numbers of its own"):
        Learner(Noisy(nn.Flatten(), nn.Linear(12, 3)), (3, 2, 2), 3)


def test_local_steps_use_every_example() -> None:
    client = registry.build("client", parse("local_steps(steps=2)"))
    assert sum(s.stop - s.start for s in client._epoch(5)) == 5
    with pytest.raises(UsageError, match="unused"):
        registry.build("client", parse("local_steps(steps=2, batch=2)")).order(8, Rng(0))


def test_trained_weights_do_not_depend_on_threads() -> None:
    from gradleak.audit.plan import Audit, _world

    task = "image(model=convnet(width=8), data=photos(size=16, count=40), train=3)"
    (cell,) = Audit(task=task, threats=("curious",)).cells()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        _world.cache_clear()
        found.append(cell.world().learner.params)
    torch.set_num_threads(1)
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_frozen_parameters_are_not_sent() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 3))
    module[1].requires_grad_(False)
    assert set(Learner(module, (3, 2, 2), 3).params) == {"2.weight", "2.bias"}


def test_training_lowers_the_loss_and_draw_picks_the_hard_half() -> None:
    task = "image(model=mlp(width=32), data=photos(size=8, count=80), train=60)"
    world = registry.build("task", parse(task)).open(Rng(0))
    assert world.accuracy is not None and world.accuracy > 0.2 and len(world.pool) == 40
    hard = registry.build("task", parse(task.replace("train=60", "train=60, draw=loss"))).open(Rng(0))

    def loss(w) -> float:
        return float(w.learner.loss(w.learner.params, w.take(w.pool.tolist()).batch, "eval"))

    assert loss(hard) > loss(world)
