"""Many clients as one, and the same audit at several points of training."""

import pytest
import torch

from gradleak import registry
from gradleak.audit.drive import run
from gradleak.audit.plan import Audit, checked
from gradleak.errors import UsageError
from gradleak.factored import dense
from gradleak.lanes import Lanes
from gradleak.report.html import page
from gradleak.report.rows import rows
from gradleak.report.stages import stage
from gradleak.residual import distance, norm, residual
from gradleak.spec import parse

MLP = "image(model=mlp(width=16), data=photos(size=8, count=40))"


def test_clients_with_equal_batches_send_together_what_one_with_all_would(play) -> None:
    alone, together = (play(defense, count=4).sent.release.update for defense in ("none", "aggregate(clients=2)"))
    assert distance(together, alone).l2 < 1e-5


def test_each_client_defends_itself_before_they_are_added(play) -> None:
    scene = play("chain(clip(norm=0.1), aggregate(clients=2))", count=4)
    assert norm(scene.sent.release.update) < 0.1 and residual(scene.seen, scene.secret.batch).l2 < 1e-4
    outside = play("chain(aggregate(clients=2), clip(norm=0.1))", count=4)
    assert norm(outside.sent.release.update) == pytest.approx(0.1, rel=1e-4)
    assert scene.defense.clients == 2 and registry.build("defense", parse("chain(sign)")).clients == 1


def test_words_are_replayed_in_lanes_factored(play, text_task) -> None:
    scene = play("aggregate(clients=2)", "informed", 4, "one_step(mode=eval)", task=text_task())
    batch = scene.secret.batch
    parts = [torch.stack([t, t.flip(0)]) for t in (batch.x, batch.y)]
    extra = {k: torch.stack([v, v.flip(0)]) for k, v in batch.extra.items()}
    assert Lanes(scene.seen.replay, *parts, extra, factor=True).way == "factored"


@pytest.mark.parametrize(("rate", "way"), [(1e-4, "factored"), (3.0, "at once")])
def test_small_local_steps_are_searched_as_one_and_judged_as_they_are(play, text_task, rate: float, way: str) -> None:
    """One gradient stands for them only where it goes their way; the replay that judges stays the client's own."""
    scene = play(task=text_task(), count=4, client=f"local_steps(steps=4, rate={rate}, mode=eval)")
    truth = scene.secret.batch
    both = [torch.stack([each, each]) for each in (truth.x, truth.y)]
    extra = {name: torch.stack([value, value]) for name, value in truth.extra.items()}
    lanes = Lanes(scene.seen.replay, *both, extra, factor=True)
    assert lanes.way == way and residual(scene.seen, truth).cosine < 1e-6
    fast = {name: value[0] for name, value in dense(lanes(*both, extra)).items()}
    assert distance(fast, scene.seen.update).l2 < 0.05



def test_an_audit_looks_for_the_examples_of_every_client(tmp_path) -> None:
    audit = Audit(task=MLP, defenses=("none", "aggregate(clients=3)"), attacks=("dlg(steps=2, restarts=1)",),
                  threats=("informed",), trials=1, metrics=("psnr",), batch=(2,))
    done = run(audit, tmp_path / "run")
    assert [r.samples for r in rows(done)] == [2, 6] and "aggregate(clients=3)" in page(done)
    with pytest.raises(UsageError, match="larger than the data"):
        checked(Audit(task=MLP, defenses=("aggregate(clients=99)",)))
    with pytest.raises(UsageError, match="at least 1"):
        checked(Audit(task=MLP, defenses=("aggregate(clients=0)",)))


def test_a_plot_goes_over_training(tmp_path) -> None:
    audit = Audit(task="image(model=mlp(width=16), data=photos(size=8, count=40), train=sweep(0, 20), draw=loss)",
                  attacks=("linear",), threats=("informed",), trials=1, metrics=("psnr",))
    done = run(audit, tmp_path / "run")
    assert "Leakage over training" in page(done) and "fresh" in page(done)
    assert stage("image(model=lenet, train=20)") == (stage("image(model=lenet, train=7)")[0], 20)
