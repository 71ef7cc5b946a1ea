"""What the page and the terminal show of recovered sentences, on a run written by hand over a toy vocabulary."""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from gradleak import registry
from gradleak.audit.plan import Audit, Cell
from gradleak.audit.run import score
from gradleak.audit.store import CellDir, Run
from gradleak.audit.verdict import leaked
from gradleak.errors import UsageError
from gradleak.metrics.match import assign
from gradleak.report import compare, measures, sentences, terminal
from gradleak.report.html import headline, write
from gradleak.report.rows import rows
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch, Secret, Vocabulary

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ["--no-sandbox", "--headless", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
METRICS = ("exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy", "label_accuracy")
IMAGE = "image(model=mlp(width=8), data=photos(size=16, count=20))"
EVIL = "<img/src=x/onerror='window.owned=1'>"
PIECES = ["[PAD]", "[CLS]", "[SEP]", "my", "doctor", "said", "the", "test", "##s", "are", "fine", ".", "we", "moved",
          "to", "a", "quiet", "street", EVIL, "un", "##happy"]
TRUTHS = ["my doctor said the test ##s are fine .", f"we moved to a {EVIL} street ."]
NEAR = ["my doctor said the test ##s are fine .", "we moved a to quiet street un"]
FAR = ["are un ##happy fine", ""]

REAL_WORLD = Cell.world

needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}: install chromium")


def spell(tokens: Sequence[int]) -> str:
    return " ".join(PIECES[t] for t in tokens).replace(" ##", "")


VOCABULARY = Vocabulary(torch.zeros(len(PIECES), 2), torch.ones(len(PIECES)).bool(), (1,), (2,), 0, spell,
                        PIECES.__getitem__)


def tokens(lines: Sequence[str], width: int) -> torch.Tensor:
    ids = [[1, *(PIECES.index(piece) for piece in line.split()), 2] for line in lines]
    return torch.tensor([row + [NOTHING] * (width - len(row)) for row in ids])


def secret(ids: Sequence[int]) -> Secret:
    labels = torch.tensor([i % 2 for i in ids])
    return Secret(tokens([TRUTHS[i] for i in ids], 12), labels, tuple(ids), Batch(torch.zeros(len(ids), 12, 2), labels))


def fill(cell: Cell, folder: CellDir, guess: Sequence[str]) -> None:
    """As if an attack had come back with these sentences, the wrong way round."""
    truth, reading, metrics = secret([0, 1]), tokens(guess[::-1], 14), cell.scorers()
    match = assign(reading, truth.readings)
    found, true = ([VOCABULARY.sentence(row) for row in given] for given in (reading[match], truth.readings))
    scores = {m.name: m(truth.labels, truth.labels) if m.name == "label_accuracy" else m(found, true) for m in metrics}
    measured = {"scores": scores, "blind": {}, "unscored": {}, "match": match, "leaked": leaked(scores, {}, metrics)}
    folder.open(cell)
    for step, line in enumerate(("are are are", "my un", *guess[:1] * 9)):
        folder.log({"trial": 0, "step": step, "steps": 10, "seconds": 0.1, "residual": [1 / (1 + step), 1.0],
                    "rougeL": step / 12, "text": [line, EVIL, "a", "b", "c"]})
    folder.add_trial(record(cell, [0, 1], measured), {"reading": reading, "x": truth.batch.x, "y": truth.labels})
    folder.finish()


def record(cell: Cell, ids: Sequence[int], measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "trial": 0, "ids": list(ids), "residual": {"guess": [0.0, 0.0], "truth": [0.0, 0.0]}, **measured,
        "granted": ["count"], "unused": [], "distortion": 0.0 if cell.defense == "none" else 10.0, "strength": 1.0,
        "notes": {}, "warnings": [], "stopped": None, "failed": None, "seconds": 1.0,
    }


def written(path: Path, near: Sequence[str] = NEAR, **changes: Any) -> Run:
    fields: dict[str, Any] = {"name": "said", "task": "text(model=minilm, data=sentences)", "batch": (2,), "trials": 1,
                              "defenses": ("none", "noise(relative=10)"), "threats": ("curious",), "metrics": METRICS}
    run = Run(path)
    run.begin(Audit(**{**fields, **changes}))
    for cell, folder in run.cells():
        fill(cell, folder, near if cell.defense == "none" else FAR)
    return run


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cell, "world", lambda cell: SimpleNamespace(vocabulary=VOCABULARY, secret=secret))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return written(tmp_path / "run")


@pytest.fixture
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield chromium
        chromium.close()


def printed(run: Run) -> str:
    console = Console(file=io.StringIO(), width=160)
    terminal.print_rows(rows(run), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def plain(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page))


def marked(page: str) -> dict[str, list[str]]:
    return {kind: re.findall(rf'<span class="{kind}">(.*?)</span>', page[page.index('class="samples"'):])
            for kind in ("place", "elsewhere", "wrong")}


