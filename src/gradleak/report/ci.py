"""What a build server reads: JUnit XML, and annotations and a summary for GitHub."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from gradleak.audit.gate import Bars
from gradleak.audit.store import write_whole
from gradleak.audit.verdict import MEANING, Row, Verdict, settings, together
from gradleak.report.measures import leading, measure

OUTCOME = {Verdict.LEAKS: "failure", Verdict.INCONCLUSIVE: "error", Verdict.UNRELIABLE: "error"}
LEVEL = {Verdict.LEAKS: "error", Verdict.INCONCLUSIVE: "warning", Verdict.UNRELIABLE: "warning"}

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def name(group: Sequence[Row]) -> str:
    """A setting in words."""
    cell = group[0].cell
    return f"{cell.defense}, {cell.threat}, batch {cell.batch}"


def _line(row: Row, most: Bars) -> str:
    """One attack on a setting: its verdict, and the numbers that decide."""
    names = [n for n in most if n in row.scores] or [leading(row).name]
    worst = [measure(n).said(row.scores[n].worst) + (f" (at most {most[n]:g})" if n in most else "")
             for n in names if n in row.scores]
    numbers = f", {row.leaked}/{row.samples} read, worst sample {', '.join(worst)}" if worst else ""
    return f"{row.cell.attack}: {row.verdict}{numbers}" + "".join(f"; {reason}" for reason in row.reasons)


def junit(rows: Sequence[Row], most: Bars, suite: str, path: Path) -> None:
    """One test case a setting: passed if it held, failed if it leaks, an error if neither was shown."""
    groups = settings(rows)
    verdicts = {key: together(row.verdict for row in group) for key, group in groups.items()}
    root = ElementTree.Element("testsuites")
    counts = {kind: str(sum(OUTCOME.get(v) == kind for v in verdicts.values())) for kind in ("failure", "error")}
    top = ElementTree.SubElement(root, "testsuite", {
        "name": _xml(f"gradleak.{suite}"), "tests": str(len(groups)), "failures": counts["failure"],
        "errors": counts["error"], "skipped": "0", "time": f"{sum(r.seconds for r in rows):.3f}"})
    for key, group in groups.items():
        cell, verdict = group[0].cell, verdicts[key]
        case = ElementTree.SubElement(top, "testcase", {
            "classname": _xml(f"gradleak.{suite}.{cell.task}"), "name": _xml(name(group)),
            "time": f"{sum(r.seconds for r in group):.3f}"})
        lines = "\n".join(_line(row, most) for row in group)
        if verdict in OUTCOME:
            found = ElementTree.SubElement(case, OUTCOME[verdict], {"type": str(verdict), "message": MEANING[verdict]})
            found.text = _xml(lines)
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(lines)
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, "utf-8", xml_declaration=True))


def _xml(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def annotations(rows: Sequence[Row], most: Bars, audit: Path | None) -> list[str]:
    """GitHub's workflow commands: an error a setting that leaks, a warning where nothing was shown."""
    found = []
    for group in settings(rows).values():
        verdict = together(row.verdict for row in group)
        if verdict not in LEVEL:
            continue
        place = f"file={_property(audit.as_posix())},line={_where(audit, group[0])}," if audit else ""
        text = "\n".join([MEANING[verdict], *(_line(row, most) for row in group)])
        title = _property(f"gradleak: {verdict}: {name(group)}")
        found.append(f"::{LEVEL[verdict]} {place}title={title}::{_data(text)}")
    return found


def _where(audit: Path, row: Row) -> int:
    """The line that names the defense, or where defenses stand, or the first."""
    lines = audit.read_text(encoding="utf-8").splitlines()
    for wanted in (f'"{row.cell.defense}"', "defenses"):
        for number, line in enumerate(lines, 1):
            if wanted in line.partition("#")[0]:
                return number
    return 1


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(rows: Sequence[Row], most: Bars) -> str:
    """A table in Markdown, for the page of a workflow's run."""
    lines = ["### gradleak", "", "| verdict | setting | attacks |", "|---|---|---|"]
    for group in settings(rows).values():
        verdict = together(row.verdict for row in group)
        told = "<br>".join(_cell(_line(row, most)) for row in group)
        lines.append(f"| **{verdict}** | {_cell(name(group))} | {told} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    for plain, inert in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\n", " "), ("`", "&#96;")):
        text = text.replace(plain, inert)
    return text


def on_github(rows: Sequence[Row], most: Bars, audit: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The annotations to print, where GitHub runs this; the summary goes to the file it names."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return ""
    if place := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(summary(rows, most))
    return "".join(line + "\n" for line in annotations(rows, most, audit))
