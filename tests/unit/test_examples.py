"""The examples run, as a reader would run them; those whose libraries are not here are left out."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NEEDS = {"own_model/train.py": (), "opacus/train.py": ("opacus",),
         "huggingface/train.py": ("transformers", "accelerate"), "flower/text.py": ("flwr", "ray", "transformers"),
         "flower/image.py": ("flwr", "ray")}


@pytest.mark.parametrize("name", NEEDS)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    missing = [library for library in NEEDS[name] if find_spec(library) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    done = subprocess.run([sys.executable, EXAMPLES / name, "captures"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_every_example_is_run() -> None:
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.py")} == set(NEEDS)
