"""Where the clone is, and what is committed there."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root():
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tracked(root):
    """Paths of all tracked files."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git clone")
    return [path for name in done.stdout.split("\0") if name and (path := root / name).is_file()]
