"""OverlapExplorer as a user meets it, on made-up layers and on the live model; lesson 07 is in test_lessons.py."""

import pytest

CELL = """
from activations import synthetic
from widgets import OverlapExplorer

smooth = {5: 0.8, 11: 0.93, 17: 0.97}
layers = {n: synthetic.index(64, 8192, 8, 64, seed=n, topics=8, smoothness=s) for n, s in smooth.items()}
explorer = OverlapExplorer(layers, layer=11, query=30)
explorer
"""


LIVE = """
from activations import load
from widgets import OverlapExplorer

explorer = OverlapExplorer(load())
explorer
"""


@pytest.fixture(scope="module")
def overlap(lab, served):
    lab.open_panel(served / "overlap.ipynb", CELL)
    return lab


def marked(lab):
    """Tokens that are marked as keys, and where the text begins."""
    return lab.page.evaluate("document.querySelectorAll('.qp-token.qp-kept, .qp-token.qp-new').length")


def test_it_opens_quietly(overlap):
    overlap.was_quiet()
    overlap.fills_its_panel()
    assert overlap.summary.startswith("layer 11, k = 512 of up to 8,192 keys")
    assert len(overlap.trace("layers")["x"]) == 3 and len(overlap.trace("map")["z"]) == 64 * 64
    overlap.looks_right()


def test_k_and_g_move_what_is_drawn(overlap):
    with overlap.expect_change("overlap", "adjacent", "union", "shared", "layers"):
        overlap.press("k", "ArrowRight", times=3)
    with overlap.expect_change("groups", "union_now", "joint_now"):
        overlap.press("g", "ArrowRight", times=4)
    overlap.wait_for("() => qp.summary().includes('groups of 8: union ')")
    overlap.set_text("k", 40)
    overlap.wait_for("() => qp.summary().includes('k = 40 of up to')")
    overlap.looks_right()
    overlap.set_text("k", 9000)
    overlap.wait_for("() => qp.error().startsWith('k must be a whole number from 1 to 8,192')")
    overlap.set_text("k", 512)
    overlap.wait_for("() => qp.error() === '' && qp.summary().includes('k = 512 of up to')")


def test_a_step_is_painted_soon(overlap):
    for label, trace in (("k", "overlap"), ("g", "union_now")):
        times = [overlap.key_to_painted_ms(label, trace)["painted_ms"] for _ in range(5)]
        assert min(times) < 400, (label, times)  # 150 on two idle cores; tests run beside other work


def test_a_click_on_the_map_chooses_a_query(overlap):
    with overlap.expect_change("here", "shared", "new"):
        overlap.click_plot(0.3, 0.6)
    overlap.wait_for("() => qp.summary().includes('query 19 (position 8,147')")
    assert overlap.value("query") == "19"


def test_the_text_shows_its_keys_and_follows_a_click(overlap):
    assert len(overlap.tokens) == 300 and marked(overlap) > 10
    overlap.click_plot(0.05, 0.02, subplot="x5y5")
    place = int(overlap.value("text at"))
    if place > 1000:  # no bar stands there
        overlap.set_text("text at", 400)
    overlap.wait_text(r"Tokens 1?\d\d to \d\d\d of 8,192, with \d+ of the \d+ keys of")
    assert overlap.error == ""


def test_another_layer_and_a_dark_theme(overlap):
    with overlap.expect_change("adjacent", "layer_now"):
        overlap.choose("layer", "17")
    overlap.wait_for("() => qp.summary().startsWith('layer 17, k = ')")
    overlap.switch_theme("dark")
    overlap.looks_right()
    with overlap.expect_change("here"):
        overlap.press("query", "Home")
    overlap.wait_for("() => qp.summary().includes('with query 1')")
    overlap.looks_right()
    assert overlap.console_errors == []


def test_in_a_narrow_window_the_figure_scrolls_and_no_label_is_cut(overlap):
    overlap.scrolls_when_narrow()


@pytest.fixture(scope="module")
def live(lab, served):
    lab.open_panel(served / "overlap_live.ipynb", LIVE)
    return lab


@pytest.mark.model
def test_a_live_model_opens_on_a_text(live):
    assert live.value("text").startswith('The "assert" statement')
    assert live.summary.startswith("layer 5, k = ") and len(live.trace("layers")["x"]) == 3
    assert live.outgoing == []
    live.looks_right()


@pytest.mark.model
def test_another_text_is_read_with_run(live):
    box = live._control("text", "text", 0)
    box.fill("Roses are red, violets are blue, sugar is sweet and so are you.\n" * 6)
    with live.expect_change("map", "layers"):
        live.click_button("Run")
    live.wait_for("() => qp.summary().includes('of up to 10')")
    live.choose("layer", "17")
    live.wait_for("() => qp.summary().startsWith('layer 17, k = ')")
    live.looks_right()
    live.choose("to start from", "The Zen of Python")
    live.wait_for("() => qp.caption().includes('203 keys')")
    assert live.value("text").startswith("The Zen of Python, by Tim Peters")
    live.looks_right()


@pytest.mark.model
def test_an_empty_text_is_said(live):
    box = live._control("text", "text", 0)
    box.fill("")
    live.click_button("Run")
    live.wait_for("() => qp.error().startsWith('the text is empty: type or paste one')")
    live.choose("to start from", "The Zen of Python")
    live.wait_for("() => qp.error() === ''")
    assert live.console_errors == []