def test_every_token_is_marked_once() -> None:
    assert sentences.marks([5, 6, 7], [5, 7, 6]) == ["place", "elsewhere", "elsewhere"]
    assert sentences.marks([5, 5, 5], [6, 5]) == ["wrong", "place", "wrong"]
    assert sentences.marks([5, 5], [6, 5, 5]) == ["elsewhere", "place"]
    assert sentences.marks([], [5]) == [] and sentences.marks([5], []) == ["wrong"]


def test_tokens_are_written_as_the_vocabulary_joins_them() -> None:
    truth = VOCABULARY.sentence(tokens(TRUTHS[:1], 12)[0])
    said = sentences.unmarked(truth, VOCABULARY)
    assert "".join(" " * word.space + word.text for word in said.words) == "my doctor said the tests are fine ."
    assert [word.text for word in said.words if not word.space] == ["my", "s"]


def test_bytes_of_one_letter_show_when_it_is_whole() -> None:
    raw = replace(VOCABULARY, spell=lambda ts: bytes(ts).decode(errors="replace"), piece=chr)
    row = torch.tensor(list("a é我".encode()))
    words = sentences.unmarked(raw.sentence(row), raw).words
    assert [word.text for word in words][-1] == "我" and "é" in {word.text for word in words}


def test_the_page_shows_sentences_and_their_marks(run: Run) -> None:
    page = write(run).read_text(encoding="utf-8")
    found = marked(page[: page.index("noise(relative=10)</code> <span>batch")])
    assert found["place"][:9] == ["my", "doctor", "said", "the", "test", "s", "are", "fine", "."]
    assert found["place"][9:] == ["we", "moved", "street"] and found["elsewhere"] == ["a", "to"]
    assert found["wrong"] == ["quiet", "un"]
    text = plain(page)
    assert "3 of 7 tokens in place, 2 elsewhere, ROUGE-L" in text and "word for word, ROUGE-L 1.00" in text
    assert "what ‘none’ gives away" in text and "no token" in text
    assert "of each token it is said whether it is right" in text and "private sentences" in text


def test_private_sentences_are_there_only_when_asked_for(run: Run) -> None:
    page = write(run).read_text(encoding="utf-8")
    assert 'class="unmarked"' not in page
    shown = write(run, show_truth=True).read_text(encoding="utf-8")
    assert shown.count('class="unmarked"') == 2 * (9 + 7) and "holds private sentences" in shown
    assert EVIL not in shown and "onerror=&#39;" in shown


def test_columns_and_headline_speak_of_text(run: Run) -> None:
    page = write(run).read_text(encoding="utf-8")
    heads = re.findall(r'columnheader"[^>]*>(.*?)</th>', page)
    assert [plain(head) for head in heads[6:-3]] == [
        "Exactmatch", "ROUGE1", "ROUGE2", "ROUGEL, mean [95 %]", "Tokensin place", "Labels"]
    assert "PSNR" not in page and "ROUGE-L over" not in page and "rougeL over steps" in page
    assert headline(rows(run)).sentence == ("1 of 2 settings leaks: no defense; the closest reading reaches "
                                            "ROUGE-L 1.00, word for word. Of the others, 1 held.")


def test_the_way_there_is_shown_where_it_was_kept(run: Run, tmp_path: Path) -> None:
    page = write(run).read_text(encoding="utf-8")
    emerged = page[page.index("How the text emerged"):]
    steps = re.findall(r'<th scope="row" class="num">(\d+)</th>', emerged[: emerged.index("</table>")])
    assert steps == ["0", "2", "5", "8", "10"] and "and 1 more" in emerged
    for _, folder in run.cells():
        (folder.path / "events.jsonl").unlink()
    assert "How the text emerged" not in write(run).read_text(encoding="utf-8")


def test_a_model_that_is_not_here_costs_the_sentences_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(cell: Cell) -> None:
        raise UsageError("no such folder")

    monkeypatch.setattr(Cell, "world", gone)
    page = plain(write(run).read_text(encoding="utf-8"))
    assert "the tokens cannot be spelled here (no such folder)" in page and "LEAKS" in page


def test_the_terminal_says_exact_and_rouge(run: Run) -> None:
    shown = printed(run)
    assert re.search(r"read +exact +rougeL +off +truth", shown) and "psnr" not in shown
    assert re.search(r"none +LEAKS +1/2 +0\.50 +0\.\d\d", shown)
    assert "exact: share read word for word" in shown


def test_attacks_together_are_said_in_the_leading_metric(tmp_path: Path) -> None:
    run = written(tmp_path / "run", attacks=("dlg", "ig"))
    assert "of 2 attacks" not in printed(run)  # both read the same
    page = plain(write(run).read_text(encoding="utf-8"))
    assert "Mean ROUGE-L of the best reading" in page and "worst case ROUGE-L 0." in page


