"""What a defense costs: the audited model trained under it, and how good it then is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradleak import registry
from gradleak.audit.plan import Audit, Cell, digest
from gradleak.audit.store import Run, read_json, read_tensors, write_json, write_tensors
from gradleak.audit.training import Course, Federated, State, split, train
from gradleak.calculus import one_thread
from gradleak.rng import Rng
from gradleak.spec import Call, parse

Counts = NDArray[np.int64]
"""How often each class (row) was taken for each (column)."""

DRAWS = 1000
MOST_CLASSES = 100
"""With more, as with a language model's words, only the accuracy is said: a table of confusions would fill the disk."""


class Interval(NamedTuple):
    """A number with a 95 % bootstrap interval over test examples and seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Utility:
    """How good the model is after training under a defense."""

    accuracy: Interval
    f1: Interval
    mcc: Interval
    rounds: float
    seconds: float
    seeds: int
    classes: int

    @property
    def lead(self) -> str:
        """The number that stands for all: of two classes, which are seldom equally many, Matthews's."""
        return "MCC" if self.classes == 2 else "accuracy"

    @property
    def leading(self) -> Interval:
        return self.mcc if self.lead == "MCC" else self.accuracy


@dataclass(frozen=True)
class Job:
    """One training of one task under one defense."""

    task: str
    client: str
    defense: str
    training: str
    seed: int

    @property
    def key(self) -> str:
        return digest(asdict(self))

    def course(self, cell: Cell) -> Course:
        plan = federated(self.training)
        here = replace(cell, task=self.task)
        world, rng = here.world(), Rng(self.seed) / "utility"
        return Course(plan, world, here.participation(), here.defender(), split(plan, world.pool, rng), rng / "rounds")


def federated(text: str) -> Federated:
    return registry.build("training", parse(text))  # type: ignore[no-any-return]


def jobs(audit: Audit) -> list[tuple[Job, Cell]]:
    """Every training an audit asks for, with a cell that has its task and defense. None unless it says `utility`."""
    if audit.utility is None:
        return []
    plan = federated(audit.utility)
    found: dict[Job, Cell] = {}
    for cell in audit.cells():
        for seed in range(plan.seeds):
            job = Job(_whole(cell.task), cell.client, cell.defense, repr(parse(audit.utility)), audit.seed + seed)
            found.setdefault(job, cell)
    return list(found.items())


def _whole(task: str) -> str:
    """The task with all of its data: which batches are attacked makes no difference to training."""
    call = parse(task)
    return repr(Call(call.name, call.args, tuple(item for item in call.kwargs if item[0] != "draw")))


def run_job(job: Job, cell: Cell, folder: Path, progress: Callable[[float], None]) -> None:
    """Finish one training, from wherever it stopped."""
    if (folder / "result.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "job.json", asdict(job))
    with one_thread():
        course = job.course(cell)
        kept = read_tensors(folder / "state.safetensors")
        spent = float(kept.pop("_seconds")) if kept else 0.0
        began = time.monotonic()

        def keep(state: State) -> None:
            seconds = torch.tensor(spent + time.monotonic() - began, dtype=torch.float64)
            write_tensors(folder / "state.safetensors", {**state, "_seconds": seconds})
            progress(int(state["round"]) / course.plan.rounds)

        last = train(course, kept or course.begin(), keep)
        counts = course.confusion(last)
    right = int(counts.diagonal().sum())
    table = counts.tolist() if len(counts) <= MOST_CLASSES else None
    write_json(folder / "result.json", {
        "confusion": table, "right": right, "tested": int(counts.sum()), "rounds": int(last["round"]),
        "seconds": spent + time.monotonic() - began})
    (folder / "state.safetensors").unlink(missing_ok=True)
    progress(1.0)


def folder_of(run: Run, job: Job) -> Path:
    return run.path / "utility" / job.key


def results(run: Run) -> dict[tuple[str, str], Utility]:
    """By task and defense, as the cells name them; only trainings that are finished with every seed."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    audit = run.audit()
    wanted = federated(audit.utility).seeds if audit.utility else 0
    for job, cell in jobs(audit):
        path = folder_of(run, job) / "result.json"
        if path.exists():
            found.setdefault((cell.task, cell.defense), []).append(read_json(path))
    return {place: summary(parts) for place, parts in found.items() if len(parts) == wanted}


def summary(parts: Sequence[dict[str, Any]]) -> Utility:
    tables = [np.asarray(part["confusion"] or _right_or_wrong(part)) for part in parts]
    rng = np.random.default_rng(0)
    draws = [np.sum([_again(table, rng) for table in tables], axis=0) for _ in range(DRAWS)]
    whole = np.sum(tables, axis=0)
    known = all(part["confusion"] for part in parts)
    scores = {"accuracy": accuracy, "f1": macro_f1, "mcc": mcc}
    each = {name: _interval(score, whole, draws) if known or name == "accuracy" else Interval(*[float("nan")] * 3)
            for name, score in scores.items()}
    rounds, seconds = (sum(part[key] for part in parts) / len(parts) for key in ("rounds", "seconds"))
    return Utility(each["accuracy"], each["f1"], each["mcc"], rounds, seconds, len(parts),
                   len(whole) if known else 0)


def _right_or_wrong(part: dict[str, Any]) -> list[list[int]]:
    return [[part["right"], part["tested"] - part["right"]], [0, 0]]


def _again(table: Counts, rng: np.random.Generator) -> Counts:
    """As many test examples, drawn again with replacement."""
    total = int(table.sum())
    return rng.multinomial(total, table.flatten() / total).reshape(table.shape)


def _interval(score: Callable[[Counts], float], whole: Counts, draws: Sequence[Counts]) -> Interval:
    low, high = np.quantile([score(table) for table in draws], [0.025, 0.975])
    return Interval(score(whole), float(low), float(high))


def accuracy(table: Counts) -> float:
    return float(np.trace(table) / table.sum())


def macro_f1(table: Counts) -> float:
    """Mean over the classes that occur, of truth or of guesses."""
    both = table.sum(0) + table.sum(1)
    there = both > 0
    return float((2 * np.diagonal(table)[there] / both[there]).mean())


def mcc(table: Counts) -> float:
    """Matthews's correlation, for any number of classes; 0 where everything is taken for one."""
    said, true, total = table.sum(0).astype(float), table.sum(1).astype(float), float(table.sum())
    over = np.trace(table) * total - float(said @ true)
    under = (total**2 - float(said @ said)) * (total**2 - float(true @ true))
    return float(over / np.sqrt(under)) if under > 0 else 0.0
