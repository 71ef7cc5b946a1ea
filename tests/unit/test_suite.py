"""The standard suite: what its attacks find together, and when it stops."""

import json
import shutil

import pytest

from gradleak import registry
from gradleak.audit import checks, several, suite
from gradleak.audit.drive import run
from gradleak.audit.plan import Audit, Cell, unmet
from gradleak.audit.run import rescore, run_cell
from gradleak.audit.store import CellDir
from gradleak.audit.suite import Member, Suite
from gradleak.audit.verdict import Verdict, overall, picked, row
from gradleak.errors import UsageError
from gradleak.report.html import page
from gradleak.report.members import members
from gradleak.report.rows import as_json
from gradleak.residual import Residual
from gradleak.spec import Call, parse
from gradleak.threats import PROTOCOL
from gradleak.types import Know

MLP = "image(model=mlp(width=64), data=photos(size=16, count=40))"
LENET = "image(model=lenet, data=photos(size=16, count=40))"
SHORT = Suite((Member("linear"), Member("dlg(steps=4, restarts=1)"), Member("ig(steps=4, restarts=1)")),
              (Member("subspace"), Member("tag(steps=2)"), Member("lamp(steps=2)", over=("tag",))))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setitem(suite.STANDARD_V1, "quick", SHORT)


def cell(task: str = LENET, **changes) -> Cell:
    table = {"task": task, "attacks": ("standard-v1(quick)",), "threats": ("curious",), "trials": 1, **changes}
    (one,) = Audit(**table).cells()
    return one


def finished(one: Cell, path) -> CellDir:
    folder = CellDir(path)
    run_cell(one, folder, lambda share: None)
    return folder


def judged(one: Cell, folder: CellDir):
    return row(one, folder.trials(), folder.done, one.scorers())


def test_a_dash_joins_names_and_is_no_difference() -> None:
    assert parse("standard-v1") == Call("standard-v1")
    assert parse("standard-v1(quick)") == Call("standard-v1", (Call("quick"),))
    assert repr(parse("a(b-c-d)")) == "a(b-c-d)"
    for text in ("standard - v1", "standard-1", "f(1)-v1", "1-2", "-v1", "a-b.c"):
        with pytest.raises(UsageError):
            parse(text)
    with pytest.raises(UsageError, match="did you mean 'standard-v1'"):
        cell(attacks=("standard-v2",)).opponent()


@pytest.mark.parametrize("profile", ["full", "quick"])
def test_every_member_can_be_built_and_needs_public_data_at_most(profile: str) -> None:
    made = registry.build("suite", parse(f"standard-v1({profile})"))
    for member in (*made.images, *made.words):
        needs = registry.build("attack", parse(member.attack)).needs
        assert needs <= PROTOCOL | {Know.PUBLIC_DATA, Know.TOKEN_FREQUENCIES}
        names = {m.name for m in made.members(member in made.words)}
        assert set(member.over) <= names
    assert made.evaluations > 1 and unmet(cell()) == []


def test_a_report_shows_what_each_attack_did(short, tmp_path) -> None:
    done = run(Audit(task=MLP, attacks=("standard-v1(quick)",), threats=("curious",), trials=1), tmp_path / "run")
    shown, (told,) = page(done, show_truth=True), as_json(done.path)["cells"]
    assert "The suite, attack by attack" in shown and "1 spared" in shown
    assert [m["attack"] for m in told["members"]] == [m.attack for m in SHORT.images] and told["picked"]["psnr"]


def test_what_is_read_spares_the_rest(short, tmp_path) -> None:
    one = cell(MLP)
    found = judged(one, finished(one, tmp_path / "cell"))
    assert found.verdict is Verdict.LEAKS and found.leaked == 1
    first, *rest = members(found)
    assert (first.attack, first.read, first.tried) == ("linear", 1, 1)
    assert all(member.spared == 1 and member.seconds == 0 for member in rest)


def test_per_sample_the_suite_reads_as_much_as_any_of_its_attacks(short, tmp_path) -> None:
    one = cell(batch=(2,), defenses=("noise(relative=1)",))
    together = judged(one, finished(one, tmp_path / "cell"))
    assert together.samples == 2 and [m.tried for m in members(together)] == [1, 1, 1]
    alone = []
    for attack in ("dlg(steps=4, restarts=1)", "ig(steps=4, restarts=1)"):
        single = cell(batch=(2,), defenses=("noise(relative=1)",), attacks=(attack,))
        alone.append(judged(single, finished(single, tmp_path / attack[:3])))
    for name in ("psnr", "ssim"):
        best = [max(pair) for pair in zip(*(r.scores[name].per_sample for r in alone), strict=True)]
        assert together.scores[name].per_sample == pytest.approx(best)
    pick = min(alone, key=lambda r: r.residual["guess"])
    assert picked(together)["psnr"].per_sample == pytest.approx(pick.scores["psnr"].per_sample)
    assert together.residual == pytest.approx(pick.residual)
    (both,) = overall([together], "psnr", "higher")
    assert both.attacks == 3 and both.worst.mean >= both.picked.mean


