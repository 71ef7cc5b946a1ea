"""The pieces of descent against outside references."""

import pytest
import torch

from gradleak.attacks.parts import objectives, schedules
from gradleak.attacks.parts.labels import Counted
from gradleak.attacks.parts.optimisers import LBFGS, Adam, Value
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels, Smooth
from gradleak.calculus import Lanes
from gradleak.residual import distance
from gradleak.rng import Rng
from gradleak.types import Batch


def quadratic(scales: torch.Tensor):
    def evaluate(z: torch.Tensor) -> Value:
        z = z.detach().requires_grad_()
        total = (scales * (z - 1) ** 2).sum(1)
        (slope,) = torch.autograd.grad(total.sum(), z)
        return Value(total.detach(), total.detach(), slope)

    return evaluate


def test_adam_is_torchs_adam() -> None:
    evaluate = quadratic(torch.tensor([1.0, 10.0, 0.1]))
    z = torch.zeros(2, 3)
    p = torch.zeros(2, 3, requires_grad=True)
    theirs, state = torch.optim.Adam([p], lr=0.05), Adam().begin(z)
    for _ in range(50):
        z, _, _, state = Adam().step(z, state, evaluate, 0.05)
        p.grad = evaluate(p).gradient
        theirs.step()
    assert torch.allclose(z, p.detach(), atol=1e-5)


def test_lbfgs_solves_badly_scaled_lanes_independently() -> None:
    scales = torch.logspace(-1, 1, 20, dtype=torch.float64)
    starts = torch.stack([torch.zeros(20), torch.full((20,), 5.0)]).double()

    def solve(z: torch.Tensor) -> torch.Tensor:
        optimiser = LBFGS(memory=20)
        state = optimiser.begin(z)
        for _ in range(150):
            z, _, _, state = optimiser.step(z, state, quadratic(scales), 1.0)
        return z

    both = solve(starts)
    assert torch.allclose(both, torch.ones_like(both), atol=1e-4)
    assert torch.allclose(both[1:], solve(starts[1:]), atol=1e-6)


def test_objectives_against_plain_formulas() -> None:
    make = Rng(0).torch()
    stacked = {"a": torch.randn(2, 3, 4, generator=make), "b": torch.randn(2, 5, generator=make)}
    reference = {"a": torch.randn(3, 4, generator=make), "b": torch.randn(5, generator=make)}
    flat = torch.cat([stacked["a"].flatten(1), stacked["b"]], 1)
    ref = torch.cat([reference["a"].flatten(), reference["b"]])
    assert torch.allclose(objectives.l2(stacked, reference), (flat - ref).square().sum(1))
    theirs = 1 - torch.cosine_similarity(flat, ref[None])
    assert torch.allclose(objectives.cosine(stacked, reference), theirs, atol=1e-6)
    plain = (objectives.l2, objectives.cosine)
    for objective in (*plain, *map(objectives.balanced, plain)):
        exact = {k: v[None] for k, v in reference.items()}
        assert float(objective(exact, reference)) == pytest.approx(0, abs=1e-6)


def test_total_variation_counts_edges() -> None:
    x = torch.zeros(1, 1, 1, 4, 4)
    assert float(total_variation(x)) == 0
    x[..., 2:] = 1
    assert float(total_variation(x)) == pytest.approx(4 / 12)


@pytest.mark.parametrize("size", [(8, 8), (7, 12)])
def test_spaces_are_one_to_one(size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, 1, *size, generator=Rng(0).torch(), dtype=torch.float64)
    for space in (Pixels(), Smooth(), Smooth(0.5)):
        assert torch.allclose(space.decode(space.encode(x)), x, atol=1e-8)
    waves = Smooth().decode(torch.randn(50, 1, 1, 32, 32, generator=Rng(1).torch()) + 0.5)
    assert float(total_variation(waves).mean()) < 0.7 * float(total_variation(torch.randn_like(waves)).mean())


def test_schedules() -> None:
    stairs = schedules.staircase(1.0)
    assert [round(stairs(s, 80), 6) for s in (0, 29, 30, 50, 70)] == [1, 1, 0.1, 0.01, 0.001]
    assert schedules.geometric(1, 0.01)(99, 100) == pytest.approx(0.01)
    assert schedules.cosine(1.0, warm=0.1)(0, 100) == pytest.approx(0.1)
    assert schedules.at(3.0, 5, 10) == 3.0


@pytest.mark.parametrize("task", ["image(model=lenet, data=photos(size=16, count=40))",
                                  "image(model=resnet20, data=photos(size=16, count=40))"])
@pytest.mark.parametrize("client", ["one_step(mode=train)", "one_step(mode=eval)", "local_steps(steps=2)",
                                    "per_sample(mode=eval)"])
def test_lanes_equal_one_replay_at_a_time(play, task: str, client: str) -> None:
    seen = play(count=2, client=client, task=task).seen
    x = (Rng(0) / "x").uniform((3, 2, *seen.shape), next(iter(seen.params.values())))
    y = torch.tensor([[0, 1], [2, 3], [4, 5]])
    lanes = Lanes(seen.replay, x, y)
    assert lanes.together
    stacked = lanes(x, y)
    for lane in range(3):
        alone = seen.replay(Batch(x[lane], y[lane]))
        assert distance({k: v[lane] for k, v in stacked.items()}, alone).l2 < 1e-3


@pytest.mark.parametrize("model", ["lenet", "convnet", "mlp"])
@pytest.mark.parametrize("defense", ["none", "sign", "noise(relative=1)", "prune(keep=0.1)"])
def test_the_label_of_one_image_is_read(play, model: str, defense: str) -> None:
    task = f"image(model={model}, data=photos(size=16, count=40))"
    right = 0
    for trial in range(8):
        scene = play(defense, trial=trial, task=task)
        read = Counted().read(scene.seen, Rng(0))
        right += int(read.labels[0] == scene.secret.labels[0])
    assert right >= 7


def test_labels_of_batches_are_counted(play) -> None:
    right = total = 0
    for trial in range(4):
        scene = play(count=8, trial=trial)
        found = sorted(Counted().read(scene.seen, Rng(0)).labels.tolist())
        left = sorted(scene.secret.labels.tolist())
        right += sum(min(found.count(c), left.count(c)) for c in set(left))
        total += 8
    assert right / total >= 0.85
