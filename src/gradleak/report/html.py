"""One self-contained page."""

from pathlib import Path

from gradleak.audit.store import Run


def write(run: Run, show_truth: bool = False) -> Path:
    """Write report.html into the run directory."""
    path = run.path / "report.html"
    path.write_text("<!doctype html><title>gradleak</title>")
    return path
