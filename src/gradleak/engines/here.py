"""Cells in this process, one after the other."""

from collections.abc import Sequence

from gradleak.audit.plan import Cell
from gradleak.audit.run import run_cell
from gradleak.audit.store import CellDir
from gradleak.engines.report import Tell

Job = tuple[Cell, CellDir]


def run(jobs: Sequence[Job], tell: Tell) -> None:
    for number, (cell, folder) in enumerate(jobs):
        run_cell(cell, folder, lambda share, n=number: tell(n, share))  # type: ignore[misc]
