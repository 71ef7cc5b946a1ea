"""An audit of text: the same plan, run, checks and verdicts."""

import dataclasses
from pathlib import Path

import pytest
import torch

from gradleak import registry
from gradleak.audit import checks
from gradleak.audit.plan import Audit, Cell, checked, from_table, read
from gradleak.audit.run import _packed, _resumed, rescore, run_cell, score, stage
from gradleak.audit.store import CellDir, to_toml
from gradleak.audit.verdict import Row, Verdict, compare_threats, lead, row
from gradleak.errors import UsageError
from gradleak.metrics.summary import summarise
from gradleak.probe import probe
from gradleak.report.samples import samples
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch, Guess, Know

pytest.importorskip("transformers")
TASK = "text(model=minilm, data=sentences)"


def cell_of(who: str = "curious+labels+lengths", client: str = "one_step(mode=eval)", **more: object) -> Cell:
    (cell,) = Audit(task=TASK, client=client, threats=(who,), batch=(2,), trials=2, **more).cells()
    return cell


class Knows:
    """Answers with what it was made with, one word too long."""

    needs, evaluations = frozenset({Know.COUNT, Know.LABELS, Know.LENGTHS}), 1

    def __init__(self, answers: dict[int, Guess]) -> None:
        self.answers = answers

    def guesses(self, seen, rng, start=None):
        assert len(seen.facts[Know.LABELS]) == len(seen.facts[Know.LENGTHS]) == seen.facts[Know.COUNT]
        yield self.answers.pop(min(self.answers))


def truth_as_guess(cell: Cell, trial: int) -> Guess:
    secret = stage(cell, trial).secret
    wide = torch.nn.functional.pad(secret.readings.flip(0), (0, 3), value=NOTHING)
    batch = secret.batch
    extra = {name: value.flip(0) for name, value in batch.extra.items()}
    return Guess(Batch(batch.x.flip(0), batch.y.flip(0), extra), wide, 1, 1)


def test_a_cell_of_text_runs_from_plan_to_verdict(tmp_path: Path, monkeypatch) -> None:
    cell = cell_of()
    answers = {trial: truth_as_guess(cell, trial) for trial in range(2)}
    attacker = Knows(dict(answers))
    monkeypatch.setattr(Cell, "attacker", lambda self: attacker)
    folder = CellDir(tmp_path / "cell")
    run_cell(cell, folder, lambda share: None)
    judged = row(cell, folder.trials(), folder.done, cell.scorers())
    assert judged.verdict is Verdict.LEAKS and judged.leaked == judged.samples == 4, judged.reasons
    assert judged.scores["exact_match"].mean == judged.scores["rougeL"].mean == 1.0
    assert judged.scores["label_accuracy"].mean == 1.0 and judged.unused == ("local_steps",)
    assert folder.trials()[0]["match"] == [1, 0]
    assert all(value < 1 for trial in folder.trials() for value in trial["blind"]["rougeL"])
    assert all(event["rougeL"] == 1.0 for event in folder.events())
    assert torch.equal(folder.guess(1)["_extra.mask"], answers[1].batch.extra["mask"])
    before = folder.trials()
    rescore(cell, folder)
    assert folder.trials() == before


def test_what_an_attack_proved_is_kept_and_shown(tmp_path: Path, monkeypatch) -> None:
    cell = cell_of()
    guess = truth_as_guess(cell, 0)
    proven = torch.zeros(guess.reading.shape, dtype=torch.bool)
    proven[0, :3] = True  # what opens the sentence, and two words
    attacker = Knows({trial: dataclasses.replace(guess, certain=proven) for trial in range(2)})
    monkeypatch.setattr(Cell, "attacker", lambda self: attacker)
    folder = CellDir(tmp_path / "cell")
    run_cell(cell, folder, lambda share: None)
    judged = row(cell, folder.trials(), folder.done, cell.scorers())
    shown = list(samples(judged, None, {cell.key: folder}, False))[:2]
    assert torch.equal(folder.guess(0)["certain"], proven)
    assert [sample.recovered.certain for sample in shown] == [0, 2]  # the guess holds the sentences in another order
    assert [word.certain for word in shown[1].recovered.words][:3] == [True, True, False]


def test_wrong_words_do_not_leak() -> None:
    cell = cell_of()
    scene = stage(cell, 0)
    other = scene.world.blind(scene.secret)
    found = score(cell.scorers(), other, torch.zeros(2, 2), scene.secret, scene.world)
    assert found["leaked"] == [False, False] and found["scores"]["exact_match"] == [0, 0]


