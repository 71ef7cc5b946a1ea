"""The README's picture: the top of a run's report and one opened card, as Chromium shows them.

make demo && .venv/bin/python bench/picture.py runs/quickstart-* docs/report.png
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGS = ["--no-sandbox", "--headless", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
run, target = Path(sys.argv[1]).resolve(), sys.argv[2]
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
    page = browser.new_page(viewport={"width": 1280, "height": 1180})
    page.goto(f"file://{run}/report.html")
    page.screenshot(path=target)
    page.locator("details").last.evaluate("card => card.open = true")
    page.locator("details").last.screenshot(path=target.replace(".png", "-card.png"))
    browser.close()
