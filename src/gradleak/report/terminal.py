"""The table in a terminal."""

from collections.abc import Sequence
from math import inf

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradleak.audit.verdict import MEANING, Row, Verdict
from gradleak.report.measures import attacks_together, leading, measure, of_text

STYLE = {Verdict.LEAKS: "bold red", Verdict.HELD: "bold green", Verdict.INCONCLUSIVE: "bold yellow",
         Verdict.UNRELIABLE: "bold magenta"}


def number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) >= 0.01 else "0" if abs(value) < 1e-9 else f"{value:.0e}"


def epsilon(value: float | None) -> str:
    """A guarantee; what has none has an infinite one."""
    return "∞" if value is None or value == inf else f"{value:.3g}"


HEADS = {"exact_match": "exact", "token_accuracy": "tokens", "label_accuracy": "labels"}


def _score(row: Row, metric: str) -> str:
    return number(row.scores[metric].mean if metric in row.scores else None, measure(metric).digits)


def _measured(rows: Sequence[Row]) -> list[str]:
    """The metrics there is room for: of images the leading one, of text whether it came back word for word too."""
    exact = [["exact_match"] if of_text(r) and "exact_match" in r.scores else [] for r in rows]
    return list(dict.fromkeys(name for r, first in zip(rows, exact, strict=True) for name in (*first, leading(r).name)))


def verdict_table(rows: Sequence[Row]) -> Table:
    """One line a cell: what was tried, what came back, what it means. What all rows share stands in the title."""
    names = {"task": "task", "client": "client", "batch": "batch", "defense": "defense", "threat": "attacker",
             "attack": "attack"}
    varying = [key for key in names if len({getattr(r.cell, key) for r in rows}) > 1 or key == "defense"]
    constant = [key for key in names if key not in varying and rows]
    shared = ", ".join(f"{names[key]} {escape(str(getattr(rows[0].cell, key)))}" for key in constant)
    metrics = _measured(rows)
    explained = "".join(f"{HEADS.get(name, name)}: {measure(name).note}; " for name in metrics)
    table = Table(title=f"How much can be read back out of the update\n[dim]{shared}[/]", title_justify="left",
                  header_style="bold", box=SIMPLE_HEAD, caption_justify="left", title_style="bold",
                  caption=f"read: examples past the threshold; {explained}off: how far the recovered data is "
                          "from explaining the update; truth: the same for the private data itself")
    for key in varying:
        table.add_column(names[key], overflow="fold")
    table.add_column("verdict", no_wrap=True)
    private = any(r.epsilon is not None for r in rows)
    heads = ["read", *(HEADS.get(name, name) for name in metrics), "off", "truth"]
    for name in (["epsilon", *heads] if private else heads):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for r in rows:
        here = (r.cell.task, r.cell.batch, r.cell.defense)
        if last is not None and here != last:
            table.add_section()
        last = here
        table.add_row(
            *(escape(str(getattr(r.cell, key))) for key in varying), f"[{STYLE[r.verdict]}]{r.verdict}[/]",
            *([epsilon(r.epsilon)] if private else []), f"{r.leaked}/{r.samples}",
            *(_score(r, name) for name in metrics),
            number(r.residual.get("guess")), number(r.residual.get("truth")),
        )
    return table


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what the words mean, and every reason given."""
    console.print(verdict_table(rows))
    for verdict in dict.fromkeys(r.verdict for r in rows):
        console.print(f"[{STYLE[verdict]}]{verdict}[/]: {MEANING[verdict]}")
    for figure, o in attacks_together(rows):
        cell, worst, picked = o.target.cell, figure.said(o.worst.mean), figure.said(o.picked.mean)
        if worst != picked:
            console.print(f"{escape(cell.defense)}, {cell.threat}, batch {cell.batch}: of {o.attacks} attacks the best "
                          f"reads {worst}, the one that the attacker would pick {picked}", highlight=False)
    for reason in dict.fromkeys(reason for r in rows for reason in r.reasons):
        count = sum(reason in r.reasons for r in rows)
        console.print(f"- {escape(reason)} [dim]({count} row{'s' if count > 1 else ''})[/]", highlight=False)