def test_a_guess_is_kept_with_its_extras() -> None:
    batch = Batch(torch.rand(1, 3, 4), torch.tensor([1]), {"mask": torch.ones(1, 3), "drop.0": torch.rand(1, 3, 4)})
    guess = Guess(batch, torch.tensor([[1, 2, NOTHING]]), 3, 9, {"s": torch.ones(2)}, {"n": 1.0})
    again = _resumed(_packed(guess))
    assert again is not None and (again.step, again.steps, again.notes) == (3, 9, {"n": 1.0})
    assert set(again.batch.extra) == {"mask", "drop.0"}
    assert all(torch.equal(again.batch.extra[k], v) for k, v in guess.batch.extra.items())
    assert again.reading.dtype == torch.long


def test_told_what_was_dropped_the_truth_explains_everything() -> None:
    told, not_told = (stage(cell_of(who, "one_step(mode=train)"), 0) for who in ("curious+dropout", "curious"))
    assert told.exact and told.truth.cosine < 1e-9
    assert not not_told.exact and not_told.truth.cosine > 1e-3
    with_masks = Guess(dataclasses.replace(not_told.secret.batch, extra={"drop.0": torch.ones(1)}), torch.zeros(1))
    assert not_told.truth_like(with_masks).cosine < 1e-9
    assert not_told.truth_like(Guess(not_told.secret.batch, torch.zeros(1))) == not_told.truth


def test_an_attacker_who_assumes_no_dropout_sees_no_sites() -> None:
    cell = cell_of("curious", "one_step(mode=train)", assume="one_step(mode=eval)")
    scene = stage(cell, 0)
    assert not scene.seen.sites(scene.secret.batch)


@pytest.mark.parametrize("task", [TASK, "text(model=transformer3, limit=8)", "image"])
def test_probes_are_plausible(task: str) -> None:
    (cell,) = Audit(task=task, batch=(3,), threats=("curious",)).cells()
    scene = stage(cell, 0)
    batch = probe(scene.seen, 3, Rng(0))
    assert len(batch.x) == len(batch.y) == 3
    assert torch.equal(batch.x, probe(scene.seen, 3, Rng(0)).x)
    length = checks.typical_length(scene.seen.replay, scene.seen, 3, Rng(0))
    assert scene.sent.strength / 30 < length < 30 * scene.sent.strength
    if scene.seen.vocabulary is not None:
        assert batch.extra["ids"].shape == (3, min(12, scene.seen.shape[0]))
        assert batch.extra["ids"][:, 0].tolist() == [101] * 3 and batch.extra["ids"][:, -1].tolist() == [102] * 3
        assert scene.seen.vocabulary.usable[batch.extra["ids"][:, 1:-1]].all()


def test_the_lead_metric() -> None:
    def names(*specs: str) -> list:
        return [registry.build("metric", parse(spec)) for spec in specs]

    assert lead(names("exact_match", "rouge1", "rougeL")).name == "rougeL"
    assert lead(names("label_accuracy", "psnr", "mse")).name == "psnr"
    assert lead(names("label_accuracy")) is None


def test_the_informed_attacker_is_suspected_on_text_too() -> None:
    def judged(who: str, scores: list[float]) -> Row:
        cell = cell_of(who)
        summary = {"rougeL": summarise(scores, "higher")}
        return Row(cell, Verdict.HELD, (), summary, {}, {}, 0, 4, (), (), None, 0.0, True, ())

    naive, informed = [0.8, 0.9, 0.85, 0.9], [0.1, 0.2, 0.15, 0.1]
    assert compare_threats([judged("curious", naive), judged("informed", informed)])[1].verdict is Verdict.UNRELIABLE
    assert compare_threats([judged("curious", informed), judged("informed", naive)])[1].verdict is Verdict.HELD


def test_the_written_audit_reads_back(tmp_path: Path) -> None:
    audit = Audit(task=TASK, attacks=("linear",), threats=("curious",))
    (tmp_path / "audit.toml").write_text(to_toml(audit))
    assert read(tmp_path / "audit.toml") == audit


def test_thresholds_of_the_tasks_own_metrics() -> None:
    audit = checked(Audit(task=TASK, attacks=("linear",), threats=("curious",), leak_at={"rougeL": 0.9}))
    assert "rougeL(leak_at=0.9)" in audit.cells()[0].metrics
    with pytest.raises(UsageError, match="not among the metrics"):
        checked(Audit(task=TASK, attacks=("linear",), threats=("curious",), leak_at={"psnr": 20}))


def test_every_problem_of_a_plan_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        from_table({"task": "text(model=nothing)", "defenses": ["none", "prun"], "attacks": ["linear"]})
    assert "nothing" in str(caught.value) and "prun" in str(caught.value)
