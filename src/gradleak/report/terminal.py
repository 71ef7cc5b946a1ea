"""The table in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gradleak.audit.verdict import MEANING, Row, Verdict

STYLE = {Verdict.LEAKS: "bold red", Verdict.HELD: "bold green", Verdict.INCONCLUSIVE: "bold yellow",
         Verdict.UNRELIABLE: "bold magenta"}


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}" if 1e-2 <= abs(value) < 1e4 or value == 0 else f"{value:.1e}"


def verdict_table(rows: Sequence[Row]) -> Table:
    """One line a cell: what was tried, what came back, what it means."""
    table = Table(title="How much can be read back out of the update", title_justify="left", header_style="bold")
    for name in ("batch", "defense", "threat", "attack"):
        table.add_column(name, overflow="fold")
    for name in ("verdict", "read", "psnr dB", "(worst)", "ssim", "labels", "residual", "truth's"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    last = None
    for r in rows:
        here = (r.cell.batch, r.cell.defense)
        if last is not None and here != last:
            table.add_section()
        last = here
        psnr, ssim, labels = (r.scores.get(name) for name in ("psnr", "ssim", "label_accuracy"))
        table.add_row(
            str(r.cell.batch), r.cell.defense, r.cell.threat, r.cell.attack,
            f"[{STYLE[r.verdict]}]{r.verdict}[/]", f"{r.leaked}/{r.samples}",
            number(psnr and psnr.mean, 1), number(psnr and psnr.worst, 1), number(ssim and ssim.mean),
            "-" if labels is None else f"{labels.mean:.0%}",
            number(r.residual.get("guess"), 4), number(r.residual.get("truth"), 4),
        )
    return table


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what the words mean, and every reason given."""
    console.print(verdict_table(rows))
    for verdict in dict.fromkeys(r.verdict for r in rows):
        console.print(f"[{STYLE[verdict]}]{verdict}[/]: {MEANING[verdict]}")
    for reason in dict.fromkeys(reason for r in rows for reason in r.reasons):
        count = sum(reason in r.reasons for r in rows)
        console.print(f"- {reason} [dim]({count} row{'s' if count > 1 else ''})[/]", highlight=False)
