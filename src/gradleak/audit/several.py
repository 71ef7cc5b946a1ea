"""Running a suite: its attacks one after the other on the same update, and what they found together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.audit import checks
from gradleak.audit.plan import Cell, unmet
from gradleak.audit.store import CellDir
from gradleak.audit.suite import Member, Suite
from gradleak.audit.verdict import lead
from gradleak.threats import threat
from gradleak.types import NOTHING, Metric

Record = dict[str, Any]
Answer = Callable[[Cell, int, CellDir, Callable[[float], None]], tuple[Record, dict[str, Tensor]]]


def run_trial(
    cell: Cell, suite: Suite, trial: int, folder: CellDir, progress: Callable[[float], None], answer: Answer,
) -> None:
    """Every member in turn, until all samples are read; what is finished is never run again."""
    members = timed(cell, suite.members(cell.world().vocabulary is not None))
    found: list[Record] = []
    for number, member in enumerate(members):
        own, beside = _own(cell, member, found, members), _folder(folder, number, member)
        done = beside.trials()
        if len(done) > trial:
            found.append(done[trial])
            continue
        beside.open(own)
        record, tensors = (_spared(trial, found[-1]), {}) if _all_read(found) else answer(
            own, trial, beside, lambda share, n=number: progress((n + share) / len(members)))  # type: ignore[misc]
        beside.add_trial(record, tensors)
        found.append(record)
        if record["scores"]:
            _log(folder, cell, trial, number + 1, len(members), found)
    _close(cell, members, trial, folder, found)


def rescore(cell: Cell, suite: Suite, folder: CellDir, one: Callable[[Cell, CellDir], None]) -> None:
    """Measure what every member found again, and put it together again."""
    members = suite.members(cell.world().vocabulary is not None)
    for number, member in enumerate(members):
        one(_own(cell, member, [], members), _folder(folder, number, member))
    for trial in range(len(folder.trials())):
        found = [_folder(folder, number, member).trials()[trial] for number, member in enumerate(members)]
        _close(cell, members, trial, folder, found)


def _folder(folder: CellDir, number: int, member: Member) -> CellDir:
    return CellDir(folder.path / "members" / f"{number}-{member.name}")


def timed(cell: Cell, members: Sequence[Member]) -> list[Member]:
    """The members with their shares of the time: none for one that lacks what it needs to know."""
    return [replace(m, share=0.0) if unmet(replace(cell, attack=m.attack)) else m for m in members]


def _own(cell: Cell, member: Member, before: Sequence[Record], members: Sequence[Member]) -> Cell:
    """A member's own cell: its share of what the others left, and never less than its share of the whole."""
    whole = cell.budget / cell.trials
    later = sum(m.share for m in members[len(before):]) or 1.0
    left = (whole - sum(r["seconds"] for r in before)) * member.share / later
    fair = whole * member.share / (sum(m.share for m in members) or 1.0)
    return replace(cell, attack=member.attack, budget=max(left, fair, 0.0) * cell.trials)


def _all_read(found: Sequence[Record]) -> bool:
    scored = [r["leaked"] for r in found if r["scores"]]
    return bool(scored) and all(any(sample) for sample in zip(*scored, strict=True))


def _spared(trial: int, like: Record) -> Record:
    """A member that had nothing left to read."""
    empty: Record = {key: type(value)() for key, value in like.items() if isinstance(value, list | dict)}
    return {**like, **empty, "trial": trial, "failed": "not needed: every sample was read before", "seconds": 0.0,
            "stopped": None, "spared": True}


def _scored(found: Sequence[Record]) -> list[Record]:
    return [r for r in found if r["scores"]]


def _pick(found: Sequence[Record]) -> Record:
    """The answer the attacker itself would take: it sees only how well each explains the update."""
    return min(_scored(found), key=lambda r: _finite(r["residual"]["guess"][0]))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _close(cell: Cell, members: Sequence[Member], trial: int, folder: CellDir, found: Sequence[Record]) -> None:
    metrics = cell.scorers()
    record = together(cell, members, trial, found, metrics)
    tensors = _readings(record, [_folder(folder, n, m) for n, m in enumerate(members)], trial, found, metrics)
    if len(folder.trials()) > trial:
        kept = [*folder.trials()[:trial], record, *folder.trials()[trial + 1 :]]
        folder.rewrite(kept)
    else:
        folder.add_trial(record, tensors)


