"""Kill -9 at random moments, then go on: the final table must be that of a run nobody disturbed, nothing twice.

    python bench/kills.py [--kills 100] [--on local|processes|ray] [--victim driver|worker]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

AUDIT = """name = "kills"
task = "image(model=mlp(width=16), data=photos(size=8, count=40))"
attacks = ["dlg(steps=30, restarts=1)"]
threats = ["informed"]
defenses = ["none", "prune(keep=0.3)", "sign"]
metrics = ["psnr"]
trials = 2
"""


def start(folder: Path, out: str, on: str) -> subprocess.Popen[bytes]:
    """In a session of its own, so that all it started can be found."""
    command = [sys.executable, "-m", "gradleak.cli", "run", "audit.toml", "--out", out, "--on", on]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GRADLEAK_CHECKPOINT_SECONDS": "0"}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)


def under_way(run: Path, process: subprocess.Popen[bytes]) -> bool:
    """Wait for a checkpoint of this sitting; False if the run ends before."""
    began = time.time()
    while process.poll() is None:
        if any(p.exists() and p.stat().st_mtime > began for p in run.glob("cells/*/state.safetensors")):
            return True
        time.sleep(0.02)
    return False


def worker_of(driver: int) -> int | None:
    """A process that computes cells for this driver: a worker of `processes`, or of Ray."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, session = (place / "cmdline").read_bytes(), os.getsid(int(place.name))
        except OSError:
            continue
        if session == driver and (b"engines.worker" in words or words.startswith(b"ray::work")):
            return int(place.name)
    return None


def results(run: Path) -> dict[str, object]:
    """Everything measured but the seconds; every trial must be there once."""
    found: dict[str, object] = {}
    for path in sorted(run.glob("cells/*/scores.json")):
        trials = json.loads(path.read_text())["trials"]
        assert [t["trial"] for t in trials] == list(range(2)), path
        found[path.parent.name] = [{k: v for k, v in t.items() if k != "seconds"} for t in trials]
        found[path.parent.name + " guess"] = {
            k: v.flatten().tolist() for k, v in sorted(load_file(path.parent / "guess.safetensors").items())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--on", default="local")
    parser.add_argument("--victim", choices=["driver", "worker"], default="driver")
    wanted = parser.parse_args()
    draw, kills, runs, wrong = random.Random(0), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "audit.toml").write_text(AUDIT)
        start(folder, "whole", "local").wait()
        whole = results(folder / "whole")
        assert len(whole) == 6
        while kills < wanted.kills:
            runs += 1
            run, finished = folder / f"run{runs}", False
            while not finished:
                process = start(folder, run.name, wanted.on)
                if kills < wanted.kills and under_way(run, process):
                    time.sleep(draw.random() * 0.5)
                    victim = process.pid if wanted.victim == "driver" else worker_of(process.pid)
                    if victim is not None and process.poll() is None:
                        os.kill(victim, signal.SIGKILL)
                        kills += 1
                    if wanted.victim == "driver":
                        process.wait()
                        continue
                process.wait()
                finished = process.returncode in (0, 1, 3)
            wrong += results(run) != whole
            print(f"{kills} kills, {runs} runs, {wrong} of them differ from the undisturbed one", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
