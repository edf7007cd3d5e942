"""One JupyterLab and one browser for all browser tests, closed with the last of them."""

import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import chromium  # noqa: E402
from lab import Lab  # noqa: E402
from lab_server import LabServer  # noqa: E402
from steps import SetupError  # noqa: E402

NOTEBOOKS = HERE.parents[1] / "notebooks"


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def browser():
    with sync_playwright() as playwright:
        try:
            browser = chromium.launch(playwright)
        except (chromium.BrowserMissing, SetupError) as missing:
            pytest.fail(str(missing), pytrace=False)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def served(tmp_path_factory):
    """The folder that JupyterLab serves: a copy of `notebooks/`, so that a run never changes the repository."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(NOTEBOOKS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@pytest.fixture(scope="package")
def lab(browser, served, tmp_path_factory):
    with LabServer(served, tmp_path_factory.mktemp("jupyter")) as server:
        lab = Lab(server, browser)
        yield lab
        lab.close()
