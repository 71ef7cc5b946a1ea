"""LEAKS, HELD, INCONCLUSIVE or UNRELIABLE: see DESIGN section 7."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from gradleak.audit.plan import Cell
from gradleak.metrics.summary import Summary, summarise
from gradleak.types import Metric


class Verdict(StrEnum):
    LEAKS = "LEAKS"
    HELD = "HELD"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNRELIABLE = "UNRELIABLE"


MEANING = {
    Verdict.LEAKS: "at least one private example was read back",
    Verdict.HELD: "the attack explained the update as well as the truth does, by something else",
    Verdict.INCONCLUSIVE: "the search failed to explain the update: no evidence either way",
    Verdict.UNRELIABLE: "a self-check fired: the number must not be trusted",
}

SLACK, SLACK_SHARE = 1e-5, 0.02
"""A guess explains the update as well as the truth does up to this much (cosine distance), and this share of the
truth's distance from explaining it fully or not at all, whichever is nearer."""


def lead(metrics: Sequence[Metric]) -> Metric | None:
    """The metric one line speaks of: one that is made for it, else the first about readings."""
    readings = [m for m in metrics if getattr(m, "about", "readings") == "readings"]
    return next((m for m in readings if getattr(m, "lead", False)), readings[0] if readings else None)


def leaked(scores: dict[str, list[float]], blind: dict[str, list[float]], metrics: Sequence[Metric]) -> list[bool]:
    """Per sample: past a metric's threshold, and clearly better than a guess made without the update."""
    count = max((len(values) for values in scores.values()), default=0)
    return [any(_passes(m, scores[m.name][i], blind.get(m.name), i) for m in metrics if m.name in scores)
            for i in range(count)]


def _passes(metric: Metric, score: float, blind: list[float] | None, sample: int) -> bool:
    if metric.leak_at is None:
        return False
    sign = 1 if metric.better == "higher" else -1
    bar = sign * metric.leak_at
    if blind is not None:
        bar = max(bar, sign * blind[sample] + getattr(metric, "margin", 0.0))
    return sign * score >= bar


