"""What defenses cost: training under them, stopped early, seeded, resumable; and how good a model is."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from gradleak.audit import utility
from gradleak.audit.drive import run
from gradleak.audit.plan import Audit, checked
from gradleak.audit.store import Run
from gradleak.audit.training import split
from gradleak.errors import UsageError
from gradleak.report.economics import print_economics
from gradleak.report.html import page
from gradleak.report.rows import as_json, rows
from gradleak.rng import Rng

TASK = "image(model=mlp(width=16), data=photos(size=8, count=120))"
SHORT = "federated(rounds=12, clients=2, batch=8, every=4, rate=0.01)"


def audit(**changes) -> Audit:
    return Audit(**{"task": TASK, "threats": ("curious",), "utility": SHORT, "attacks": ("linear",), "trials": 1,
                    **changes})


def trained(tmp_path, one: Audit) -> dict[str, dict]:
    store = Run(tmp_path)
    store.begin(one)
    for job, cell in utility.jobs(one):
        utility.run_job(job, cell, utility.folder_of(store, job), lambda share: None)
    return {job.defense: json.loads((utility.folder_of(store, job) / "result.json").read_text())
            for job, _ in utility.jobs(one)}


def test_scores_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    true, said = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    said[:120] = true[:120]
    table = np.zeros((5, 5), dtype=np.int64)  # a class that never occurs counts for nothing
    np.add.at(table, (true, said), 1)
    assert utility.accuracy(table) == pytest.approx(metrics.accuracy_score(true, said))
    assert utility.macro_f1(table) == pytest.approx(metrics.f1_score(true, said, average="macro"))
    assert utility.mcc(table) == pytest.approx(metrics.matthews_corrcoef(true, said))
    assert utility.mcc(np.array([[5, 0], [5, 0]])) == 0


def test_intervals_cover_and_shrink_with_more_examples() -> None:
    few, many = (utility.summary([{"confusion": [[6 * n, 2 * n], [n, 7 * n]], "rounds": 3, "seconds": 1.0}])
                 for n in (1, 40))
    assert few.accuracy.mean == many.accuracy.mean == pytest.approx(13 / 16)
    assert few.mcc.low < many.mcc.low < many.mcc.mean < many.mcc.high < few.mcc.high


def test_a_model_learns_and_strong_noise_unlearns(tmp_path) -> None:
    found = trained(tmp_path / "run", audit(
        defenses=("none", "noise(relative=300)"), utility="federated(rounds=60, clients=2, batch=32, rate=0.01)"))
    none, noisy = (found[d]["right"] / found[d]["tested"] for d in ("none", "noise(relative=300)"))
    assert none > 0.3 > noisy


def test_a_killed_training_goes_on_to_the_same_end(tmp_path, monkeypatch) -> None:
    one = audit(defenses=("noise(relative=0.1)", "topk(keep=0.1)"))
    whole = trained(tmp_path / "whole", one)
    store = Run(tmp_path / "cut")
    store.begin(one)

    def killed(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    for job, cell in utility.jobs(one):
        with pytest.raises(KeyboardInterrupt):
            utility.run_job(job, cell, utility.folder_of(store, job), killed)
    assert utility.results(store) == {}
    again = trained(tmp_path / "cut", one)
    assert {d: r["confusion"] for d, r in again.items()} == {d: r["confusion"] for d, r in whole.items()}


def test_training_stops_where_nothing_is_gained(tmp_path) -> None:
    found = trained(tmp_path / "run", audit(
        utility="federated(rounds=400, clients=2, batch=8, every=2, patience=2, rate=1.0)"))
    assert found["none"]["rounds"] < 400


def test_no_example_is_both_trained_on_and_tested() -> None:
    plan = utility.federated("federated(clients=3)")
    parts = split(plan, torch.arange(50), Rng(0))
    every = torch.cat([*parts.shards, parts.looked, parts.tested])
    assert sorted(every.tolist()) == list(range(50)) and len(parts.tested) == 10
    with pytest.raises(UsageError, match="too few"):
        split(plan, torch.arange(3), Rng(0))


def test_averages_of_local_steps_and_of_words_train_too(tmp_path, text_task) -> None:
    local = trained(tmp_path / "local", audit(client="local_steps(steps=2, rate=0.1)"))
    words = trained(tmp_path / "words", audit(
        task=text_task(), attacks=("subspace",), defenses=("dpsgd(clip=1.0, multiplier=1, accountant=rdp)",),
        utility="federated(rounds=2, clients=1, batch=2, every=1, test=0.4)"))
    assert local["none"]["tested"] == 24 and sum(map(sum, next(iter(words.values()))["confusion"])) == 2


def test_an_audit_trains_each_defense_once_for_every_seed(tmp_path) -> None:
    one = audit(defenses=("none", "sign"), threats=("curious", "informed"), batch=(1, 2),
                utility="federated(rounds=2, seeds=2, clients=2, every=1)")
    assert len(utility.jobs(one)) == 4
    done = run(one, tmp_path / "run")
    assert {defense for _, defense in utility.results(done)} == {"none", "sign"}
    assert all(found.seeds == 2 for found in utility.results(done).values())
    shown, told = page(done), as_json(done.path)
    assert "cost-table" in shown and "Pareto front" in shown and told["advice"][0]["sentence"][:40] in shown
    assert all(0 <= cell["utility"]["accuracy"]["low"] <= cell["utility"]["accuracy"]["high"] for cell in told["cells"])
    with (tmp_path / "said").open("w") as file:
        print_economics(done, rows(done), Console(file=file, width=150))
    assert "buys and costs" in (tmp_path / "said").read_text() and "recommend" in (tmp_path / "said").read_text()


@pytest.mark.parametrize(("text", "says"), [("federated(rounds=0)", "from 1"), ("federal", "did you mean")])
def test_a_training_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        checked(audit(utility=text))
