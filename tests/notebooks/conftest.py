"""Modules of the notebook tests import each other, and the isolated Jupyter folders of the browser tests."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "browser")]
