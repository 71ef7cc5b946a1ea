"""What is wrong: with this installation, or with a captured update."""

from pathlib import Path

from rich.console import Console

from gradleak.report.catalogue import diagnosis

Told = tuple[str | None, Path | None, str | None, int | None, int | None, str | None, str | None, float | None]
"""The fields of `Said`, in its order."""


def doctor(update: Path | None, told: Told, out: Console) -> int:
    """Print it; 0, or 3 if something stands in the way of inverting the update."""
    if update is None:
        out.print(diagnosis())
        return 0
    from gradleak.capture.diagnose import diagnose
    from gradleak.capture.files import Said

    table, code = diagnose(update, Said(*told))
    out.print(table)
    return code
