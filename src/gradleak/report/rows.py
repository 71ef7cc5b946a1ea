"""The judged rows of a run, and the one stable form scripts may rely on."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from gradleak.audit import utility
from gradleak.audit.advice import advise, weighed
from gradleak.audit.gate import Bars, held_to
from gradleak.audit.run import rescore
from gradleak.audit.store import CellDir, Run, open_run
from gradleak.audit.verdict import Row, compare_threats, picked, row
from gradleak.errors import UsageError
from gradleak.report.members import members


def rows(run: Run, most: Bars | None = None) -> list[Row]:
    """Every cell of a run, judged by its metrics' own thresholds or by the bars given, in the order of the plan."""
    found = []
    for cell, folder in run.cells():
        folder.check(cell)
        trials, metrics = folder.trials(), cell.scorers()
        _refuse_strangers(trials, {m.name for m in metrics}, folder)
        found.append(row(cell, held_to(trials, metrics, most) if most else trials, folder.done, metrics))
    return compare_threats(found)


def _refuse_strangers(trials: list[dict[str, Any]], measured: set[str], folder: CellDir) -> None:
    for name in {name for t in trials for name in t["scores"]} - measured:
        raise UsageError(f"{folder.path}: scores of {name[:40]!r}, which this audit does not measure: the run was "
                         "edited; run the audit again in another --out")


def rescored(path: Path) -> list[Row]:
    """The rows of a run whose stored guesses are measured again first."""
    run = open_run(path)
    for cell, folder in run.cells():
        rescore(cell, folder)
    return rows(run)


def as_json(path: Path) -> dict[str, Any]:
    """The stable interface of `gradleak show --json`."""
    run = open_run(path)
    judged, costs = rows(run), utility.results(run)
    advice = [asdict(one) for one in advise(weighed(judged, costs))]
    return {"cells": [{**_plain(r), "utility": _cost(costs.get((r.cell.task, r.cell.defense)))} for r in judged],
            "advice": advice}


def _cost(cost: utility.Utility | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    scores = {"accuracy": cost.accuracy, "f1": cost.f1, "mcc": cost.mcc}
    return {"rounds": cost.rounds, "seeds": cost.seeds,
            **{name: {key: _number(v) for key, v in found._asdict().items()} for name, found in scores.items()}}


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _number(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and isfinite(value) else None


def _plain(r: Row) -> dict[str, Any]:
    cell = r.cell
    return {
        "task": cell.task, "client": cell.client, "batch": cell.batch, "threat": cell.threat, "defense": cell.defense,
        "attack": cell.attack, "trials": cell.trials, "seed": cell.seed, "verdict": str(r.verdict),
        "seconds": round(r.seconds, 3), "scores": {name: asdict(s) for name, s in r.scores.items()},
        "residual": {who: _number(r.residual.get(who)) for who in ("guess", "truth")},
        "label_confidence": _mean([t["notes"].get("label_confidence") for t in r.trials]),
        "picked": {name: asdict(s) for name, s in picked(r).items()},
        "members": [asdict(member) for member in members(r)],
        "knowledge": list(r.knowledge), "uses": sorted({used for t in r.trials for used in t.get("uses", ())}),
        "reasons": list(r.reasons), "unscored": r.unscored,
        "leaked": r.leaked, "samples": r.samples, "distortion": r.distortion, "epsilon": _number(r.epsilon),
        "finished": r.finished,
    }
