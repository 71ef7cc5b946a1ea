"""Two runs side by side."""

from collections.abc import Sequence

from rich.table import Table

from gradleak.audit.verdict import Row, Verdict
from gradleak.errors import UsageError
from gradleak.report.measures import leading, measure
from gradleak.report.terminal import STYLE, number


def _place(row: Row) -> tuple[object, ...]:
    c = row.cell
    return c.task, c.client, c.batch, c.defense, c.threat, c.attack


def table(before: Sequence[Row], after: Sequence[Row]) -> tuple[Table, bool]:
    """The rows both hold, and whether any of them leaks now that did not, or more than its interval allows."""
    old = {_place(r): r for r in before}
    shared = [(old[_place(r)], r) for r in after if _place(r) in old]
    if not shared:
        raise UsageError("the two runs share no row (task, client, batch, defense, threat and attack must agree)")
    shown = Table(title=f"{len(shared)} shared rows", title_justify="left", header_style="bold")
    leads = list(dict.fromkeys(leading(r).name for _, r in shared))
    score = leads[0] if len(leads) == 1 else "score"
    for name in ("batch", "defense", "threat", "attack", "before", "after", f"{score} before", f"{score} after", ""):
        shown.add_column(name, overflow="fold")
    any_worse = False
    for one, other in shared:
        worse = _worse(one, other)
        any_worse |= worse
        c, lead = other.cell, leading(other).name
        shown.add_row(str(c.batch), c.defense, c.threat, c.attack, f"[{STYLE[one.verdict]}]{one.verdict}[/]",
                      f"[{STYLE[other.verdict]}]{other.verdict}[/]", _mean(one, lead), _mean(other, lead),
                      "worse" if worse else "")
    return shown, any_worse


def _mean(row: Row, metric: str) -> str:
    return number(row.scores[metric].mean, measure(metric).digits) if metric in row.scores else "-"


def _worse(before: Row, after: Row) -> bool:
    if after.verdict is Verdict.LEAKS and before.verdict is not Verdict.LEAKS:
        return True
    metric = leading(after)
    if metric.name not in before.scores or metric.name not in after.scores:
        return False
    old, new = before.scores[metric.name], after.scores[metric.name]
    return new.low > old.high if metric.better == "higher" else new.high < old.low
