"""The table in a terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradleak.audit.verdict import MEANING, Row, Verdict, overall

STYLE = {Verdict.LEAKS: "bold red", Verdict.HELD: "bold green", Verdict.INCONCLUSIVE: "bold yellow",
         Verdict.UNRELIABLE: "bold magenta"}


def number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) >= 0.01 else "0" if abs(value) < 1e-9 else f"{value:.0e}"


def _score(row: Row, metric: str, digits: int = 1) -> str:
    return number(row.scores[metric].mean if metric in row.scores else None, digits)


def verdict_table(rows: Sequence[Row]) -> Table:
    """One line a cell: what was tried, what came back, what it means. What all rows share stands in the title."""
    names = {"task": "task", "client": "client", "batch": "batch", "defense": "defense", "threat": "attacker",
             "attack": "attack"}
    varying = [key for key in names if len({getattr(r.cell, key) for r in rows}) > 1 or key == "defense"]
    constant = [key for key in names if key not in varying and rows]
    shared = ", ".join(f"{names[key]} {escape(str(getattr(rows[0].cell, key)))}" for key in constant)
    table = Table(title=f"How much can be read back out of the update\n[dim]{shared}[/]", title_justify="left",
                  header_style="bold", box=SIMPLE_HEAD, caption_justify="left", title_style="bold",
                  caption="read: examples past the threshold; psnr: mean, in dB; off: how far the recovered data is "
                          "from explaining the update; truth: the same for the private data itself")
    for key in varying:
        table.add_column(names[key], overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("read", "psnr", "off", "truth"):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for r in rows:
        here = (r.cell.task, r.cell.batch, r.cell.defense)
        if last is not None and here != last:
            table.add_section()
        last = here
        table.add_row(
            *(escape(str(getattr(r.cell, key))) for key in varying), f"[{STYLE[r.verdict]}]{r.verdict}[/]",
            f"{r.leaked}/{r.samples}", _score(r, "psnr"),
            number(r.residual.get("guess")), number(r.residual.get("truth")),
        )
    return table


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what the words mean, and every reason given."""
    console.print(verdict_table(rows))
    for verdict in dict.fromkeys(r.verdict for r in rows):
        console.print(f"[{STYLE[verdict]}]{verdict}[/]: {MEANING[verdict]}")
    for o in overall(rows, "psnr", "higher"):
        cell = o.target.cell
        console.print(f"{escape(cell.defense)}, {cell.threat}, batch {cell.batch}, {o.attacks} attacks: worst case "
                      f"{o.worst.mean:.1f} dB, what the attacker would pick {o.picked.mean:.1f} dB", highlight=False)
    for reason in dict.fromkeys(reason for r in rows for reason in r.reasons):
        count = sum(reason in r.reasons for r in rows)
        console.print(f"- {escape(reason)} [dim]({count} row{'s' if count > 1 else ''})[/]", highlight=False)
