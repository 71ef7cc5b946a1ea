"""Cells in several processes of this machine, one thread each; results do not depend on how many."""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict

from gradleak.engines.here import Job
from gradleak.engines.report import Tell
from gradleak.errors import GradleakError


def run(jobs: Sequence[Job], tell: Tell, workers: int) -> None:
    """Hand out jobs as workers come free. When one fails, the others are stopped: nothing finished is lost."""
    waiting = deque(enumerate(jobs))
    started: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(workers) as threads:
        feeding = [threads.submit(_feed, waiting, started, tell) for _ in range(min(workers, len(jobs)))]
        try:
            wait(feeding, return_when=FIRST_EXCEPTION)
        finally:
            if not all(f.done() and f.exception() is None for f in feeding):
                waiting.clear()
                for worker in started:
                    worker.kill()
    for finished in sorted(feeding, key=lambda f: isinstance(f.exception(), _Died)):
        finished.result()


def _feed(waiting: deque[tuple[int, Job]], started: "list[subprocess.Popen[str]]", tell: Tell) -> None:
    """Keep one worker process busy until nothing is waiting."""
    command = [sys.executable, "-m", "gradleak.engines.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        started.append(worker)
        try:
            while waiting:
                _one(worker, *waiting.popleft(), tell)
        finally:
            worker.kill()


class _Died(GradleakError):
    """A worker ended without a word."""


def _one(worker: "subprocess.Popen[str]", number: int, job: Job, tell: Tell) -> None:
    assert worker.stdin and worker.stdout
    cell, folder = job
    try:
        worker.stdin.write(json.dumps({"cell": asdict(cell), "folder": str(folder.path.absolute())}) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        raise _death() from None
    for line in worker.stdout:
        message = json.loads(line)
        if "problem" in message:
            raise GradleakError(message["problem"])
        if "done" in message:
            return
        tell(number, message["share"])
    raise _death()


def _death() -> _Died:
    return _Died("a worker died (out of memory, or an error shown above); the same command goes on where it "
                 "stopped, --workers 1 needs the least memory")
