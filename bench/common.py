"""Running an audit for a figure, and printing what it gave."""

import tempfile
from pathlib import Path

from rich.console import Console

from gradleak.audit.drive import run
from gradleak.audit.plan import Audit
from gradleak.audit.verdict import Row
from gradleak.report.rows import rows

CIFAR = Path(__file__).parent.parent / "data" / "cifar10.npz"
PHOTOS = "photos(size=32)"


def cifar() -> str | None:
    """CIFAR-10's test images, if data/cifar10.npz is there (keys x_test and y_test)."""
    return f"npz('{CIFAR}', x=x_test, y=y_test)" if CIFAR.is_file() else None


def measured(audit: Audit, workers: int = 0) -> list[Row]:
    """Run in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        return rows(run(audit, Path(folder) / "run", workers, Console(stderr=True)))


def line(row: Row) -> str:
    """One row with every sample's PSNR."""
    psnr = row.scores["psnr"]
    each = " ".join(f"{value:.1f}" for value in psnr.per_sample)
    faithful = sum(value <= 1e-3 for value in row.scores["mse"].per_sample)
    ordered = sorted(psnr.per_sample)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    cell, labels = row.cell, row.scores["label_accuracy"].mean
    return (f"{cell.task}\n  B={cell.batch} {cell.defense} {cell.threat} {cell.attack}: {row.verdict}, "
            f"mean {psnr.mean:.1f} dB, median {middle:.1f} dB, MSE <= 0.001 on {faithful} of {row.samples}, "
            f"labels {labels:.0%}, {row.seconds / max(1, cell.trials):.0f} s a batch\n  each: {each}")