def test_comparing_runs_uses_the_leading_metric(run: Run, tmp_path: Path) -> None:
    weaker = written(tmp_path / "weaker", near=FAR)
    table, worse = compare.table(rows(weaker), rows(run))
    assert worse and any(column.header == "rougeL before" for column in table.columns)
    assert not compare.table(rows(run), rows(weaker))[1]


def test_comparing_runs_says_epsilon_where_there_is_one(run: Run) -> None:
    plain = rows(run)
    private = [replace(plain[0], epsilon=8.0), *plain[1:]]
    (column,) = [c for c in compare.table(plain, private)[0].columns if c.header == "epsilon"]
    assert list(column.cells) == ["8", *["∞"] * (len(plain) - 1)]
    assert not any(c.header == "epsilon" for c in compare.table(plain, plain)[0].columns)


def test_without_rouge_another_metric_leads(run: Run) -> None:
    for _, folder in run.cells():
        (record,) = folder.trials()
        scores = {name: values for name, values in record["scores"].items() if "rouge" not in name}
        missing = {name: "ROUGE needs the rouge-score package" for name in METRICS if "rouge" in name}
        folder.rewrite([{**record, "scores": scores, "unscored": missing}])
    assert {measures.leading(row).name for row in rows(run)} == {"exact_match"}
    assert "unscored" in write(run).read_text(encoding="utf-8") and "exact" in printed(run)
    assert "reaches exact match 1.00, word for word" in headline(rows(run)).sentence


@pytest.mark.parametrize("metrics", [("token_f1",), ("label_accuracy",), ("rougeL(leak_at=0.9)", "lamp_rouge1")])
def test_any_choice_of_metrics_has_a_page(tmp_path: Path, metrics: tuple[str, ...]) -> None:
    run = written(tmp_path / "run", metrics=metrics)
    page = plain(write(run, show_truth=True).read_text(encoding="utf-8"))
    assert "3 of 7 tokens in place" in page and "holds private sentences" in page
    assert metrics[0].partition("(")[0] in printed(run) or "labels" in printed(run)


def test_images_and_sentences_in_one_report(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Run(tmp_path / "images")
    other.begin(Audit(task=IMAGE, threats=("curious",), attacks=("dlg",), trials=1))
    both = [*run.cells(), *other.cells()]
    monkeypatch.setattr(Run, "cells", lambda self: iter(both))
    page = write(run).read_text(encoding="utf-8")
    assert "PSNR" in page and "ROUGE-L" in page and "private examples" in page
    assert "is not among this audit" not in page
    assert re.search(r"exact +rougeL +psnr", printed(run))


def test_a_real_vocabulary_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cell, "world", REAL_WORLD)
    run = Run(tmp_path / "run")
    run.begin(Audit(task="text(model=minilm, data=sentences)", threats=("curious",), batch=(2,), trials=1))
    ((cell, folder),) = run.cells()
    try:
        world = cell.world()
    except UsageError as problem:
        pytest.skip(str(problem))
    truth = world.secret([0, 5])
    reading = truth.readings.flip(0).clone()
    reading[1, 1:3] = reading[1, 1:3].flip(0)
    measured = score(cell.scorers(), reading, truth.labels, truth, world)
    folder.open(cell)
    folder.add_trial(record(cell, truth.ids, measured), {"reading": reading, "y": truth.labels})
    folder.finish()
    assert world.vocabulary is not None and measured["scores"]["exact_match"] == [0.0, 1.0]
    page = write(run).read_text(encoding="utf-8")
    assert world.vocabulary.sentence(truth.readings[1]).text in plain(page) and "unscored" not in page
    assert len(marked(page)["elsewhere"]) == 2 and re.search(r"LEAKS +2/2 +0\.50", printed(run))


def test_metrics_of_images_stay_as_they_were() -> None:
    assert [column.metric for column in measures.columns([])] == ["psnr", "psnr", "ssim", "lpips", "label_accuracy"]
    assert measures.measure("psnr").said(31.26) == "31.3 dB" and measures.measure("mine").said(2) == "mine 2.00"
    assert registry.build("metric", parse("psnr")).better == "higher"


@needs_chromium
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_can_be_told_apart_in_any_light(run: Run, browser: Any, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(write(run, show_truth=True).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.owned === undefined") and page.locator("[onerror], img").count() == 0
    style = "kind => { const s = getComputedStyle(document.querySelector('.samples .' + kind)); return [" \
            "s.textDecorationLine, s.textDecorationStyle, s.textDecorationThickness, s.color] }"
    place, elsewhere, wrong = (page.evaluate(style, kind) for kind in ("place", "elsewhere", "wrong"))
    assert place[:3] == ["underline", "solid", "2px"] and elsewhere[:3] == ["underline", "dashed", "2px"]
    assert wrong[0] == "none" and wrong[3] != place[3]
    legend = page.locator("p.note.said")
    assert legend.is_visible() and legend.locator(".place, .elsewhere, .wrong").count() == 3
    assert complaints == []
    page.close()
