"""`--on`: where cells run, by name."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from gradleak.engines import here, processes
from gradleak.engines.here import Job
from gradleak.engines.report import Tell
from gradleak.errors import UsageError, did_you_mean
from gradleak.spec import parse

Engine = Callable[[Sequence[Job], Tell], None]

NAMES = ("local", "processes", "ray")


def engine(on: str | None, workers: int) -> Engine:
    """`local`: in this process. `processes`: in as many as `workers` says, 0 for one a core. `ray`: under Ray here;
    `ray://HOST:PORT`: on that cluster; `ray(address='auto', cpus=1, gpus=0, memory=4)` says what a cell takes of it.

    Without a word: in this process if one worker is asked for, else in several."""
    if on is not None and on.startswith("ray://"):
        on = f"ray(address={on!r})"
    call = parse(on) if on is not None else None
    name = call.name if call else "local" if workers == 1 else "processes"
    if name == "local":
        return here.run
    if name == "processes":
        return lambda jobs, tell: _several(jobs, tell, workers or os.cpu_count() or 1)
    if name != "ray" or call is None:
        raise UsageError(f"--on {on}: {did_you_mean(name, NAMES)}")
    from gradleak.engines import ray

    try:
        cluster = ray.Cluster(*call.args, **dict(call.kwargs))  # type: ignore[arg-type]
    except TypeError as problem:
        raise UsageError(f"--on {on}: {problem}; ray takes address, cpus, gpus and memory") from None
    return partial(ray.run, cluster=cluster)


def _several(jobs: Sequence[Job], tell: Tell, workers: int) -> None:
    if workers == 1 or len(jobs) <= 1:
        here.run(jobs, tell)
    else:
        processes.run(jobs, tell, workers)
