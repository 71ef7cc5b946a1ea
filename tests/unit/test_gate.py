"""The gate of a build: bars, exit codes, and what build servers read."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from gradleak.audit import drive
from gradleak.audit.gate import bars
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run, to_toml
from gradleak.audit.verdict import Row, Verdict, exit_code
from gradleak.errors import UsageError
from gradleak.report import ci, compare
from gradleak.report.check import check
from gradleak.report.rows import rows

AUDIT = Audit(
    name="gate", task="image(model=mlp(width=16), data=photos(size=16, count=40))", attacks=("linear",), trials=2,
    threats=("curious",), defenses=("none", "noise(relative=10)"), metrics=("psnr", "mse", "lpips"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return drive.run(AUDIT, tmp_path_factory.mktemp("gate") / "run")


def judged(run: Run, *texts: str) -> list[Row]:
    return rows(run, bars(texts, run.audit()))


def test_a_bar_replaces_every_threshold_and_is_literal(run: Run) -> None:
    bare, noisy = rows(run)
    assert bare.verdict is Verdict.LEAKS and noisy.verdict is not Verdict.LEAKS
    high, low = bare.scores["psnr"].worst, noisy.scores["psnr"].worst
    assert [r.verdict for r in judged(run, f"psnr={high}")] == [Verdict.HELD, noisy.verdict]
    assert [r.leaked for r in judged(run, f"psnr={low - 1}")][1] >= 1
    assert judged(run, f"psnr={high - 1e-6}")[0].leaked >= 1
    assert judged(run, "mse=0")[0].leaked == 0
    assert judged(run, "mse=1e-6")[0].leaked >= 1


def test_a_bar_without_a_number_to_hold_against_it_never_passes(run: Run) -> None:
    if "lpips" in rows(run)[0].scores:
        pytest.skip("LPIPS weights are installed here")
    assert {r.verdict for r in judged(run, "lpips=0.1")} == {Verdict.UNRELIABLE}
    assert exit_code(judged(run, "lpips=0.1")) == 3


@pytest.mark.parametrize(("text", "says"), [
    ("psnr", "as in"), ("psnr=high", "as in"), ("psnr=nan", "as in"), ("psnt=3", "did you mean 'psnr'"),
    ("rougeL=0.2", "not measured"),
])
def test_a_bad_bar_is_refused_before_anything_runs(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        bars([text], AUDIT)


def test_check_takes_a_file_or_a_run(run: Run, tmp_path: Path, monkeypatch, capsys) -> None:
    quiet, audit = Console(quiet=True), tmp_path / "audit.toml"
    audit.write_text(to_toml(replace(AUDIT, defenses=("none",))))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    junit = tmp_path / "junit.xml"
    assert check(audit, ["psnr=15"], junit, tmp_path / "run", 1, quiet, quiet) == 1
    said = capsys.readouterr().out
    assert re.match(r"::error file=.*audit\.toml,line=\d+,title=gradleak%3A LEAKS%3A none%2C curious", said)
    assert said.count("\n") == 1 and "at most 15" in said
    assert "**LEAKS**" in (tmp_path / "summary.md").read_text()
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("failures") == "1" and suite.get("errors") == "0" and suite[0][0].tag == "failure"
    assert check(tmp_path / "run", ["psnr=121"], junit, None, 1, quiet, quiet) == 0
    assert ElementTree.parse(junit).getroot()[0].get("failures") == "0" and capsys.readouterr().out == ""
    assert check(run.path, ["psnr=121"], None, None, 1, quiet, quiet) == 0
    with pytest.raises(UsageError, match="no such folder"):
        check(audit, [], tmp_path / "no" / "junit.xml", None, 1, quiet, quiet)


def test_hostile_names_stay_inert(run: Run, tmp_path: Path) -> None:
    hostile = "noise\x00]]>&<a b='\"'>\n::error::%\ud800|`"
    bad = [replace(r, cell=replace(r.cell, defense=hostile)) for r in rows(run)]
    ci.junit(bad, {}, hostile, tmp_path / "junit.xml")
    (case,) = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert "]]>&<a b='\"'>" in (case.get("name") or "") and len(case) == 1
    assert all(line.startswith("::error ") and "\n" not in line for line in ci.annotations(bad, {}, None))
    table = ci.summary(bad, {}).splitlines()
    assert len(table) == 5 and "<a" not in table[-1] and table[-1].count("|") == 4


def test_compare_says_what_got_worse_what_is_lost_and_what_is_gone(run: Run) -> None:
    bare, noisy = rows(run)
    held = replace(noisy, verdict=Verdict.HELD)
    again = replace(held, cell=replace(held.cell, attack="ig[bold]"))
    assert compare.table([bare, held], [bare, held])[1] == 0
    assert compare.table([bare, held], [bare, replace(held, verdict=Verdict.LEAKS)])[1] == 1
    assert compare.table([bare, held], [bare, replace(held, verdict=Verdict.UNRELIABLE)])[1] == 3
    assert compare.table([bare, held, again], [bare, held])[1] == 3
    assert compare.table([bare, held], [held])[1] == 0
    table, code = compare.table([bare, held], [bare, held, again])
    assert code == 0 and table.title == "2 shared rows" and table.row_count == 3
    swapped = replace(held, scores=bare.scores)
    assert compare.table([bare, held], [bare, swapped])[1] == 1
    with pytest.raises(UsageError, match="share no row"):
        compare.table([bare], [again])
