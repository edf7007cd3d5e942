"""QualityExplorer as a user meets it, on a made-up record."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "widgets"))

import made_quality  # noqa: E402

CELL = """
from widgets import QualityExplorer

explorer = QualityExplorer("quality.json")
explorer
"""


@pytest.fixture(scope="module")
def quality(lab, served):
    made_quality.write(served, topks=(256, 512), sources=("attention",))
    lab.open_panel(served / "selection_quality.ipynb", CELL)
    return lab


def test_every_question_is_drawn_in_both_themes(quality):
    quality.was_quiet()
    quality.fills_its_panel()
    assert quality.summary.startswith("32,768 tokens, topk = 512, 60 answers to 3 tasks")
    assert len(quality.trace("refine")["x"]) == 3 and len(quality.trace("paper")["x"]) == 3
    quality.looks_right()
    with quality.expect_change("rivals", "paper", "value"):
        quality.choose("question", "Rivals")
    quality.wait_for("() => qp.summary().includes('HISA by')")
    quality.looks_right()
    quality.switch_theme("dark")
    quality.choose("question", "Budget c")
    quality.wait_for("() => qp.trace('paper_mark').x.length === 3 && qp.trace('paper').x.length === 0")
    with quality.expect_change("refine", "dense"):
        quality.choose("measure", "loss of passages")
    quality.looks_right()
    quality.was_quiet()
