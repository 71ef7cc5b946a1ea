"""The page's controls in a real browser: filters, sorting, side by side, steps, zoom, by mouse and by keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from gradleak.audit import drive
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run
from gradleak.report.html import write

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ["--no-sandbox", "--headless", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}: install chromium")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    audit = Audit(
        name="tiny", task="image(model=mlp(width=16), data=photos(size=8, count=40))", trials=1,
        defenses=("none", "sign"), attacks=("linear", "dlg(steps=40, restarts=1)"), threats=("curious", "informed"),
        metrics=("psnr",))
    return drive.run(audit, tmp_path_factory.mktemp("controls") / "run", workers=1)


@pytest.fixture(scope="module")
def page(run: Run) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        tab = browser.new_page()
        tab.complaints = []
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("pageerror", lambda problem: tab.complaints.append(str(problem)))
        tab.goto(write(run).as_uri())
        yield tab
        assert tab.complaints == []
        browser.close()


def shown(page: Any) -> list[str]:
    rows = page.locator("#verdict-table tbody:visible tr.cell")
    return [rows.nth(i).inner_text() for i in range(rows.count())]


def test_filters_hide_rows_and_cards_and_can_be_taken_back(page: Any) -> None:
    assert len(shown(page)) == 8 and "8 of 8" in page.locator("#shown").inner_text()
    page.select_option("select[data-by=attack]", "linear")
    page.select_option("select[data-by=threat]", "informed")
    assert len(shown(page)) == 2 and all("linear" in row and "informed" in row for row in shown(page))
    assert page.locator("details.card:visible").count() == 2 and "2 of 8" in page.locator("#shown").inner_text()
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("document.querySelector('#shown').textContent.startsWith('8')")
    assert page.locator("details.card:visible").count() == 8


def test_every_head_sorts_both_ways(page: Any) -> None:
    def scores() -> list[float]:
        return [float(row.split()[-1]) for row in shown(page)]

    head = page.locator("thead th", has_text="Time").get_by_role("button")
    head.focus()
    page.keyboard.press("Enter")
    assert scores() == sorted(scores())
    page.keyboard.press("Enter")
    assert scores() == sorted(scores(), reverse=True)
    assert page.locator("[aria-sort]").count() == 1
    page.locator("thead th", has_text="Attack").get_by_role("button").click()
    names = ["dlg" in row for row in shown(page)]
    assert names == sorted(names, reverse=True)


def test_cells_stand_side_by_side_and_go_again(page: Any) -> None:
    ticks = page.locator("input.tick")
    ticks.nth(0).check()
    ticks.nth(3).check()
    copies = page.locator("#beside .copy")
    assert copies.count() == 2 and copies.nth(0).is_visible()
    boxes = [copies.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] and abs(boxes[0]["y"] - boxes[1]["y"]) < 2
    ids = page.evaluate("[...document.querySelectorAll('[id]')].filter(n => !n.closest('svg')).map(n => n.id)")
    assert len(ids) == len(set(ids))
    page.locator("#beside-none").click()
    assert not page.locator("#beside").is_visible() and page.locator("input.tick:checked").count() == 0


def test_steps_can_be_gone_through_by_keyboard(page: Any) -> None:
    page.get_by_role("button", name="Unfold every cell").click()
    slider = page.locator(".steps input").first
    told = page.locator(".steps output").first
    last = told.inner_text()
    slider.focus()
    page.keyboard.press("Home")
    assert told.inner_text() != last and "residual" in told.inner_text() and "dB" in told.inner_text()
    page.keyboard.press("End")
    assert told.inner_text() == last


def test_pictures_open_and_close_by_keyboard(page: Any) -> None:
    page.locator(".shot img").first.focus()
    page.keyboard.press("Enter")
    large = page.locator("#zoom img")
    large.wait_for(state="visible", timeout=5000)
    assert large.bounding_box()["width"] > 200
    page.keyboard.press("Escape")
    assert not large.is_visible()


def test_no_control_lacks_a_name_and_nothing_scrolls_sideways(page: Any) -> None:
    nameless = page.evaluate("""[...document.querySelectorAll('button, select, input, a[href]')].filter(n =>
        !(n.innerText || n.getAttribute('aria-label') || n.closest('label')?.innerText || '').trim()).length""")
    assert nameless == 0
    page.set_viewport_size({"width": 375, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    found = Axe().run(page).response["violations"]
    assert [(each["impact"], each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_without_scripts_the_page_is_whole(run: Run) -> None:
    text = write(run).read_text(encoding="utf-8")
    assert '<form id="controls" hidden>' in text and text.count("<script>") == 1
    assert "script-src &#39;sha256-" in text and "script-src &#39;unsafe" not in text
