"""The gate of a build: run, hold against bars, tell the build server."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradleak.audit import drive
from gradleak.audit.gate import bars
from gradleak.audit.store import open_run
from gradleak.audit.verdict import exit_code
from gradleak.errors import UsageError
from gradleak.report import ci, terminal
from gradleak.report.rows import rows


def check(
    audit: Path, max_leak: Sequence[str], junit: Path | None, to: Path | None, workers: int, out: Console, err: Console,
) -> int:
    """The exit code of an audit file, which is run first, or of a run directory, judged by the bars alone if any."""
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {junit}: no such folder; make it first")
    if audit.is_dir():
        done = open_run(audit)
        most = bars(max_leak, done.audit())
    else:
        wanted = drive.load(audit)
        most = bars(max_leak, wanted)
        done = drive.run(wanted, to, workers, err)
    judged = rows(done, most)
    terminal.print_rows(judged, out)
    if junit is not None:
        ci.junit(judged, most, done.audit().name, junit)
    sys.stdout.write(ci.on_github(judged, most, None if audit.is_dir() else audit))
    return exit_code(judged)
