"""What handing out cells costs: time from the first cell's begin to the last one's end, beside what they computed.

    python bench/overhead.py [--on ray] [--workers 2] [--cells 8] [--steps 900]

With the defaults a cell takes about half a minute. Ray's own start, once a run, counts for the whole command only.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from gradleak import cli

AUDIT = """name = "overhead"
task = "image(model=lenet, data=photos(size=32))"
attacks = [{attacks}]
threats = ["curious"]
defenses = ["noise(relative=0.1)"]
metrics = ["psnr"]
trials = 5
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="ray")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--steps", type=int, default=900)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        attacks = ", ".join(f'"ig(steps={given.steps + number}, restarts=1)"' for number in range(given.cells))
        (folder / "audit.toml").write_text(AUDIT.format(attacks=attacks))
        sys.argv = ["gradleak", "run", str(folder / "audit.toml"), "--out", str(folder / "run"), "--on", given.on,
                    "--workers", str(given.workers)]
        began = time.time()
        with suppress(SystemExit):
            cli.main()
        whole, cells = time.time() - began, list((folder / "run" / "cells").iterdir())
        first = min((cell / "cell.json").stat().st_mtime for cell in cells)
        last = max((cell / "done").stat().st_mtime for cell in cells)
        trials = [trial for cell in cells for trial in json.loads((cell / "scores.json").read_text())["trials"]]
        spent = sum(trial["seconds"] for trial in trials)
    ideal = spent / given.workers
    between = last - first
    print(f"{len(cells)} cells of {spent / len(cells):.1f} s on {given.workers} workers, {given.on}: {between:.1f} s "
          f"from the first begun to the last done beside {ideal:.1f} s of attacking, {between / ideal - 1:+.1%}; the "
          f"whole command {whole:.1f} s")


if __name__ == "__main__":
    main()