def of_trial(record: dict[str, Any]) -> Verdict:
    """A demonstrated leak is a fact, whatever the checks say; anything less must survive them."""
    if any(record["leaked"]):
        return Verdict.LEAKS
    if record["warnings"]:
        return Verdict.UNRELIABLE
    if record["failed"] is not None:
        return Verdict.INCONCLUSIVE
    guess, truth = record["residual"]["guess"][0], record["residual"]["truth"][0]
    slack = SLACK + SLACK_SHARE * min(truth, 1 - truth)
    return Verdict.HELD if guess <= truth + slack else Verdict.INCONCLUSIVE


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """One leak is a leak; otherwise one doubt is a doubt."""
    found = set(verdicts)
    for verdict in (Verdict.LEAKS, Verdict.UNRELIABLE, Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return Verdict.HELD if found else Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class Row:
    """A cell, judged."""

    cell: Cell
    verdict: Verdict
    reasons: tuple[str, ...]
    scores: dict[str, Summary]
    unscored: dict[str, str]
    residual: dict[str, float]
    leaked: int
    samples: int
    knowledge: tuple[str, ...]
    unused: tuple[str, ...]
    distortion: float | None
    seconds: float
    finished: bool
    trials: tuple[dict[str, Any], ...]
    epsilon: float | None = None
    """What the defense guarantees, where it guarantees anything; none is infinite."""


def row(cell: Cell, trials: list[dict[str, Any]], finished: bool, metrics: Sequence[Metric]) -> Row:
    """Judge a cell from its records."""
    scored = [t for t in trials if t["scores"]]
    better = {m.name: m.better for m in metrics}
    measured = dict.fromkeys(name for t in scored for name in t["scores"])
    scores = {name: summarise([v for t in scored for v in t["scores"].get(name, [])], better[name])
              for name in measured}
    reasons = list(dict.fromkeys(r for t in trials for r in [*t["warnings"], t["failed"], t["stopped"]] if r))
    reasons += dict.fromkeys(r for t in trials for r in t.get("cautions", ()) if not any(t["leaked"]))
    if not finished:
        reasons.append(f"only {len(trials)} of {cell.trials} trials are finished: run the same command to go on")
    sides = ("guess", "truth") if scored else ()
    mean = {who: sum(t["residual"][who][0] for t in scored) / len(scored) for who in sides}
    verdict = worst(of_trial(t) for t in trials)
    if not finished and verdict is Verdict.HELD:
        verdict = Verdict.INCONCLUSIVE
    known = scored[0] if scored else {"unscored": {}, "granted": [], "unused": []}
    changed = [t["distortion"] for t in trials if t["distortion"] is not None]
    return Row(
        cell, verdict, tuple(reasons), scores, {k: v for k, v in known["unscored"].items() if k not in scores}, mean,
        sum(sum(t["leaked"]) for t in scored), sum(len(t["leaked"]) for t in scored),
        tuple(known["granted"]), tuple(known["unused"]),
        sum(changed) / len(changed) if changed else None, sum(t["seconds"] for t in trials), finished, tuple(trials),
        next((t["epsilon"] for t in trials if t.get("epsilon") is not None), None),
    )


def compare_threats(rows: list[Row]) -> list[Row]:
    """Suspect the informed attacker where the naive one clearly does better: then its copy of the defense is wrong."""
    naive = {_without_threat(r.cell): r for r in rows if r.cell.threat.startswith("curious") and r.scores}
    judged = []
    for r in rows:
        other = naive.get(_without_threat(r.cell))
        if r.cell.threat.startswith("informed") and other and r.scores and _clearly_better(other, r):
            reason = "the naive attacker recovers more than the informed one: the copy of the defense hurts the search"
            verdict = r.verdict if r.verdict is Verdict.LEAKS else Verdict.UNRELIABLE
            r = replace(r, verdict=verdict, reasons=(*r.reasons, reason))
        judged.append(r)
    return judged


def _without_threat(cell: Cell) -> tuple[object, ...]:
    more = cell.threat.partition("+")[2]
    return cell.task, cell.client, cell.batch, cell.defense, cell.attack, cell.seed, more


def _clearly_better(one: Row, other: Row) -> bool:
    """By the lead metric: more than its margin, and more than chance."""
    metric = lead(one.cell.scorers())
    if metric is None or metric.name not in one.scores or metric.name not in other.scores:
        return False
    mine, yours = one.scores[metric.name], other.scores[metric.name]
    up = metric.better == "higher"
    apart = mine.low > yours.high if up else mine.high < yours.low
    return apart and (mine.mean - yours.mean) * (1 if up else -1) > getattr(metric, "margin", 0.0)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several attacks on the same target: one leak is a leak, and without a doubt one that held is enough."""
    found = set(verdicts)
    for verdict in (Verdict.LEAKS, Verdict.UNRELIABLE, Verdict.HELD):
        if verdict in found:
            return verdict
    return Verdict.INCONCLUSIVE


def settings(rows: Sequence[Row]) -> dict[tuple[object, ...], list[Row]]:
    """The rows of each target (task, client, batch, defense, threat), whatever the attack."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for r in rows:
        key = (r.cell.task, r.cell.client, r.cell.batch, r.cell.defense, r.cell.threat)
        groups.setdefault(key, []).append(r)
    return groups


@dataclass(frozen=True)
class Overall:
    """Several attacks on one target, as one: the most any of them read, and what the attacker itself would pick."""

    target: Row
    attacks: int
    worst: Summary
    picked: Summary


def picked(row: Row) -> dict[str, Summary]:
    """Of a suite, the scores of the answers the attacker itself would take; of one attack, its scores."""
    better = {m.name: m.better for m in row.cell.scorers()}
    return {name: summarise([v for t in row.trials for v in t.get("picked", t)["scores"].get(name, [])], better[name])
            for name in row.scores}


def _attacks(row: Row) -> int:
    """How many attacks a row stands for: of a suite, those that had something to do in any trial."""
    tried = {m["attack"] for t in row.trials for m in t.get("members", ()) if not m["spared"]}
    return len(tried) or 1


def overall(rows: Sequence[Row], metric: str, better: Literal["higher", "lower"]) -> list[Overall]:
    """Per sample the best score of any attack, and the score of the attack whose guess explains the update best.

    A suite is several attacks in one row.
    """
    found = []
    for group in settings(rows).values():
        trials: dict[int, list[dict[str, Any]]] = {}
        for t in (t for r in group for t in r.trials if metric in t["scores"]):
            trials.setdefault(t["trial"], []).append(t)
        attacks = sum(_attacks(r) for r in group)
        if attacks < 2 or not trials:
            continue
        most = max if better == "higher" else min
        scores = [[t["scores"][metric] for t in ts] for ts in trials.values()]
        best = [most(sample) for each in scores for sample in zip(*each, strict=True)]
        picks = [min(ts, key=lambda t: float(t["residual"]["guess"][0])) for ts in trials.values()]
        picked = [value for t in picks for value in t.get("picked", t)["scores"][metric]]
        found.append(Overall(group[0], attacks, summarise(best, better), summarise(picked, better)))
    return found


def exit_code(rows: Sequence[Row]) -> int:
    """0 held, 1 leaks, 3 neither shown."""
    found = {together(r.verdict for r in group) for group in settings(rows).values()}
    if Verdict.LEAKS in found:
        return 1
    return 0 if found == {Verdict.HELD} else 3
