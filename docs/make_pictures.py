"""Make the pictures of the Markdown pages: `python docs/make_pictures.py`, or `--only` one of them.

logit_explorer   the first lesson as a browser shows it
threshold        threshold_picture.py
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tools")]

import chromium  # noqa: E402
import threshold_picture  # noqa: E402
from lab import Lab  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

LESSON = "00_tokens_and_cuts.ipynb"
IMAGES = ROOT / "docs" / "images"
THEMES = ("light", "dark")


def main() -> None:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--only", choices=PICTURES, help="one of them")
    only = top.parse_args().only
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright)
        for name in [only] if only else PICTURES:
            PICTURES[name](browser)
        browser.close()


def logit_explorer(browser) -> None:
    with tempfile.TemporaryDirectory() as folder:
        served, config = Path(folder, "served"), Path(folder, "jupyter")
        config.mkdir()
        shutil.copytree(ROOT / "notebooks", served, ignore=shutil.ignore_patterns(".*"))
        with LabServer(served, config) as server:
            lab = Lab(server, browser, width=1480, height=1200)
            for theme in THEMES:
                lab.open_notebook(LESSON, theme=theme)
                lab.run_all(timeout_s=120)
                lab.screenshot(IMAGES / f"logit_explorer_{theme}.png", panel=0)
            lab.close()


def threshold(browser) -> None:
    for theme in THEMES:
        figure = threshold_picture.figure(theme)
        size = {"width": figure.layout.width, "height": figure.layout.height}
        page = browser.new_page(viewport=size, device_scale_factor=2)
        page.set_content(
            f"<body style='margin: 0'>{figure.to_html(full_html=False, config={'staticPlot': True})}</body>"
        )
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .annotation').length > 0")
        page.screenshot(path=IMAGES / f"threshold_{theme}.png")
        page.close()


PICTURES = {"logit_explorer": logit_explorer, "threshold": threshold}


if __name__ == "__main__":
    main()
