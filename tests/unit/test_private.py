"""DP-SGD: clipping example by example, agreeing with Opacus, and what it is worth in epsilon."""

import pytest
import torch

from gradleak import registry
from gradleak.audit.plan import Audit, checked
from gradleak.calculus import clipped_mean, each_alone, gradient, in_lanes
from gradleak.errors import UsageError
from gradleak.residual import distance, norm, residual
from gradleak.spec import parse
from gradleak.types import Batch

LENET = "image(model=lenet, data=photos(size=16, count=40))"
MLP = "image(model=mlp(width=16), data=photos(size=16, count=40))"


def made(spec: str):
    return registry.build("defense", parse(spec))


@pytest.mark.parametrize("task", [LENET, MLP])
def test_clipping_agrees_with_opacus(play, task: str) -> None:
    opacus = pytest.importorskip("opacus")
    scene = play("dpsgd(clip=0.2, multiplier=0)", count=3, task=task)
    module = scene.world.learner.modes["train"]
    model = opacus.GradSampleModule(registry_copy(module), loss_reduction="mean")
    optimiser = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=0.2, expected_batch_size=3)
    torch.nn.functional.cross_entropy(model(scene.secret.batch.x), scene.secret.batch.y).backward()
    optimiser.pre_step()
    theirs = {name.removeprefix("_module."): p.grad for name, p in model.named_parameters()}
    assert distance(scene.sent.release.update, theirs).l2 < 1e-5
    assert norm(scene.sent.release.update) <= 0.2 + 1e-6


def registry_copy(module: torch.nn.Module) -> torch.nn.Module:
    import copy

    return copy.deepcopy(module).requires_grad_(True)


def test_words_are_clipped_one_by_one_without_gradients_multiplied_out(play, text_task) -> None:
    scene = play("none", count=3, client="one_step(mode=eval)", task=text_task())
    learner, batch = scene.world.learner, scene.secret.batch
    fast = clipped_mean(scene.client, learner.params, batch, 0.5)
    rows = [gradient(lambda p, i=i: learner.loss(p, one(batch, i), "eval"), learner.params) for i in range(3)]
    short = [{k: v * min(1.0, 0.5 / norm(row)) for k, v in row.items()} for row in rows]
    slow = {k: sum(row[k] for row in short) / 3 for k in rows[0]}
    assert any(norm(row) > 0.5 for row in rows) and distance(fast, slow).l2 < 1e-5
    each = each_alone(lambda b: scene.client(learner.params, b, None), batch)
    assert all(torch.allclose(each[k][1], rows[1][k], atol=1e-6) for k in each)


def one(batch: Batch, row: int) -> Batch:
    here = slice(row, row + 1)
    return Batch(batch.x[here], batch.y[here], {k: v[here] for k, v in batch.extra.items()})


def test_the_attackers_copy_is_the_same_in_lanes(play, text_task) -> None:
    scene = play("dpsgd(clip=0.1, multiplier=0)", "informed", 2, "one_step(mode=eval)", task=text_task())
    assert residual(scene.seen, scene.secret.batch).l2 < 1e-4
    from gradleak.lanes import Lanes

    batch = scene.secret.batch
    twice = [torch.stack([t, t.flip(0)]) for t in (batch.x, batch.y)]
    extra = {k: torch.stack([v, v.flip(0)]) for k, v in batch.extra.items()}
    lanes = Lanes(scene.seen.replay, *twice, extra, factor=True)
    assert lanes.way == "factored"
    images = play("dpsgd(clip=0.1, multiplier=0)", "informed", 2)
    stacked = in_lanes(lambda x, y: images.seen.replay(Batch(x, y)), images.secret.batch.x[None],
                       images.secret.batch.y[None])
    assert distance({k: v[0] for k, v in stacked.items()}, images.seen.update).l2 < 1e-4


