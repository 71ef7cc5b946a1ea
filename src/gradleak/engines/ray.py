"""Cells on a Ray cluster, or on this machine under Ray. Every machine must see the run directory under the same path.

A worker that dies is started again by Ray, and goes on where the cell's last checkpoint is. A cell is worked on by one
worker at a time, whoever asked for it: each holds a lock in the cell's folder.
"""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradleak.audit.plan import Cell
from gradleak.audit.run import run_cell
from gradleak.audit.store import CellDir
from gradleak.engines.here import Job
from gradleak.engines.report import Tell
from gradleak.errors import GradleakError, UsageError
from gradleak.hub import library

RETRIES = 5
POLL_SECONDS = 1.0

PASSED = ("PYTHONPATH", "GRADLEAK_CHECKPOINT_SECONDS", "GRADLEAK_CACHE")
"""What workers elsewhere must know of the environment here."""

OURS = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
"""A Ray of our own runs cells and nothing else: they need not yield to other work, as Ray's workers do by default."""


@dataclass(frozen=True)
class Cluster:
    """Where, and what a cell takes of it. Memory is in GiB; 0 asks for none."""

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    memory: float = 0

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.memory) < 0 or self.cpus + self.gpus == 0:
            raise UsageError(f"--on ray: cpus={self.cpus}, gpus={self.gpus}, memory={self.memory} makes no sense; "
                             "a cell takes at least a part of a processor")


def work(table: dict[str, Any], folder: str) -> str | None:
    """One cell, in a worker; the problem in words, if there is one."""
    cell, place = Cell(**{**table, "metrics": tuple(table["metrics"])}), CellDir(Path(folder))
    place.path.mkdir(parents=True, exist_ok=True)
    with (place.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.done:
            return None
        try:
            run_cell(cell, place, lambda share: None)
        except GradleakError as problem:
            return str(problem)
    return None


def run(jobs: Sequence[Job], tell: Tell, cluster: Cluster) -> None:
    """Hand out all cells; Ray decides where each runs and tries again what dies."""
    ray = library("ray", "--on ray needs", "pip install 'gradleak[ray]'")
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    options = {"runtime_env": {"env_vars": passed}} if cluster.address else OURS
    try:
        ray.init(address=cluster.address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        raise UsageError(f"--on ray: {cluster.address or 'here'}: {str(problem).splitlines()[0]}; is that cluster "
                         "up?") from None
    try:
        _hand_out(ray, jobs, tell, cluster)
    finally:
        ray.shutdown()


def _hand_out(ray: Any, jobs: Sequence[Job], tell: Tell, cluster: Cluster) -> None:
    takes = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_retries": RETRIES}
    if cluster.memory:
        takes["memory"] = int(cluster.memory * 2**30)
    remote = ray.remote(**takes)(work)
    waiting = {remote.remote(asdict(cell), str(folder.path.absolute())): number
               for number, (cell, folder) in enumerate(jobs)}
    told = [0.0] * len(jobs)
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)
        now = {number: _share(*jobs[number]) for number in waiting.values()}
        now |= {waiting.pop(task): _end(ray, task) for task in done}
        for number, share in now.items():
            if share != told[number]:
                told[number] = share
                tell(number, share)


def _end(ray: Any, task: Any) -> float:
    """What a cell that ended is worth, if it ended well."""
    try:
        problem = ray.get(task)
    except ray.exceptions.RayError as lost:
        raise GradleakError(f"a cell was lost {RETRIES + 1} times ({type(lost).__name__}); the same command goes on "
                            "where it stopped; if memory ran out: --on 'ray(memory=8)'") from None
    if problem:
        raise GradleakError(problem)
    return 1.0


def _share(cell: Cell, folder: CellDir) -> float:
    """How much of a cell is on disk: workers elsewhere say it that way."""
    return len(folder.trials()) / cell.trials
