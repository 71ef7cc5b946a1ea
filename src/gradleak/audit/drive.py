"""A whole audit: begin or go on, run every cell that is not finished, show how far it is."""

import fcntl
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradleak.audit import utility
from gradleak.audit.plan import Audit, checked, from_table, read
from gradleak.audit.store import Run
from gradleak.engines.places import Engine, engine
from gradleak.errors import UsageError


def load(path: Path | None) -> Audit:
    """The audit in a file, or the quickstart that comes with the package."""
    if path is not None:
        return read(path)
    import tomllib

    return from_table(tomllib.loads((files("gradleak.audit") / "quickstart.toml").read_text("utf-8")), "quickstart")


def run(
    audit: Audit, to: Path | None = None, workers: int = 1, console: Console | None = None, on: str | None = None,
) -> Run:
    """Run what is not finished yet, here or (workers: a number, or 0 for one a core) in processes of their own, or
    wherever `on` says: see `engines.places`.

    Other processes know what is installed, not what a script registered.
    """
    if workers < 0:
        raise UsageError(f"--workers {workers}: 0 for one a core, or a number from 1")
    place = engine(on, workers)
    store = Run(to or Path("runs") / f"{audit.name}-{audit.digest[:8]}")
    store.begin(checked(audit))
    with (store.path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{store.path}: another gradleak is running this audit; wait, or choose --out") from None
        shown = console or Console(stderr=True, quiet=True)
        _run_jobs(store, place, shown)
        _train(store, shown)
    return store


def _bar(console: Console) -> Progress:
    return Progress(TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
                    TextColumn("{task.fields[cells]}"), TimeElapsedColumn(), TextColumn("left"),
                    TimeRemainingColumn(), console=console, transient=not console.is_terminal)


def _train(store: Run, console: Console) -> None:
    """Train the task under each defense, where the audit asks what they cost."""
    jobs = [(job, cell, utility.folder_of(store, job)) for job, cell in utility.jobs(store.audit())]
    if not jobs:
        return
    with _bar(console) as bar:
        task = bar.add_task("training", total=len(jobs), cells="")
        for number, (job, cell, folder) in enumerate(jobs):
            bar.update(task, completed=number, cells=f"{number}/{len(jobs)} trainings")
            utility.run_job(job, cell, folder, lambda share, n=number: bar.update(task, completed=n + share))  # type: ignore[misc]


def _run_jobs(store: Run, place: Engine, console: Console) -> None:
    jobs = [(cell, folder) for cell, folder in store.cells() if not folder.done]
    weights = [cell.evaluations * cell.trials * cell.batch for cell, _ in jobs]
    shares = [0.0] * len(jobs)
    with _bar(console) as bar:
        task = bar.add_task("attacking", total=sum(weights), cells=f"0/{len(jobs)} cells")

        def tell(number: int, share: float) -> None:
            shares[number] = share
            done = sum(share >= 1 for share in shares)
            bar.update(task, completed=sum(w * s for w, s in zip(weights, shares, strict=True)),
                       cells=f"{done}/{len(jobs)} cells")

        place(jobs, tell)


