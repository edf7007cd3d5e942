"""ruff's checks and formatting, as tests: one report and one closing line for everything."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_is_content(root, arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"make format mends most of it:\n{done.stdout}"
