"""Make the pictures of the Markdown pages: `python docs/make_pictures.py`, or `--only` one of them.

logit_explorer, truncation_explorer,   the panels of lessons 00, 03, 04 and 01 as a browser shows them; the last has
search_explorer, timing_explorer       recorded numbers where there is no GPU
indexer_explorer, overlap_explorer     the panels of lessons 06 and 07
pivot_explorer                         the panel on the recorded layers of the default model, with rivals
needle_explorer                        the panel on the default model, at a c that loses the needle
threshold                              threshold_picture.py
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
from lab import Lab, write_notebook  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

LESSONS = {
    "logit_explorer": "00_tokens_and_cuts.ipynb",
    "truncation_explorer": "03_truncation_hits.ipynb",
    "search_explorer": "04_pivot_search_and_ties.ipynb",
    "timing_explorer": "01_why_sorting_is_slow.ipynb",
    "indexer_explorer": "06_queries_keys_indexer.ipynb",
    "overlap_explorer": "07_query_overlap.ipynb",
    "pivot_explorer": "pivot.ipynb",
    "needle_explorer": "needle.ipynb",
}
# Notebooks that are no lesson: one cell each.
CELLS = {
    "pivot.ipynb": """from activations import recorded
from widgets import PivotExplorer

captures = [recorded(f"index_layer_{n}") for n in (5, 11, 17)]
explorer = PivotExplorer(captures, layer=11, rivals=("hisa", "misa_rerank"))
explorer.wait(60)
explorer""",
    "needle.ipynb": """from activations import load
from widgets import NeedleExplorer

explorer = NeedleExplorer(load(), c=100)
explorer.wait(120)
explorer""",
}
IMAGES = ROOT / "docs" / "images"
THEMES = ("light", "dark")
PICTURES = [*LESSONS, "threshold"]


def main() -> None:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--only", choices=PICTURES, help="one of them")
    only = top.parse_args().only
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright)
        for name in [only] if only else PICTURES:
            threshold(browser) if name == "threshold" else panel(browser, name)
        browser.close()


def panel(browser, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        served, config = Path(folder, "served"), Path(folder, "jupyter")
        config.mkdir()
        shutil.copytree(ROOT / "notebooks", served, ignore=shutil.ignore_patterns(".*"))
        for notebook, cell in CELLS.items():
            write_notebook(served / notebook, cell)
        with LabServer(served, config) as server:
            lab = Lab(server, browser, width=1480, height=1200)
            for theme in THEMES:
                lab.open_notebook(LESSONS[name], theme=theme)
                lab.run_all(timeout_s=120)
                lab.screenshot(IMAGES / f"{name}_{theme}.png", panel=0)
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


if __name__ == "__main__":
    main()
