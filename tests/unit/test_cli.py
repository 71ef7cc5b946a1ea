"""The command line as a user meets it: good input, bad input, kills."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from gradleak import cli

TASK = 'task = "image(model=lenet, data=photos(size=16, count=40))"\n'
SHORT = TASK + 'attacks = ["dlg(steps=6, restarts=1)"]\ntrials = 1\nmetrics = ["psnr", "label_accuracy"]\n'


def alone(*args: object, cwd: Path, code: int | None = None) -> subprocess.CompletedProcess[str]:
    """As a process of its own, which takes seconds to start."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-m", "gradleak.cli", *map(str, args)], cwd=cwd, env=env,
                          capture_output=True, text=True, timeout=300)
    if code is not None:
        assert done.returncode == code, done.stdout + done.stderr
    return done


def gradleak(*args: object, cwd: Path, code: int | None = None) -> subprocess.CompletedProcess[str]:
    """In this process."""
    said, complained, asked = io.StringIO(), io.StringIO(), sys.argv
    sys.argv, found = ["gradleak", *map(str, args)], 0
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            cli.main()
    except SystemExit as end:
        found = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = asked
    if code is not None:
        assert found == code, said.getvalue() + complained.getvalue()
    return subprocess.CompletedProcess(sys.argv, found, said.getvalue(), complained.getvalue())


def write(folder: Path, text: str) -> Path:
    path = folder / "audit.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    text = SHORT + 'threats = ["curious", "informed"]\ndefenses = ["none", "sign"]\n'
    alone("run", write(folder, text), "--out", folder / "run", "--workers", 2, cwd=folder, code=3)
    return folder


def test_a_run_leaves_what_the_design_names(finished: Path) -> None:
    run = finished / "run"
    assert {p.name for p in run.iterdir()} >= {"audit.toml", "plan.json", "environment.json", "report.html", "cells"}
    cells = list((run / "cells").iterdir())
    assert len(cells) == 4
    for cell in cells:
        found = {p.name for p in cell.iterdir()}
        assert found >= {"cell.json", "events.jsonl", "guess.safetensors", "scores.json", "done"}
        assert not list(cell.glob("*.part")) and not (cell / "state.safetensors").exists()


def test_show_json_is_the_stable_interface(finished: Path) -> None:
    shown = json.loads(gradleak("show", finished / "run", "--json", cwd=finished, code=0).stdout)
    for cell in shown["cells"]:
        assert {"task", "client", "batch", "threat", "defense", "attack", "trials", "seed", "verdict", "seconds",
                "scores", "residual", "knowledge"} <= set(cell)
        assert {"mean", "low", "high", "worst", "per_sample"} == set(cell["scores"]["psnr"])
        assert cell["residual"].keys() == {"guess", "truth"}
    informed = [c for c in shown["cells"] if c["threat"] == "informed"]
    assert all(c["residual"]["truth"] < 1e-6 for c in informed)


def test_the_other_verbs(finished: Path) -> None:
    run = finished / "run"
    assert "INCONCLUSIVE" in gradleak("show", run, cwd=finished, code=3).stdout
    assert "report.html" in gradleak("report", run, cwd=finished, code=0).stdout
    assert "4 shared rows" in gradleak("compare", run, run, cwd=finished, code=0).stdout
    before = gradleak("show", run, "--json", cwd=finished).stdout
    gradleak("score", run, cwd=finished, code=0)
    assert gradleak("show", run, "--json", cwd=finished).stdout == before
    assert "evaluations" in gradleak("plan", finished / "audit.toml", cwd=finished, code=0).stdout
    assert "noise" in gradleak("list", "defenses", cwd=finished, code=0).stdout
    assert "torch" in gradleak("doctor", cwd=finished, code=0).stdout


def test_the_written_audit_runs_again_as_the_same_plan(finished: Path) -> None:
    gradleak("run", finished / "run" / "audit.toml", "--out", finished / "run", cwd=finished, code=3)


def test_another_plan_in_the_same_place_is_refused(finished: Path, tmp_path: Path) -> None:
    path = write(tmp_path, SHORT + "seed = 5\n")
    said = gradleak("run", path, "--out", finished / "run", cwd=tmp_path, code=2).stderr
    assert "seed: 0 -> 5" in said


