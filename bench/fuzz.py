"""Ten thousand hostile inputs: update files, captures' notes, audit files, edited run directories.

Each must end in an answer or in one error meant for the user; anything else is printed and the exit code is 1.
Prints how many there were of each, the slowest, and the peak memory.   python bench/fuzz.py [--inputs 10000]
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import fuzz

SLOW = 5.0
"""Seconds from which an input is shown."""


def many(name: str, strategy, ask: Callable[[object], str], count: int) -> bool:
    """Ask `count` times; say how it went."""
    ends: Counter[str] = Counter()
    slowest, longest = 0.0, ""

    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(value: object) -> None:
        nonlocal slowest, longest
        began = time.perf_counter()
        ends[ask(value)] += 1
        took = time.perf_counter() - began
        if took > slowest:
            slowest, longest = took, repr(value)

    try:
        one()
        problem = ""
    except Exception as found:  # noqa: BLE001  whatever it is, it is what we are looking for
        problem = "\n  ".join([f"  {type(found).__name__}: {found}", *getattr(found, "__notes__", [])])[:3000]
    print(f"{name:20} {sum(ends.values()):6} inputs, {ends['answered']:5} answered, {ends['refused']:5} refused, "
          f"slowest {slowest:.2f} s{problem and ', FAILED'}", flush=True)
    if problem:
        print(problem)
    if slowest > SLOW:
        print(f"  the slowest: {longest[:1000]}")
    return not problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    count = parser.parse_args().inputs
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "note").mkdir()
        whole = fuzz.tiny_run(folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        share = count // 10
        fine = [
            many("update files", fuzz.update_files(), lambda x: fuzz.try_update(x, folder), 4 * share),
            many("captures' notes", fuzz.notes(), lambda x: fuzz.try_note(x, folder / "note"), 2 * share),
            many("audit files", fuzz.audit_files(), lambda x: fuzz.try_audit(x, folder), 3 * share),
            many("run directories", st.lists(fuzz.edits(), min_size=1, max_size=3),
                 lambda x: fuzz.try_run(x, whole, folder), share),
        ]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"memory grew by at most {grown:.0f} MiB")
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
