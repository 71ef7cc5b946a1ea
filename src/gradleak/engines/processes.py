"""Cells in several processes of this machine, one thread each; results do not depend on how many."""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from queue import Empty, SimpleQueue

from gradleak.engines.here import Job
from gradleak.engines.report import Tell
from gradleak.errors import GradleakError


def run(jobs: Sequence[Job], tell: Tell, workers: int) -> None:
    """Hand out jobs as workers come free."""
    waiting: SimpleQueue[tuple[int, Job]] = SimpleQueue()
    for numbered in enumerate(jobs):
        waiting.put(numbered)
    with ThreadPoolExecutor(workers) as threads:
        for finished in [threads.submit(_feed, waiting, tell) for _ in range(min(workers, len(jobs)))]:
            finished.result()


def _feed(waiting: SimpleQueue[tuple[int, Job]], tell: Tell) -> None:
    """Keep one worker process busy until nothing is waiting."""
    command = [sys.executable, "-m", "gradleak.engines.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        try:
            while True:
                _one(worker, *waiting.get_nowait(), tell)
        except Empty:
            return
        finally:
            worker.kill()


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


def _death() -> GradleakError:
    return GradleakError("a worker died (out of memory, or an error shown above); the same command goes on where it "
                         "stopped, --workers 1 needs the least memory")
