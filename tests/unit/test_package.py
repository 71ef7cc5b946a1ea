"""What is shipped: every file the package reads stands in its wheel, and versions agree."""

import re
import tomllib
from pathlib import Path

import gradleak

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "gradleak"


def test_every_file_beside_code_is_named_as_data() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gradleak"]
    named = {path for pattern in data for path in SOURCE.glob(pattern)}
    found = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert found <= named and SOURCE / "py.typed" in named and SOURCE / "report" / "page.js" in named


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert gradleak.__version__ == version and re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
