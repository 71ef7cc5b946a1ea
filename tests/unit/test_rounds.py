"""A client seen again and again: its updates are matched together."""

import pytest
import torch

from gradleak import registry
from gradleak.audit.plan import Audit
from gradleak.audit.run import run_cell, stage
from gradleak.audit.store import CellDir
from gradleak.errors import UsageError
from gradleak.residual import norm, residual
from gradleak.rng import Rng
from gradleak.spec import parse

CLIENT = "rounds(one_step, times=3, rate=0.5)"
MLP = "image(model=mlp(width=64), data=photos(size=16, count=40))"


@pytest.mark.parametrize("defense", ["none", "clip(norm=0.1)", "prune(keep=0.2)", "prune(keep=0.2, by=random)",
                                     "topk(keep=0.2)"])
def test_the_truth_explains_every_round(play, defense: str) -> None:
    scene = play(defense, "informed", 2, CLIENT)
    assert len(scene.sent.release.later) == 2
    assert set(scene.seen.update) == {f"{n}{name}" for n in ("", "1:", "2:") for name in scene.seen.params}
    assert residual(scene.seen, scene.secret.batch).l2 < 1e-4
    assert set(scene.seen.rehearse(scene.secret.batch, None)) == set(scene.seen.update)


def test_the_server_moves_along_what_it_was_sent(play) -> None:
    release = play("clip(norm=0.1)", client=CLIENT).sent.release
    (weights, _), _ = release.later
    for name, value in release.params.items():
        assert torch.allclose(weights[name], value - 0.5 * release.update[name])


def test_what_is_not_sent_is_sent_later(play) -> None:
    """With weights that stand still, every round computes the same: after enough of them everything has been sent."""
    scene = play("topk(keep=0.5)", client="rounds(one_step, times=2, rate=0)")
    plain = play(client="rounds(one_step, times=2, rate=0)").sent.release.update
    ((_, second),) = scene.sent.release.later
    first = scene.sent.release.update
    for name, value in plain.items():
        again = second[name] != 0
        assert torch.allclose(first[name], value * (first[name] != 0))
        assert torch.allclose(second[name], (value + value * (first[name] == 0)) * again, atol=1e-6)
    left = {name: 2 * value - first[name] - second[name] for name, value in plain.items()}
    forgot = play("prune(keep=0.5)", client="rounds(one_step, times=2, rate=0)").sent.release
    lost = {name: 2 * value - forgot.update[name] - forgot.later[0][1][name] for name, value in plain.items()}
    assert norm(left) < norm(lost)


def test_noise_is_drawn_anew_each_round(play) -> None:
    release = play("noise(sigma=1)", client="rounds(one_step, times=2, rate=0)").sent.release
    ((_, second),) = release.later
    assert all(not torch.equal(second[name], value) for name, value in release.update.items())


def test_a_false_candidate_is_further_off_the_more_rounds_are_seen(play) -> None:
    """Under noise one update can be explained by chance; several at once less so."""
    gaps = []
    for times in (1, 8):
        scene = play("noise(relative=2)", "informed", 1, f"rounds(one_step, times={times}, rate=0.1)")
        false = residual(scene.seen, play(trial=1).secret.batch).cosine
        gaps.append(false / residual(scene.seen, scene.secret.batch).cosine)
    assert gaps[1] > 1 and gaps[0] > 0.9


def test_attacks_that_read_layers_read_the_first_round(play) -> None:
    scene = play("none", "curious", 1, CLIENT, task=MLP)
    *_, last = registry.build("attack", parse("linear")).guesses(scene.seen, Rng(0))
    assert float((last.reading - scene.secret.readings).square().mean()) < 1e-4
    *_, found = registry.build("attack", parse("dlg(steps=3, restarts=2)")).guesses(scene.seen, Rng(0))
    assert found.reading.shape == (1, 3, 16, 16)


def test_an_audit_of_rounds_runs_and_words_drop_anew(text_task, tmp_path) -> None:
    (cell,) = Audit(task=text_task(), client="rounds(one_step(mode=train), times=2)", attacks=("tag(steps=2)",),
                    threats=("curious+labels+lengths",), trials=1).cells()
    folder = CellDir(tmp_path / "cell")
    run_cell(cell, folder, lambda share: None)
    assert folder.done and folder.trials()[0]["scores"]
    assert stage(cell, 0).sent.masks == {} and not stage(cell, 0).exact
    with pytest.raises(UsageError, match="times from 1"):
        registry.build("client", parse("rounds(times=0)"))