def together(
    cell: Cell, members: Sequence[Member], trial: int, found: Sequence[Record], metrics: Sequence[Metric],
) -> Record:
    """One record of all: per sample and metric the most any member read; the residual is the attacker's pick's."""
    each = [_summary(m, r) for m, r in zip(members, found, strict=True)]
    scored = _scored(found)
    told = next((r for r in found if r["warnings"] or r["scores"]), found[0])
    if not scored:
        why = "; ".join(dict.fromkeys(str(r["failed"]) for r in found if r["failed"]))
        return {**told, "trial": trial, "failed": f"no attack of {cell.attack} gave an answer: {why}",
                "seconds": sum(r["seconds"] for r in found), "members": each}
    pick = _pick(found)
    leaked = [any(sample) for sample in zip(*(r["leaked"] for r in scored), strict=True)]
    unused = sorted(set.intersection(*(set(r["unused"]) for r in scored)))
    stopped = [m.name for m, r in zip(members, found, strict=True) if r["stopped"]]
    shared = [w for w in told["warnings"] if all(w in r["warnings"] for r in scored)]
    return {
        **pick, "trial": trial, "scores": {m.name: _most(m, scored) for m in metrics if m.name in pick["scores"]},
        "leaked": leaked, "match": list(range(len(leaked))), "unused": unused,
        "uses": sorted({used for r in scored for used in r["uses"]}),
        "warnings": [*shared, *checks.idle(threat(cell.threat), pick["granted"], unused),
                     *_overtaken(members, found, lead(metrics))],
        "stopped": f"stopped by the budget: {', '.join(stopped)}" if stopped and not all(leaked) else None,
        "failed": None, "seconds": sum(r["seconds"] for r in found),
        "picked": {"attack": _name(pick, members, found), "scores": pick["scores"]}, "members": each,
    }


def _name(record: Record, members: Sequence[Member], found: Sequence[Record]) -> str:
    return next(m.attack for m, r in zip(members, found, strict=True) if r is record)


def _most(metric: Metric, scored: Sequence[Record]) -> list[float]:
    """Per sample the most that any of them read, by this metric."""
    most = max if metric.better == "higher" else min
    return [most(sample) for sample in zip(*(r["scores"][metric.name] for r in scored), strict=True)]


def _summary(member: Member, record: Record) -> Record:
    """What a report says of a member."""
    means = {name: sum(values) / len(values) for name, values in record["scores"].items() if values}
    return {"attack": member.attack, "scores": means, "leaked": sum(record["leaked"]), "samples": len(record["leaked"]),
            "residual": record["residual"].get("guess", [None])[0], "seconds": record["seconds"],
            "failed": record["failed"], "stopped": record["stopped"], "spared": record.get("spared", False)}


def _overtaken(members: Sequence[Member], found: Sequence[Record], metric: Metric | None) -> list[str]:
    """Stronger members that had their time and yet read clearly less than a weaker one."""
    if metric is None:
        return []
    sign = 1 if metric.better == "higher" else -1
    mean = {m.name: sign * sum(r["scores"][metric.name]) / len(r["scores"][metric.name])
            for m, r in zip(members, found, strict=True) if r["scores"].get(metric.name)}
    stopped = {m.name for m, r in zip(members, found, strict=True) if r["stopped"]}
    margin = getattr(metric, "margin", 0.0)
    return [checks.overtaken(m.name, weak) for m in members if m.name in mean and m.name not in stopped
            for weak in m.over if weak in mean and mean[weak] > mean[m.name] + margin]


def _readings(
    record: Record, folders: Sequence[CellDir], trial: int, found: Sequence[Record], metrics: Sequence[Metric],
) -> dict[str, Tensor]:
    """For each sample the reading that came closest, in the sample's place; the labels are the pick's."""
    if not record["leaked"]:
        return {}
    metric = lead(metrics)
    kept = {n: folders[n].guess(trial) for n, r in enumerate(found) if r["scores"]}
    rows, proven = [], []
    for sample in range(len(record["leaked"])):
        best = min(kept, key=lambda n: _rank(found[n], metric, sample))
        place = found[best]["match"][sample]
        reading = kept[best]["reading"][place]
        rows.append(reading)
        proven.append(kept[best].get("certain", torch.zeros(kept[best]["reading"].shape, dtype=torch.bool))[place])
    pick = next(n for n, r in enumerate(found) if r is _pick(found))
    labels = {"y": kept[pick]["y"]}
    if rows[0].is_floating_point():
        return {"reading": torch.stack(rows), **labels}
    return {"reading": _stacked(rows, NOTHING), "certain": _stacked(proven, 0), **labels}


def _rank(record: Record, metric: Metric | None, sample: int) -> float:
    if metric is None or metric.name not in record["scores"]:
        return _finite(record["residual"]["guess"][0])
    score = float(record["scores"][metric.name][sample])
    return -score if metric.better == "higher" else score


def _stacked(rows: Sequence[Tensor], fill: int) -> Tensor:
    wide = max(len(row) for row in rows)
    return torch.stack([F.pad(row, (0, wide - len(row)), value=fill) for row in rows])


def _log(folder: CellDir, cell: Cell, trial: int, done: int, of: int, found: Sequence[Record]) -> None:
    """How far the suite is, as if each member were a step."""
    pick, metric = _pick(found), lead(cell.scorers())
    event: Record = {"trial": trial, "step": done, "steps": of, "seconds": round(sum(r["seconds"] for r in found), 3),
                     "residual": pick["residual"]["guess"]}
    values: Mapping[str, list[float]] = {} if metric is None else {metric.name: _most(metric, _scored(found))
                                                                   if metric.name in pick["scores"] else []}
    event |= {name: sum(each) / len(each) for name, each in values.items() if each}
    folder.log(event)
