"""Where cells run, and that it makes no difference; runs served on this machine."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gradleak.audit import drive
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run
from gradleak.engines import here
from gradleak.engines.places import engine
from gradleak.errors import UsageError
from gradleak.report.view import answer, server

AUDIT = Audit(name="places", task="image(model=mlp(width=8), data=photos(size=8, count=20))", attacks=("linear",),
              threats=("curious",), defenses=("none", "sign"), trials=2, metrics=("psnr",))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return drive.run(AUDIT, tmp_path_factory.mktemp("places") / "here", on="local")


def results(run: Run) -> list[object]:
    return [[{k: v for k, v in t.items() if k != "seconds"} for t in folder.trials()] for _, folder in run.cells()]


@pytest.mark.parametrize(("on", "says"), [
    ("rya", "did you mean 'ray'"), ("ray(cpu=1)", "ray takes"), ("ray(cpus=0)", "makes no sense"),
    ("cluster", "known"), ("ray(cpus=-1)", "makes no sense"), ("ray(cpus='many')", "ray takes"),
])
def test_a_place_that_is_none_is_refused(on: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        engine(on, 0)


def test_the_word_decides_before_the_workers() -> None:
    assert engine("local", 8) is here.run and engine(None, 1) is here.run


def test_ray_without_ray_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"gradleak\[ray\]"):
        engine("ray", 0)([], lambda number, share: None)


def test_ray_gives_the_same_table(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ray: pip install 'gradleak[ray]'")
    assert results(drive.run(AUDIT, tmp_path / "ray", on="ray")) == results(run)


def test_a_cell_that_is_done_is_not_done_again(run: Run) -> None:
    from dataclasses import asdict

    from gradleak.engines.ray import work

    cell, folder = next(run.cells())
    before = (folder.path / "scores.json").stat().st_mtime_ns
    assert work(json.loads(json.dumps(asdict(cell))), str(folder.path)) is None
    assert (folder.path / "scores.json").stat().st_mtime_ns == before


def test_runs_are_shown_by_name_and_nothing_else_is(run: Run) -> None:
    folder = run.path.parent
    status, text, again = answer(folder, "/")
    assert status == 200 and ">here<" in text and "2 of 2" in text and again
    status, text, again = answer(folder, "/here")
    assert status == 200 and "How much can be read back" in text and not again
    for path in ("/../here", "/here/plan.json", "/%2e%2e", "/etc/passwd", "//", "/here%00"):
        assert answer(folder, path)[0] == 404
    (run.path / "plan.json").rename(run.path / "kept")
    (run.path / "plan.json").write_text("{}")
    assert answer(folder, "/here")[0] == 500 and "not the plan" in answer(folder, "/")[1]
    (run.path / "kept").rename(run.path / "plan.json")


def test_only_this_machine_is_answered(run: Run) -> None:
    with server(run.path.parent, 0) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{served.server_address[1]}/"
        with urllib.request.urlopen(address, timeout=30) as found:
            assert found.status == 200 and found.headers["Refresh"] and b"Runs" in found.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example:80"}), timeout=30)
        served.shutdown()
    with pytest.raises(UsageError, match="no such folder"):
        server(Path("nowhere"), 0)
