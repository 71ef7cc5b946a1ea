"""The words, and the checks that suspect them."""

from typing import Any

import pytest
import torch

from gradleak import registry
from gradleak.audit import checks
from gradleak.audit.plan import Audit
from gradleak.audit.run import run_cell, score, stage
from gradleak.audit.store import CellDir
from gradleak.audit.verdict import Verdict, compare_threats, exit_code, leaked, of_trial, overall, row, worst
from gradleak.rng import Rng
from gradleak.spec import parse

SMALL = "image(model=lenet, data=photos(size=16, count=40))"


def record(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "trial": 0, "leaked": [False], "failed": None, "warnings": [], "stopped": None, "unscored": {},
        "residual": {"guess": [0.0, 0.0], "truth": [0.0, 0.0]}, "scores": {"psnr": [10.0]}, "granted": [], "unused": [],
        "distortion": 0.0, "seconds": 1.0,
    }
    return {**base, **changes}


@pytest.mark.parametrize(("changes", "verdict"), [
    ({"leaked": [True]}, Verdict.LEAKS),
    ({"leaked": [False, True], "warnings": ["odd"]}, Verdict.LEAKS),
    ({}, Verdict.HELD),
    ({"residual": {"guess": [0.101, 0], "truth": [0.1, 0]}}, Verdict.HELD),
    ({"residual": {"guess": [0.2, 0], "truth": [0.1, 0]}}, Verdict.INCONCLUSIVE),
    ({"residual": {"guess": [1e-3, 0], "truth": [0.0, 0]}}, Verdict.INCONCLUSIVE),
    ({"residual": {"guess": [float("nan"), 0], "truth": [0.0, 0]}}, Verdict.INCONCLUSIVE),
    ({"warnings": ["odd"]}, Verdict.UNRELIABLE),
    ({"failed": "does not apply"}, Verdict.INCONCLUSIVE),
])
def test_verdict_of_a_trial(changes: dict[str, Any], verdict: Verdict) -> None:
    assert of_trial(record(**changes)) is verdict


def test_one_leak_is_a_leak_and_one_doubt_a_doubt() -> None:
    assert worst([Verdict.HELD, Verdict.LEAKS, Verdict.UNRELIABLE]) is Verdict.LEAKS
    assert worst([Verdict.HELD, Verdict.INCONCLUSIVE]) is Verdict.INCONCLUSIVE
    assert worst([Verdict.HELD]) is Verdict.HELD
    assert worst([]) is Verdict.INCONCLUSIVE


def test_what_is_not_finished_has_not_held() -> None:
    cell = Audit(trials=8, threats=("curious",)).cells()[0]
    metrics = [registry.build("metric", parse("psnr"))]
    assert row(cell, [record()], False, metrics).verdict is Verdict.INCONCLUSIVE
    assert row(cell, [record(leaked=[True])], False, metrics).verdict is Verdict.LEAKS
    assert exit_code([]) == 3


def test_near_orthogonal_updates_do_not_make_everything_held() -> None:
    assert of_trial(record(residual={"guess": [1.0, 1], "truth": [0.99, 1]})) is Verdict.INCONCLUSIVE


def test_a_flat_picture_is_not_a_leak() -> None:
    metrics = [registry.build("metric", parse("psnr"))]
    assert leaked({"psnr": [25.0]}, {"psnr": [24.0]}, metrics) == [False]
    assert leaked({"psnr": [25.0]}, {"psnr": [12.0]}, metrics) == [True]
    assert leaked({"psnr": [19.0]}, {"psnr": [12.0]}, metrics) == [False]


