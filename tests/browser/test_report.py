"""The page in a real browser: verdicts first, nothing fetched, nothing private, nothing that runs."""

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from gradleak.audit import drive
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run, open_run, write_json
from gradleak.report import pictures
from gradleak.report.html import write
from gradleak.report.rows import rows
from gradleak.rng import Rng

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ["--no-sandbox", "--headless", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
HOSTILE = "<script>window.owned=1</script><img src=x onerror='window.owned=1'>$x^2$"

needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}: install chromium")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    audit = Audit(
        name="tiny", defenses=("none", "noise(relative=10)"), attacks=("dlg(steps=4, restarts=1)",), trials=1,
        batch=(2,), metrics=("psnr", "ssim", "label_accuracy"))
    return drive.run(audit, tmp_path_factory.mktemp("report") / "run", workers=1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that remembers what it asked for and what it complained about."""
    tab = browser.new_page()
    tab.asked, tab.complaints = [], []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.on("console", lambda message: tab.complaints.append(message.text))
    tab.on("pageerror", lambda problem: tab.complaints.append(str(problem)))
    yield tab
    tab.close()


def copy_of(run: Run, to: Path) -> Run:
    return open_run(Path(shutil.copytree(run.path, to / "copy")))


def truths(run: Run) -> list[str]:
    return [pictures.data_uri(image) for cell, _ in run.cells() for trial in range(cell.trials)
            for image in cell.world().draw(cell.batch, trial, cell.participation(), Rng(cell.seed) / "data").readings]


@needs_chromium
def test_the_verdict_table_comes_first_and_holds_every_cell(run: Run, page: Any) -> None:
    page.goto(write(run).as_uri())
    assert page.locator("table").first.get_attribute("id") == "verdict-table"
    shown = page.locator("#verdict-table tr.cell")
    keys = [shown.nth(i).get_attribute("data-cell") for i in range(shown.count())]
    assert keys == [cell.key for cell, _ in run.cells()]
    for i, row in enumerate(rows(run)):
        text = shown.nth(i).inner_text()
        assert row.cell.defense in text and row.cell.threat in text and str(row.verdict) in text


@needs_chromium
def test_nothing_is_fetched_and_nothing_complains(run: Run, page: Any) -> None:
    page.goto(write(run, show_truth=True).as_uri())
    page.wait_for_load_state("networkidle")
    assert page.asked and all(url.startswith(("file:", "data:")) for url in page.asked)
    assert page.complaints == []
    broken = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).length")
    assert page.locator("img").count() > 0 and broken == 0


@needs_chromium
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_never_scrolls_sideways(run: Run, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(write(run, show_truth=True).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@needs_chromium
def test_a_name_in_the_table_opens_its_cell(run: Run, page: Any) -> None:
    page.goto(write(run).as_uri())
    cell = [cell for cell, _ in run.cells()][-1]
    body = page.locator(f"#cell-{cell.key}")
    assert not body.is_visible()
    page.locator(f"tr[data-cell='{cell.key}'] a").first.click()
    assert body.is_visible() and "times each layer's rms" in body.inner_text()


@needs_chromium
def test_headings_images_and_tables_can_be_heard(run: Run, page: Any) -> None:
    page.goto(write(run).as_uri())
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.evaluate("[...document.images].every(i => i.alt)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(h => h.scope)")
    assert page.locator("html").get_attribute("lang") == "en"


@needs_chromium
def test_hostile_names_are_text(run: Run, page: Any, tmp_path: Path) -> None:
    hostile = copy_of(run, tmp_path)
    old = {cell.defense: folder.path for cell, folder in hostile.cells() if cell.threat == "curious"}
    plan = json.loads((hostile.path / "plan.json").read_text())
    plan["audit"] |= {"name": HOSTILE, "defenses": [f'noise(relative="{HOSTILE}")', "none"]}
    write_json(hostile.path / "plan.json", plan)
    write_json(hostile.path / "environment.json", {HOSTILE: HOSTILE})
    (hostile.path / "audit.toml").write_text(HOSTILE)
    cell, named = next((cell, folder) for cell, folder in hostile.cells()
                       if HOSTILE in cell.defense and cell.threat == "curious")
    old["noise(relative=10)"].rename(named.path)
    write_json(named.path / "cell.json", asdict(cell))
    named.rewrite([{**record, "warnings": [HOSTILE]} for record in named.trials()])

    page.goto(write(hostile).as_uri())
    assert page.evaluate("window.owned === undefined")
    assert page.locator("script").count() == 1 and page.locator("[onerror]").count() == 0
    assert page.locator("tr.why").filter(has_text=HOSTILE).count() == 1
    assert any("<script>" in text for text in page.locator("svg text").all_text_contents())
    assert page.complaints == [] and all(url.startswith(("file:", "data:")) for url in page.asked)


def test_private_images_are_there_only_when_asked_for(run: Run) -> None:
    private = truths(run)
    without = write(run).read_text(encoding="utf-8")
    assert not any(uri in without for uri in private) and "--show-truth" in without
    shown = write(run, show_truth=True).read_text(encoding="utf-8")
    assert all(uri in shown for uri in private)
    write(run)
    assert not (run.path / "report.html.part").exists()


def test_recovered_images_stand_in_the_place_of_their_truth(run: Run) -> None:
    text = write(run).read_text(encoding="utf-8")
    for row, (_, folder) in zip(rows(run), run.cells(), strict=True):
        record = row.trials[0]
        uris = [pictures.data_uri(image) for image in folder.guess(0)["reading"][record["match"]]]
        body = text[text.index(f'id="cell-{row.cell.key}"'):]
        places = [body.index(uri) for uri in uris]
        assert places == sorted(places)


def test_a_run_that_has_hardly_begun_has_a_page(run: Run, tmp_path: Path) -> None:
    begun = copy_of(run, tmp_path)
    shutil.rmtree(begun.path / "cells")
    text = write(begun).read_text(encoding="utf-8")
    assert "nothing to plot" in text and text.count('<tr role="row" class="cell"') == len(list(begun.cells()))


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_keep_every_pixel(channels: int) -> None:
    image = torch.linspace(0, 1, channels * 30).reshape(channels, 5, 6)
    seen = Image.open(io.BytesIO(pictures.png(image)))
    assert seen.size == (6, 5) and seen.mode == {1: "L", 3: "RGB"}[channels]
    values = torch.tensor(list(seen.tobytes())).reshape(5, 6, channels).permute(2, 0, 1)
    assert torch.equal(values, (image * 255).round().long())
