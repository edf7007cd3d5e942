"""NeedleExplorer as a user meets it, on the live model."""

import pytest

CELL = """
from activations import load
from widgets import NeedleExplorer

explorer = NeedleExplorer(load(), length=512)
explorer
"""
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def needle(lab, served):
    lab.open_panel(served / "needle.ipynb", CELL)
    return lab


def test_it_opens_quietly(needle):
    needle.was_quiet()
    needle.fills_its_panel()
    assert "which is right" in needle.summary and len(needle.trace("curve")["x"]) >= 12
    assert needle.trace("curve")["line"]["color"] == "#8C8C8C", "what was drawn before it was shown lost its colours"
    assert [row.count("right") for row in needle.page.locator(".qp-numbers tr").all_inner_texts()[1:]] == [1, 1, 1]
    needle.looks_right()


def test_the_needle_falls_out_and_the_answer_breaks(needle):
    with needle.expect_change("cut", "cut_c", "now", "outside", "key_lost"):
        needle.set_text("c", 31)
    needle.wait_for(
        "() => qp.summary().includes('which is wrong') && qp.summary().includes('is not selected in layer')"
    )
    assert "wrong" in needle.page.locator(".qp-numbers tr").last.inner_text()
    needle.looks_right()
    with needle.expect_change("inside", "key_kept", "curve"):
        needle.choose("proxy", "mean")
    needle.wait_for("() => qp.summary().includes('which is right')")


def test_a_needle_of_one_s_own(needle):
    needle.set_text("needle", "word")
    needle.wait_for("() => qp.error().startsWith('the needle needs at least two words')")
    needle.set_text("needle", "The favourite fruit of my sister is mango.")
    needle.wait_for("() => qp.error() === '' && qp.summary().includes(`'mango' has a probability`)")
    needle.was_quiet()


def test_a_narrow_window_scrolls_the_figure(needle):
    needle.scrolls_when_narrow()