def test_dropout_goes_with_its_example(play, text_task) -> None:
    scene = play("dpsgd(clip=0.1, multiplier=0)", "informed+dropout", 2, "one_step(mode=train)", task=text_task())
    told = Batch(scene.secret.batch.x, scene.secret.batch.y, {**scene.secret.batch.extra, **scene.sent.masks})
    assert scene.sent.masks and residual(scene.seen, told).l2 < 1e-4


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_what_opacus_says(accountant: str) -> None:
    pytest.importorskip("opacus")
    from opacus.accountants import create_accountant

    theirs = create_accountant(mechanism=accountant)
    theirs.history = [(1.1, 0.02, 500)]
    ours = made(f"dpsgd(clip=1, multiplier=1.1, steps=500, rate=0.02, accountant={accountant})").privacy
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(delta=1e-5), rel=1e-6)


def test_a_wanted_epsilon_sets_the_noise() -> None:
    pytest.importorskip("opacus")
    defense = made("dpsgd(clip=1.0, epsilon=8, steps=200, rate=0.05, accountant=rdp)")
    assert 7.9 <= defense.privacy.epsilon <= 8 and 0.3 < defense.noise < 2
    assert "epsilon" in defense.meaning and "200 steps" in defense.meaning
    assert made("chain(dpsgd(clip=1.0, epsilon=8, steps=200, rate=0.05, accountant=rdp), prune(keep=0.1))").privacy
    assert made("chain(clip(norm=1.0), noise(sigma=1.0))").privacy is None
    assert made("dpsgd(clip=1, multiplier=0)").privacy.epsilon == float("inf")


def test_the_noise_has_the_size_it_says(play) -> None:
    still, loud = (play(f"dpsgd(clip=0.1, multiplier={m})", count=2).sent.release.update for m in (0, 3))
    noise = torch.cat([(loud[k] - still[k]).flatten() for k in still])
    assert float(noise.std()) == pytest.approx(3 * 0.1 / 2, rel=0.05)


@pytest.mark.parametrize(("changes", "says"), [
    ({"defenses": ("dpsgd(clip=1)",)}, "exactly one of multiplier"),
    ({"defenses": ("dpsgd(clip=0, multiplier=1)",)}, "above 0"),
    ({"defenses": ("dpsgd(clip=1, multiplier=1, rate=2)",)}, "share of the data"),
    ({"defenses": ("dpsgd(clip=1, multiplier=0.01)",)}, "accountant=rdp"),
    ({"defenses": ("dpsgd(clip=1, epsilon=1000)",)}, "accountant=rdp"),
    ({"defenses": ("dpsgd(clip=1, multiplier=1)",), "client": "local_steps(steps=2)"}, "use one_step"),
    ({"defenses": ("dpsgd(clip=1, multiplier=1)",), "task": "image(model=resnet20, data=photos(size=16, count=40))"},
     "ModuleValidator.fix"),
])
def test_what_cannot_be_private_is_refused_with_the_fix(changes, says: str) -> None:
    pytest.importorskip("opacus")
    with pytest.raises(UsageError, match=says):
        checked(Audit(**{"task": MLP, **changes}))


def test_a_table_shows_epsilon_where_there_is_one(tmp_path) -> None:
    pytest.importorskip("opacus")
    from rich.console import Console

    from gradleak.audit.drive import run
    from gradleak.report.html import page
    from gradleak.report.rows import as_json, rows
    from gradleak.report.terminal import verdict_table

    audit = Audit(task=MLP, defenses=("none", "dpsgd(clip=0.1, multiplier=2, accountant=rdp)"), attacks=("linear",),
                  threats=("informed",), trials=1)
    done = run(audit, tmp_path / "run")
    none, private = as_json(done.path)["cells"]
    assert none["epsilon"] is None and 1 < private["epsilon"] < 5
    console = Console(width=160, record=True, file=(tmp_path / "out").open("w"))
    console.print(verdict_table(rows(done)))
    shown = f"{private['epsilon']:.3g}"
    assert "epsilon" in console.export_text() and "∞" in (tmp_path / "out").read_text()
    assert "Epsilon</th>" in page(done) and shown in page(done)
