"""Hostile files: an answer or one clear error, whatever is in them; `bench/fuzz.py` does ten thousand of them."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))
import fuzz
from gradleak.audit.plan import LARGEST_FILE, read
from gradleak.audit.store import Run
from gradleak.errors import UsageError
from gradleak.spec import parse, sweep

few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    return fuzz.tiny_run(folder)


def test_the_plain_inputs_are_answered(folder: Path, whole: Run) -> None:
    assert fuzz.try_update(fuzz.save(fuzz.plain_update()), folder) == "answered"
    assert fuzz.try_audit(b"trials = 1", folder) == "answered"
    assert fuzz.try_run([], whole, folder) == "answered"


@few
@given(content=fuzz.update_files())
def test_an_update_file(content: bytes, folder: Path) -> None:
    fuzz.try_update(content, folder)


@few
@given(note=fuzz.notes())
def test_a_captures_note(note: dict[str, object], folder: Path) -> None:
    fuzz.try_note(note, folder)


@few
@given(content=fuzz.audit_files())
def test_an_audit_file(content: bytes, folder: Path) -> None:
    fuzz.try_audit(content, folder)


@settings(few, max_examples=25)
@given(edits=st.lists(fuzz.edits(), min_size=1, max_size=3))
def test_a_run_directory(edits: list[fuzz.Edit], whole: Run, folder: Path) -> None:
    fuzz.try_run(edits, whole, folder)


def test_ten_megabytes_and_endless_sweeps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_bytes(b"#" * (10 * LARGEST_FILE))
    with pytest.raises(UsageError, match="larger than"):
        read(tmp_path / "big.toml")
    many = ", ".join(f"a{i}=sweep({', '.join(map(str, range(20)))})" for i in range(16))
    with pytest.raises(UsageError, match="split the sweep up"):
        next(sweep(parse(f"chain(noise({many}))")))
    (tmp_path / "wide.toml").write_text(f'defenses = ["noise({many})"]')
    with pytest.raises(UsageError, match="split the audit up"):
        read(tmp_path / "wide.toml")