def test_a_suspiciously_good_naive_attacker_makes_the_informed_row_unreliable() -> None:
    audit = Audit(defenses=("sign",), attacks=("dlg",))
    metrics = [registry.build("metric", parse("psnr"))]

    def judged(scores: dict[str, list[float]]) -> list[Verdict]:
        rows = [row(c, [record(scores={"psnr": scores[c.threat]})], True, metrics) for c in audit.cells()]
        return [r.verdict for r in compare_threats(rows)]

    assert judged({"curious": [18.0, 18.5], "informed": [9.0, 9.5]}) == [Verdict.HELD, Verdict.UNRELIABLE]
    assert judged({"curious": [9.0, 9.5], "informed": [18.0, 18.5]}) == [Verdict.HELD, Verdict.HELD]


def test_exit_codes() -> None:
    audit = Audit(threats=("curious",), attacks=("dlg", "linear"))
    metrics = [registry.build("metric", parse("psnr"))]
    held, doubt, leak = record(), record(failed="does not apply", scores={}), record(leaked=[True])

    def code(*records: dict[str, Any]) -> int:
        return exit_code([row(c, [r], True, metrics) for c, r in zip(audit.cells(), records, strict=True)])

    assert (code(held, doubt), code(doubt, doubt), code(leak, doubt)) == (0, 3, 1)


def played(tmp_path, **changes: Any) -> dict[str, Any]:
    fields = {"task": SMALL, "attacks": ("dlg(steps=3, restarts=1)",), "threats": ("informed",), "trials": 1, **changes}
    (cell,) = Audit(**fields).cells()
    folder = CellDir(tmp_path / cell.key)
    run_cell(cell, folder, lambda share: None)
    return folder.trials()[0]


def test_a_wrong_replay_is_found_out(tmp_path) -> None:
    task = "image(model=resnet20, data=photos(size=16, count=40))"
    right = played(tmp_path, task=task, client="one_step(mode=train)", batch=(2,))
    assert right["warnings"] == [] and right["residual"]["truth"][0] < 1e-4
    wrong = played(tmp_path, task=task, client="one_step(mode=train)", assume="one_step(mode=eval)", batch=(2,))
    assert any("does not reproduce" in w and "BatchNorm" in w for w in wrong["warnings"])
    assert of_trial(wrong) is Verdict.UNRELIABLE


def test_unused_knowledge_is_found_out(tmp_path) -> None:
    assert any("unused knowledge: labels" in w for w in played(tmp_path, threats=("informed+labels",))["warnings"])
    used = played(tmp_path, threats=("informed+labels",), attacks=("ig(steps=3, restarts=1, labels=given)",))
    assert used["warnings"] == []


def test_what_an_attack_lacks_is_said(tmp_path) -> None:
    lacking = played(tmp_path, attacks=("ig(steps=3, labels=given)",))
    assert "informed+labels" in lacking["failed"]


def test_a_sure_model_is_flagged(play) -> None:
    scene = play()
    seen, strength = scene.seen, scene.sent.strength
    typical = checks.typical_length(seen.replay, seen, 1, Rng(0))
    assert list(checks.before(seen.update, strength, typical)) == []
    assert any("nearly zero" in w for w in checks.before(seen.update, 1e-6 * strength, typical))
    broken = {k: v * float("nan") for k, v in seen.update.items()}
    assert any("NaN" in w for w in checks.before(broken, strength, typical))


def test_a_clipped_update_is_not_taken_for_a_sure_model(tmp_path) -> None:
    assert played(tmp_path, defenses=("clip(norm=0.0001)",), threats=("curious",))["warnings"] == []


def test_a_diverged_client_is_unreliable_and_not_attacked(tmp_path) -> None:
    for attack in ("dlg(steps=3, restarts=1)", "ig(steps=3, restarts=1)"):
        done = played(tmp_path, client="local_steps(steps=3, rate=1e38)", batch=(3,), attacks=(attack,))
        assert of_trial(done) is Verdict.UNRELIABLE and any("diverged" in w for w in done["warnings"])


def test_a_search_for_words_that_diverged_says_so(play, text_task) -> None:
    """Its words are always finite; where it looked is not."""
    seen = play(task=text_task(), who="curious+labels+lengths", client="one_step(mode=eval)").seen
    for rate, lost in (("1e30", True), ("0.01", False)):
        *_, guess = registry.build("attack", parse(f"tag(steps=3, rate={rate})")).guesses(seen, Rng(0))
        assert any("diverged" in warning for warning in checks.after(guess)) is lost


