"""Every captured update of a folder, attacked: what a server could have read, as far as it can tell itself."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradleak.audit.verdict import Verdict
from gradleak.capture.files import Said
from gradleak.capture.format import Captured, find
from gradleak.capture.models import of_text
from gradleak.capture.recover import Outcome, attack, save
from gradleak.errors import Unsuited, UsageError
from gradleak.spec import parse

USUAL = {True: ("subspace",), False: ("linear", "ig")}
"""Attacks for text and for images where none is named: the exact ones first."""

STYLE = {Verdict.LEAKS: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


def audit(folder: Path, attacks: Sequence[str], said: Said, to: Path, out: Console, err: Console) -> int:
    """Print a row an update and attack, save what was read; 1 if any update is explained, 3 if none is.

    HELD is not among the verdicts: it would take the private data to show.
    """
    found = find(folder)
    table = Table(title=f"{escape(str(folder))}: {len(found)} captured updates", title_justify="left",
                  header_style="bold")
    for name in ("update", "examples", "attack", "verdict", "what came back"):
        table.add_column(name, overflow="fold")
    leaks = False
    for captured in found:
        name = str(captured.path.relative_to(folder)) if captured.path != folder else captured.path.name
        for spec in attacks or USUAL[_text(captured, said)]:
            verdict, told = _row(captured, spec, said, to / name, err)
            leaks |= verdict is Verdict.LEAKS
            table.add_row(escape(name), str(captured.note.count or "?"), escape(spec),
                          f"[{STYLE[verdict]}]{verdict}[/]", escape(told))
            if verdict is Verdict.LEAKS and not attacks:
                break  # what is read needs no second attack
    out.print(table)
    return 1 if leaks else 3


def _text(captured: Captured, said: Said) -> bool:
    model = said.model or captured.note.model
    if model is None:
        raise UsageError(f"{captured.path}: which model? say it with --model, as in an audit")
    return of_text(parse(model), captured.note.task)


def _row(captured: Captured, spec: str, said: Said, to: Path, err: Console) -> tuple[Verdict, str]:
    try:
        outcome = attack(captured.path, spec, said, err)
    except Unsuited as problem:
        return Verdict.INCONCLUSIVE, f"does not apply: {problem}"
    save(outcome, to)
    return (Verdict.LEAKS if outcome.explained else Verdict.INCONCLUSIVE), _told(outcome, to)


def _told(outcome: Outcome, to: Path) -> str:
    sure = f", {outcome.certain:.0%} certain" if outcome.certain else ""
    shown = "; ".join(outcome.texts[:4]) or f"{len(outcome.images)} image(s) in {to}"
    return f"{shown} (residual {outcome.left.cosine:.1e}{sure})"
