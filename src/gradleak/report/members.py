"""What each attack of a suite did, over all trials of a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.audit.verdict import Row
from gradleak.report.measures import leading, measure


@dataclass(frozen=True)
class Share:
    """One attack's part in a row. `score` is of the trials it answered."""

    attack: str
    read: int
    score: str
    seconds: float
    tried: int
    spared: int
    note: str


def members(row: Row) -> list[Share]:
    """In the order in which they were tried; none where the row is a single attack."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in row.trials:
        for member in trial.get("members", ()):
            found.setdefault(member["attack"], []).append(member)
    return [_share(attack, parts, leading(row).name) for attack, parts in found.items()]


def _share(attack: str, parts: Sequence[dict[str, Any]], metric: str) -> Share:
    scores = [part["scores"][metric] for part in parts if metric in part["scores"]]
    tried = [part for part in parts if not part["spared"]]
    why = [str(part["failed"] or part["stopped"]) for part in tried if part["failed"] or part["stopped"]]
    said = measure(metric).said(sum(scores) / len(scores)) if scores else "–"
    return Share(attack, sum(part["leaked"] for part in parts), said, sum(part["seconds"] for part in parts),
                 len(tried), len(parts) - len(tried), next(iter(why), ""))