def test_a_converged_model_is_flagged_in_an_audit(tmp_path) -> None:
    task = "image(model=python('sure_model:build'), data=photos(size=8, count=20))"
    (tmp_path / "sure_model.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Sure(nn.Module):\n"
        "    def __init__(self, d, c):\n        super().__init__(); self.l = nn.Linear(d, c)\n"
        "    def forward(self, x):\n        return self.l(x.flatten(1)) * SCALE\n"
        "SCALE = 1.0\n"
        "def build(shape, classes):\n    return Sure(shape[0] * shape[1] * shape[2], classes)\n")
    import sys

    sys.path.insert(0, str(tmp_path))
    (cell,) = Audit(task=task, attacks=("linear",), threats=("curious",), trials=1,
                    defenses=("noise(sigma=0.1)",)).cells()
    world = cell.world()
    secret = stage(cell, 0).secret
    label = int(secret.labels[0])
    world.learner.params["l.bias"][:] = -60.0  # type: ignore[index]
    world.learner.params["l.bias"][label] = 60.0  # type: ignore[index]
    folder = CellDir(tmp_path / cell.key)
    run_cell(cell, folder, lambda share: None)
    assert any("nearly zero" in w for w in folder.trials()[0]["warnings"])


@pytest.mark.slow
def test_strong_noise_never_leaks(tmp_path) -> None:
    for attack in ("dlg(steps=150, restarts=1)", "ig(steps=150, restarts=1)"):
        assert of_trial(played(tmp_path, attacks=(attack,))) is Verdict.LEAKS
        for trial in range(3):
            done = played(tmp_path, defenses=("noise(relative=10)",), attacks=(attack,), seed=trial)
            assert of_trial(done) is not Verdict.LEAKS


def test_score_uses_one_assignment(play) -> None:
    scene = play(count=3)
    metrics = [registry.build("metric", parse(name)) for name in ("psnr", "label_accuracy")]
    shuffled = scene.secret.readings[[1, 2, 0]]
    found = score(metrics, shuffled, torch.zeros(3, 10), scene.secret, scene.world)
    assert found["match"] == [2, 0, 1] and min(found["scores"]["psnr"]) == 120 and found["leaked"] == [True] * 3


def test_an_attack_that_breaks_is_a_row_that_says_so(tmp_path, monkeypatch) -> None:
    from gradleak.attacks.descent import Descent

    def broken(self, seen, rng, start=None):
        raise RuntimeError("singular matrix")
        yield

    monkeypatch.setattr(Descent, "guesses", broken)
    done = played(tmp_path)
    assert "singular matrix" in done["failed"] and of_trial(done) is Verdict.INCONCLUSIVE


def test_a_budget_stops_cleanly_and_says_so(tmp_path) -> None:
    done = played(tmp_path, attacks=("ig(steps=100000, restarts=1)",), budget="1 s")
    assert "stopped by the budget at step" in done["stopped"]


def test_attacks_together() -> None:
    audit = Audit(threats=("curious",), attacks=("dlg", "ig"))
    metrics = [registry.build("metric", parse("psnr"))]
    both = [record(scores={"psnr": [30.0, 10.0]}, residual={"guess": [0.2, 0], "truth": [0, 0]}),
            record(scores={"psnr": [20.0, 15.0]}, residual={"guess": [0.1, 0], "truth": [0, 0]})]
    rows = [row(c, [r], True, metrics) for c, r in zip(audit.cells(), both, strict=True)]
    (one,) = overall(rows, "psnr", "higher")
    assert one.worst.per_sample == (30.0, 15.0) and one.picked.per_sample == (20.0, 15.0)
    assert overall(rows[:1], "psnr", "higher") == []
