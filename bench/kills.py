"""Kill -9 at random moments, then go on: the final table must be that of a run nobody disturbed, nothing twice.

    python bench/kills.py [--kills 100] [--on local|processes|ray] [--victim driver|worker]
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from safetensors.torch import load_file

from gradleak import cli
from gradleak.audit import drive
from gradleak.report import html, plots  # noqa: F401  the same

AUDIT = """name = "kills"
task = "image(model=mlp(width=16), data=photos(size=8, count=40))"
attacks = ["dlg(steps=30, restarts=1)"]
threats = ["informed"]
defenses = ["none", "prune(keep=0.3)", "sign"]
metrics = ["psnr"]
trials = 4
"""

EARLY, MOMENT = 0.5, 0.2
"""The share of kills that do not wait for a checkpoint of their sitting, and seconds within which a kill comes."""


def start(folder: Path, out: str, on: str) -> BaseProcess:
    """The command line in a process of its own, forked so that nobody pays for the imports again."""
    process = get_context("fork").Process(target=_command, args=(folder, out, on))
    process.start()
    return process


def _command(folder: Path, out: str, on: str) -> None:
    os.chdir(folder)
    os.environ["GRADLEAK_CHECKPOINT_SECONDS"] = "0"
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1), os.dup2(quiet, 2)
    sys.argv = ["gradleak", "run", "audit.toml", "--out", out, "--on", on]
    cli.main()


def under_way(run: Path, process: BaseProcess) -> bool:
    """Wait for a checkpoint of this sitting; False if the run ends before."""
    began = time.time()
    while process.is_alive():
        if any(p.exists() and p.stat().st_mtime > began for p in run.glob("cells/*/state.safetensors")):
            return True
        time.sleep(0.01)
    return False


def workers_of(driver: int) -> list[int]:
    """Processes that compute cells for this driver: workers of `processes`, or of Ray while they do."""
    parents, working = {}, []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, after = (place / "cmdline").read_bytes(), (place / "stat").read_text().rpartition(") ")[2]
        except OSError:
            continue
        parents[int(place.name)] = int(after.split()[1])
        if b"engines.worker" in words or words.startswith(b"ray::work"):
            working.append(int(place.name))

    def below(one: int) -> bool:
        return one == driver or (one in parents and below(parents[one]))

    return [one for one in working if below(one)]


def results(run: Path) -> dict[str, object]:
    """Everything measured but the seconds; every trial must be there once."""
    found: dict[str, object] = {}
    for path in sorted(run.glob("cells/*/scores.json")):
        trials = json.loads(path.read_text())["trials"]
        assert [t["trial"] for t in trials] == list(range(4)), path
        found[path.parent.name] = [{k: v for k, v in t.items() if k != "seconds"} for t in trials]
        found[path.parent.name + " guess"] = {
            k: v.flatten().tolist() for k, v in sorted(load_file(path.parent / "guess.safetensors").items())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--on", default="local")
    parser.add_argument("--victim", choices=["driver", "worker"], default="driver")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    draw, kills, runs, wrong = random.Random(wanted.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "audit.toml").write_text(AUDIT)
        drive.load(folder / "audit.toml")  # once, for all that are forked: what they would do first
        start(folder, "whole", "local").join()
        whole = results(folder / "whole")
        assert len(whole) == 6
        while kills < wanted.kills:
            runs += 1
            run, finished = folder / f"run{runs}", False
            while not finished:
                process = start(folder, run.name, wanted.on)
                while kills < wanted.kills and process.is_alive() and (
                        draw.random() < EARLY or under_way(run, process)):
                    time.sleep(draw.random() * MOMENT)
                    found = [process.pid] if wanted.victim == "driver" else workers_of(process.pid)
                    if found and process.is_alive():
                        os.kill(draw.choice(found), signal.SIGKILL)
                        kills += 1
                        if wanted.victim == "driver":
                            process.join()
                process.join()
                finished = process.exitcode in (0, 1, 3)
            wrong += results(run) != whole
            print(f"{kills} kills, {runs} runs, {wrong} of them differ from the undisturbed one", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
