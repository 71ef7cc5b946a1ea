"""Cells in several processes of this machine, one thread each; results do not depend on how many."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from gradleak.audit.run import run_cell
from gradleak.engines.here import Job
from gradleak.engines.report import Tell
from gradleak.errors import GradleakError

Lines = dict[Connection, BaseProcess]


def _work(line: Connection) -> None:
    """Take jobs until the line closes, which it also does when the parent is killed."""
    try:
        while True:
            number, (cell, folder) = line.recv()
            try:
                run_cell(cell, folder, lambda share, n=number: line.send((n, share, None)))  # type: ignore[misc]
            except GradleakError as problem:
                line.send((number, 1.0, str(problem)))
            line.send((number, None, None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def run(jobs: Sequence[Job], tell: Tell, workers: int) -> None:
    """Hand out jobs as workers come free."""
    context = multiprocessing.get_context("spawn")
    waiting = list(enumerate(jobs))
    lines: Lines = {}
    for _ in range(min(workers, len(jobs))):
        ours, theirs = context.Pipe()
        process: BaseProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        ours.send(waiting.pop(0))
        lines[ours] = process
    try:
        _listen(lines, waiting, tell)
    finally:
        for line, process in lines.items():
            line.close()
            process.terminate()


def _listen(lines: Lines, waiting: list[tuple[int, Job]], tell: Tell) -> None:
    busy = set(lines)
    while busy:
        for line in wait(list(busy)):
            assert isinstance(line, Connection)
            try:
                number, share, problem = line.recv()
            except EOFError:
                raise GradleakError("a worker died (out of memory?); the same command goes on where it stopped, "
                                    "--workers 1 needs the least memory") from None
            if problem:
                raise GradleakError(problem)
            if share is not None:
                tell(number, share)
            elif waiting:
                line.send(waiting.pop(0))
            else:
                busy.discard(line)
