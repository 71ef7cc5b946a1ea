"""One worker: a cell a line on standard input, how far it is a line on standard output. Started by `processes`."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradleak.audit.plan import Cell
from gradleak.audit.run import run_cell
from gradleak.audit.store import CellDir
from gradleak.errors import GradleakError


def serve(lines: Any, say: Callable[[dict[str, Any]], None]) -> None:
    """Run cells until the input ends, which it also does when the parent is killed."""
    for line in lines:
        job = json.loads(line)
        cell = Cell(**{**job["cell"], "metrics": tuple(job["cell"]["metrics"])})
        try:
            run_cell(cell, CellDir(Path(job["folder"])), lambda share: say({"share": share}))
            say({"done": True})
        except GradleakError as problem:
            say({"problem": str(problem)})


def main() -> None:
    """Keep the real standard output for messages; whatever a user's model prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        serve(sys.stdin, say)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)


if __name__ == "__main__":
    main()
