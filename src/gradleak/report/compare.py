"""Two runs side by side."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradleak.audit.store import open_run
from gradleak.audit.verdict import Row, Verdict
from gradleak.errors import UsageError
from gradleak.report.measures import leading, measure
from gradleak.report.rows import rows
from gradleak.report.terminal import STYLE, epsilon, number


class Change(StrEnum):
    """What became of a row."""

    WORSE = "worse"
    LOST = "no longer shown to hold"
    GONE = "gone"
    NEW = "new"
    SAME = ""


CODE = {Change.WORSE: 1, Change.LOST: 3, Change.GONE: 3}


def _place(row: Row) -> tuple[object, ...]:
    c = row.cell
    return c.task, c.client, c.batch, c.defense, c.threat, c.attack


def compare(before: Path, after: Path, out: Console) -> int:
    """Print the table of two run directories; its exit code."""
    shown, code = table(rows(open_run(before)), rows(open_run(after)))
    out.print(shown)
    return code


def table(before: Sequence[Row], after: Sequence[Row]) -> tuple[Table, int]:
    """The rows of both, and an exit code: 1 if any leaks now that did not, or more than its interval allows; 3 if
    what had held is not shown to hold any more, or is no longer tried."""
    old, new = {_place(r): r for r in before}, {_place(r): r for r in after}
    if not old.keys() & new.keys():
        raise UsageError("the two runs share no row (task, client, batch, defense, threat and attack must agree)")
    pairs = [(old.get(place), new.get(place)) for place in {**old, **new}]
    shared = sum(one is not None and other is not None for one, other in pairs)
    shown = Table(title=f"{shared} shared rows", title_justify="left", header_style="bold")
    leads = list(dict.fromkeys(leading(r).name for r in after))
    score = leads[0] if len(leads) == 1 else "score"
    private = any(r.epsilon is not None for r in (*before, *after))
    for name in ("batch", "defense", "threat", "attack", *(["epsilon"] if private else []), "before", "after",
                 f"{score} before", f"{score} after", ""):
        shown.add_column(name, overflow="fold")
    changes = []
    for one, other in pairs:
        change = _change(one, other)
        row = other or one
        assert row is not None
        lead = leading(row).name
        shown.add_row(str(row.cell.batch), *(escape(x) for x in (row.cell.defense, row.cell.threat, row.cell.attack)),
                      *([epsilon(row.epsilon)] if private else []),
                      _verdict(one), _verdict(other), _mean(one, lead), _mean(other, lead), str(change))
        changes.append(change)
    found = {CODE.get(change, 0) for change in changes}
    return shown, 1 if 1 in found else max(found)


def _verdict(row: Row | None) -> str:
    return f"[{STYLE[row.verdict]}]{row.verdict}[/]" if row else "-"


def _mean(row: Row | None, metric: str) -> str:
    return number(row.scores[metric].mean, measure(metric).digits) if row and metric in row.scores else "-"


def _change(before: Row | None, after: Row | None) -> Change:
    if before is None:
        return Change.NEW
    if after is None:
        return Change.GONE if before.verdict is Verdict.HELD else Change.SAME
    if _worse(before, after):
        return Change.WORSE
    lost = before.verdict is Verdict.HELD and after.verdict in (Verdict.INCONCLUSIVE, Verdict.UNRELIABLE)
    return Change.LOST if lost else Change.SAME


def _worse(before: Row, after: Row) -> bool:
    if after.verdict is Verdict.LEAKS and before.verdict is not Verdict.LEAKS:
        return True
    metric = leading(after)
    if metric.name not in before.scores or metric.name not in after.scores:
        return False
    old, new = before.scores[metric.name], after.scores[metric.name]
    return new.low > old.high if metric.better == "higher" else new.high < old.low
