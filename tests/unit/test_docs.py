"""The documentation's code runs, its audits are valid, and its commands exist."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.main

from gradleak import cli, registry
from gradleak.audit.plan import from_table
from gradleak.errors import UsageError
from gradleak.spec import parse

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(kind: str) -> list[tuple[str, str]]:
    return [(f"{page.stem}-{number}", text) for page in PAGES
            for number, text in enumerate(re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.S))]


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=lambda v: v if len(v) < 40 else "")
def test_code_runs(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {})


@pytest.mark.parametrize(("name", "text"), blocks("toml"), ids=lambda v: v if len(v) < 40 else "")
def test_audits_are_valid(name: str, text: str) -> None:
    assert from_table(tomllib.loads(text), name).cells()


def test_commands_exist_with_their_options() -> None:
    verbs = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    seen = 0
    for name, text in blocks("sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["gradleak"]:
                continue
            options = {o for p in verbs[words[1]].params for o in p.opts}
            assert {w for w in words[2:] if w.startswith("--")} <= options, (name, line)
            seen += 1
    assert seen > 8


def test_every_attack_named_for_users_of_other_tools_is_there() -> None:
    page = (ROOT / "docs" / "find-your-attack.md").read_text()
    for row in re.findall(r"^\|.*\| (.*) \|$", page, re.M):
        for spec in re.findall(r"`([^`]*)`", row):
            if spec.startswith(("defenses", "lamp_rouge")):
                continue
            try:
                registry.build("attack", parse(spec))
            except UsageError as problem:
                raise AssertionError(f"{spec}: {problem}") from problem
