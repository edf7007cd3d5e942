"""Make the pictures of the README from the lesson as a browser shows it: `python docs/make_pictures.py`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tools")]

import chromium  # noqa: E402
from lab import Lab  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

LESSON = "00_tokens_and_cuts.ipynb"
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        served, config = Path(folder, "served"), Path(folder, "jupyter")
        config.mkdir()
        shutil.copytree(ROOT / "notebooks", served, ignore=shutil.ignore_patterns(".*"))
        browser = chromium.launch(playwright)
        with LabServer(served, config) as server:
            lab = Lab(server, browser, width=1480, height=1200)
            for theme in ("light", "dark"):
                lab.open_notebook(LESSON, theme=theme)
                lab.run_all(timeout_s=120)
                lab.screenshot(IMAGES / f"logit_explorer_{theme}.png", panel=0)
            lab.close()
        browser.close()


if __name__ == "__main__":
    main()