def test_entry_points_from_outside_work_in_an_audit(tmp_path: Path) -> None:
    text = TASK + ('attacks = ["palette(steps=5)"]\ndefenses = ["round_off"]\nmetrics = ["psnr", "worst_pixel"]\n'
                   'threats = ["informed"]\ntrials = 1\n')
    gradleak("run", write(tmp_path, text), "--out", "run", "--workers", 1, cwd=tmp_path)
    (cell,) = json.loads(gradleak("show", "run", "--json", cwd=tmp_path, code=0).stdout)["cells"]
    assert cell["scores"]["worst_pixel"]["mean"] > 0 and cell["residual"]["truth"] < 1e-6


BAD = {
    "unknown attack": ('attacks = ["dgl"]', "did you mean 'dlg'"),
    "malformed": ("attacks = [", "not TOML"),
    "missing file": ('task = "image(data=npz(\'nowhere.npz\'))"', "no such file"),
    "empty folder": ('task = "image(data=folder(\'empty\'))"', "no images"),
    "no folder": ('task = "image(data=folder(\'nowhere\'))"', "no such folder"),
    "wrong output": ('task = "image(model=python(\'narrow:build\'), data=photos(size=16, count=40))"', "10 classes"),
    "no module": ('task = "image(model=python(\'nowhere:build\'))"', "No module"),
    "negative sigma": ('defenses = ["noise(sigma=-0.1)"]', "cannot be negative"),
    "batch too large": (TASK + "batch = [41]", "larger than the data"),
    "model beyond all memory": ('task = "image(model=mlp(width=10000000000))"', "more memory than there is"),
    "crops beyond all photographs": ('task = "image(data=photos(count=100000000000))"', "one crop a photograph"),
    "batch beyond all data": (f"batch = [{2**64}]", "whole numbers from 1 to"),
    "threshold beyond all numbers": (f"leak_at = {{psnr = {10**400}}}", "leak_at must give a number"),
    "unknown key": ("attack = 'dlg'", "did you mean 'attacks'"),
    "unknown threat": ('threats = ["curius"]', "did you mean 'curious'"),
    "unknown knowledge": ('threats = ["curious+label"]', "did you mean 'labels'"),
    "zero trials": ("trials = 0", "from 1"),
    "bad budget": ('budget = "soon"', "2 min"),
    "bad name": ('name = "../up"', "names a folder"),
    "code": ('defenses = ["__import__(\'os\').abort()"]', "nothing is computed"),
    "empty sweep": ('defenses = ["noise(sigma=sweep())"]', "sweep takes the values"),
    "threshold of nothing": ("leak_at = {psrn = 1.0}", "did you mean 'psnr'"),
    "not to be granted": ('threats = ["curious+public_data"]', "cannot be granted"),
    "raising build": ('task = "image(model=python(\'raising:build\'))"', "ZeroDivisionError"),
    "out is a file": ('name = "x"\n' + TASK, "is a file"),
    "bad labels": ('task = "image(data=npz(\'floats.npz\'))"', "class numbers"),
    "wrong keys": ('task = "image(data=npz(\'floats.npz\', x=pixels))"', "it holds"),
    "not npz": ('task = "image(data=npz(\'text.npz\'))"', "savez"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_nothing_written(tmp_path: Path, case: str) -> None:
    (tmp_path / "empty" / "cats").mkdir(parents=True)
    (tmp_path / "narrow.py").write_text(
        "from torch import nn\ndef build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 3))\n")
    np.savez(tmp_path / "floats.npz", x=np.zeros((4, 8, 8, 3), np.uint8), y=np.zeros(4))
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "raising.py").write_text("def build(shape, classes):\n    return 1 / 0\n")
    if case == "out is a file":
        (tmp_path / "out").write_text("mine")
    text, says = BAD[case]
    command = alone if "python(" in text else gradleak  # modules are found in the folder one stands in
    done = command("run", write(tmp_path, text + "\n"), "--out", "out", cwd=tmp_path, code=2)
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out").is_dir()


def test_a_missing_audit_or_run_is_said(tmp_path: Path) -> None:
    assert "no such file" in gradleak("run", "nowhere.toml", cwd=tmp_path, code=2).stderr
    assert "not a gradleak run" in gradleak("show", "nowhere", cwd=tmp_path, code=2).stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "choose another" in gradleak("run", write(tmp_path, SHORT), "--out", "mine", cwd=tmp_path, code=2).stderr


@pytest.fixture
def captured(tmp_path: Path, play) -> Path:
    from gradleak.audit.plan import Audit
    from gradleak.audit.run import stage

    (cell,) = Audit(task="image(model=mlp, data=photos(size=16, count=40))", threats=("curious",)).cells()
    sent = stage(cell, 0).sent.release
    save_file({k: v.clone() for k, v in sent.update.items()}, tmp_path / "u.safetensors")
    save_file({k: v.clone() for k, v in sent.params.items()}, tmp_path / "p.safetensors")
    return tmp_path


ATTACK = ("attack", "linear", "--update", "u.safetensors", "--model", "mlp", "--shape", "3,16,16")


def test_a_captured_update_is_attacked(captured: Path) -> None:
    said = gradleak(*ATTACK, "--params", "p.safetensors", cwd=captured, code=0).stdout
    assert "explain the update" in said and "NOT" not in said and (captured / "recovered" / "0.png").is_file()


@pytest.mark.parametrize(("spoil", "says"), [
    (lambda u: {f"x.{k}": v for k, v in u.items()}, "names do not fit"),
    (lambda u: {k: v * float("nan") for k, v in u.items()}, "NaN"),
    (lambda u: {k: v[:1] for k, v in u.items()}, "shape"),
    (lambda u: {k: v.long() for k, v in u.items()}, "non-float"),
])
def test_a_bad_update_is_refused(captured: Path, spoil, says: str) -> None:
    path = captured / "u.safetensors"
    save_file({k: v.clone().contiguous() for k, v in spoil(load_file(path)).items()}, path)
    done = gradleak(*ATTACK, cwd=captured, code=2)
    assert says in done.stderr and not (captured / "recovered").exists()
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_file_that_is_no_update_is_refused(captured: Path) -> None:
    (captured / "u.safetensors").write_bytes(b"\x80\x04junk")
    assert "not a safetensors file" in gradleak(*ATTACK, cwd=captured, code=2).stderr


def scores(run: Path) -> dict[str, object]:
    """Everything measured; not the seconds."""
    found = {}
    for path in sorted(run.glob("cells/*/scores.json")):
        trials = json.loads(path.read_text())["trials"]
        found[path.parent.name] = [{k: v for k, v in t.items() if k != "seconds"} for t in trials]
        found[path.parent.name + " guess"] = {
            k: v.flatten().tolist() for k, v in sorted(load_file(path.parent / "guess.safetensors").items())}
    return found


def next_checkpoint(run: Path, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a trial that is under way has been saved anew."""
    before = {p: p.stat().st_mtime_ns for p in run.glob("cells/*/state.safetensors")}
    while process.poll() is None:
        for path in run.glob("cells/*/state.safetensors"):
            if path.exists() and path.stat().st_mtime_ns != before.get(path):
                return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_kill_anywhere_and_go_on(tmp_path: Path, workers: str) -> None:
    text = TASK + ('attacks = ["dlg(steps=60, restarts=2)"]\ntrials = 2\nthreats = ["informed"]\n'
                   'defenses = ["none", "prune(keep=0.3)"]\nmetrics = ["psnr", "ssim"]\n')
    path = write(tmp_path, text)
    gradleak("run", path, "--out", "whole", "--workers", 1, cwd=tmp_path)
    impatient = {**os.environ, "OMP_NUM_THREADS": "1", "GRADLEAK_CHECKPOINT_SECONDS": "0"}
    command = [sys.executable, "-m", "gradleak.cli", "run", str(path), "--out", "killed", "--workers", workers]
    for hit in range(2):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=impatient)
        kept = next_checkpoint(tmp_path / "killed", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert kept, f"kill {hit} came too late to interrupt anything"
    alone("run", path, "--out", "killed", "--workers", 2, cwd=tmp_path)
    assert scores(tmp_path / "killed") == scores(tmp_path / "whole")


def test_same_seed_twice_other_seed_not(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        gradleak("run", write(tmp_path, SHORT + f"seed = {seed}\n"), "--out", name, "--workers", 1, cwd=tmp_path)
    one, two, three = (scores(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert list(one.values())[1] != list(three.values())[1]