def test_a_killed_suite_goes_on_with_the_attack_it_was_at(short, tmp_path) -> None:
    one = cell(batch=(2,))
    whole = finished(one, tmp_path / "cell")
    again = CellDir(tmp_path / "again")
    shutil.copytree(whole.path, again.path)
    for name in ("done", "scores.json", "guess.safetensors", "members/2-ig/scores.json"):
        (again.path / name).unlink()
    touched = (again.path / "members/1-dlg/scores.json").stat().st_mtime_ns
    run_cell(one, again, lambda share: None)
    assert (again.path / "members/1-dlg/scores.json").stat().st_mtime_ns == touched
    assert again.trials()[0]["scores"] == whole.trials()[0]["scores"]
    assert again.guess(0)["reading"].equal(whole.guess(0)["reading"])


def test_scoring_again_changes_nothing(short, tmp_path) -> None:
    one = cell(batch=(2,))
    folder = finished(one, tmp_path / "cell")
    before = json.dumps(folder.trials(), sort_keys=True)
    rescore(one, folder)
    assert json.dumps(folder.trials(), sort_keys=True) == before


def test_every_attack_has_its_share_of_the_time() -> None:
    one, parts = cell(budget="60 s"), [Member("linear", 1.0), Member("dlg", 2.0), Member("ig", 3.0)]
    spent = [{"seconds": 1.0}, {"seconds": 50.0}]
    assert several._own(one, parts[0], [], parts).budget == pytest.approx(10)
    assert several._own(one, parts[1], spent[:1], parts).budget == pytest.approx(59 * 2 / 5)
    assert several._own(one, parts[2], spent, parts).budget == pytest.approx(30)
    idle = several.timed(one, [*parts, Member("ridge_inverter", 50.0)])  # nobody grants what it needs
    assert [m.share for m in idle] == [1.0, 2.0, 3.0, 0.0]
    assert several._own(one, parts[0], [], idle).budget == pytest.approx(10)
    assert several._own(one, idle[3], [*spent, {"seconds": 1.0}], idle).budget >= 0


def answered(score: float, **changes) -> dict:
    return {"trial": 0, "leaked": [False], "failed": None, "warnings": [], "cautions": [], "stopped": None,
            "unscored": {}, "match": [0], "residual": {"guess": [0.1, 0.1], "truth": [0.1, 0.1]}, "seconds": 1.0,
            "scores": {"rougeL": [score]}, "granted": ["labels"], "unused": ["labels"], "uses": [], **changes}


def test_a_weak_attack_that_reads_more_is_suspicious() -> None:
    one = cell(threats=("curious+labels",), metrics=("rougeL",))
    parts = SHORT.words[1:]

    def told(*records: dict) -> list[str]:
        return several.together(one, parts, 0, records, one.scorers())["warnings"]

    assert any("weaker" in w for w in told(answered(0.9, unused=[]), answered(0.1, unused=[])))
    assert not told(answered(0.9, unused=[]), answered(0.1, unused=[], stopped="stopped"))
    assert not told(answered(0.1, unused=[]), answered(0.3, unused=[]))
    assert not told(answered(0.1), answered(0.3, unused=[]))
    assert any("unused knowledge: labels" in w for w in told(answered(0.1), answered(0.3)))


def test_sentences_are_put_together_too(short, text_task, tmp_path) -> None:
    one = cell(text_task(), client="one_step(mode=eval)", batch=(2,), defenses=("noise(relative=3)",),
               threats=("curious+labels+lengths",))
    folder = finished(one, tmp_path / "cell")
    (trial,) = folder.trials()
    assert [m["attack"] for m in trial["members"]] == ["subspace", "tag(steps=2)", "lamp(steps=2)"]
    reading = folder.guess(0)["reading"]
    assert reading.shape[0] == 2 and folder.guess(0)["certain"].shape == reading.shape


def test_an_answer_of_none_is_a_row(short, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(suite.STANDARD_V1, "quick", Suite((Member("linear"),), ()))
    one = cell()
    found = judged(one, finished(one, tmp_path / "cell"))
    assert found.verdict is Verdict.INCONCLUSIVE and any("no attack of standard-v1" in r for r in found.reasons)


def test_the_client_is_looked_at_before_it_is_attacked(open_world) -> None:
    learner = open_world(LENET).learner
    update = dict(learner.params)
    assert list(checks.before(update, 1.0, 1.0)) == []
    assert any("nothing but zeros" in said for said in checks.before(update, 1.0, 1.0, alive=0.3))
    client, truth = cell().participation(), Residual(0.25, 0.5)
    assert list(checks.cautions(learner, client, False, truth)) == []
    (said,) = checks.cautions(learner, client, True, truth)
    assert "draws at random" in said and "2e-01" in said
    normed = open_world("image(model=resnet20, data=photos(size=16, count=40))").learner
    (said,) = checks.cautions(normed, client, False, truth)
    assert "BatchNorm" in said


def test_a_dead_network_is_unreliable_and_a_caution_changes_nothing(short, tmp_path) -> None:
    one = cell(client="one_step(mode=eval)")
    kept = finished(one, tmp_path / "cell").trials()[0]
    told = {**kept, "leaked": [False], "cautions": ["take care"],
            "residual": {"guess": [0.0, 0.0], "truth": [0.0, 0.0]}}
    found = row(one, [told], True, one.scorers())
    assert found.verdict is Verdict.HELD and "take care" in found.reasons
    assert row(one, [{**told, "warnings": ["dead"]}], True, one.scorers()).verdict is Verdict.UNRELIABLE
