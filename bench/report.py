"""A report of 200 cells: its size, how long it takes to write, and to open in Chromium.   python bench/report.py

The cells are real ones of a small network, each with 8 samples; ten threats times twenty defenses are made out of two
by copying records, since only the page is measured here.
"""

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from gradleak.audit import drive
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run, open_run, write_json
from gradleak.report.html import write

BASE = Audit(name="wide", task="image(model=mlp(width=16), data=photos(size=32, count=40))", trials=4, batch=(2,),
             attacks=("dlg(steps=60, restarts=1)",), threats=("curious",), defenses=("noise(sigma=0.001)",),
             metrics=("psnr", "ssim", "label_accuracy"))


def wide(folder: Path, cells: int) -> Run:
    """A run with that many rows, all with the first one's records."""
    one = drive.run(BASE, folder / "one")
    (_, source), = one.cells()
    audit = replace(BASE, defenses=tuple(f"noise(sigma={(i + 1) / 1000})" for i in range(cells // 10)),
                    threats=("curious", "informed"),
                    attacks=tuple(f"dlg(steps={60 + i}, restarts=1)" for i in range(5)))
    plan = {"audit": json.loads(json.dumps(asdict(audit))), "cells": []}
    many = folder / "many"
    many.mkdir()
    write_json(many / "plan.json", plan)
    run = open_run(many)
    for cell, place in run.cells():
        shutil.copytree(source.path, place.path)
        write_json(place.path / "cell.json", asdict(cell))
    return run


def opened(path: Path) -> tuple[float, float]:
    """Seconds until the page has loaded and its controls work, the middle of five."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--headless"])
        times = []
        for _ in range(5):
            page = browser.new_page()
            began = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("#controls", state="visible")
            loaded = time.perf_counter()
            page.select_option("select[data-by=threat]", "informed")
            page.wait_for_function("document.querySelector('#shown').textContent.startsWith('100')")
            times.append((loaded - began, time.perf_counter() - loaded))
            page.close()
        browser.close()
    return sorted(a for a, _ in times)[2], sorted(b for _, b in times)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=200)
    with tempfile.TemporaryDirectory() as name:
        run = wide(Path(name), parser.parse_args().cells)
        began = time.perf_counter()
        path = write(run, show_truth=True)
        wrote = time.perf_counter() - began
        size = path.stat().st_size / 1e6
        load, filtered = opened(path)
        print(f"{len(list(run.cells()))} cells: {size:.1f} MB, written in {wrote:.1f} s, opens in {load:.2f} s, "
              f"filters in {filtered:.2f} s")


if __name__ == "__main__":
    main()
