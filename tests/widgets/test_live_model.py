"""LogitExplorer on a live model: a tiny one built from a configuration, so that no download or cache is needed."""

import pytest
import torch
from transformers import LlamaForCausalLM

from activations import capture_logits, wrap
from widgets import LogitExplorer

CONTEXT = 64


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model


@pytest.fixture
def panel(model):
    panel = LogitExplorer(model, text="Hello", k=5, p=1.0)
    panel.wait(60)
    yield panel
    panel.close()


def trace(panel, name):
    return next(t for t in panel.figure.data if t.name == name)


def test_the_row_is_the_model_s_own(model, panel):
    ids = model.encode("Hello")[None]
    with torch.inference_mode():
        expected = model.model(ids).logits[0, -1]
    torch.testing.assert_close(panel._view.facts.row, expected.float(), rtol=1e-5, atol=1e-5)
    assert panel.position.value == len(ids[0]) - 1
    assert "tiny" in panel.caption and "torch back-end" in panel.caption


def test_a_new_text_is_a_new_picture_at_its_last_token(panel):
    before = list(trace(panel, "dropped").y)
    panel.text.value = "Another text"
    panel.wait(60)
    assert list(trace(panel, "dropped").y) != before
    assert panel.position.value == len(panel.strip.tokens) - 1 == panel.strip.here
    assert "".join(panel.strip.tokens).endswith("Another text")


def test_a_click_on_a_token_shows_what_follows_it(panel):
    panel.strip.picked = [2, 1]
    panel.wait(60)
    assert panel.position.value == 2
    assert "the text goes on with 'l'" in panel.summary and "rank " in panel.summary


def test_an_earlier_layer_is_another_row(panel):
    final = panel._view.facts.row.clone()
    panel.layer.value = 1
    panel.wait(60)
    assert not torch.equal(panel._view.facts.row, final)
    assert "layer 1 of 3" in panel.caption
    panel.layer.value = 3
    panel.wait(60)
    assert torch.equal(panel._view.facts.row, final)


@pytest.mark.parametrize(("text", "words"), [("", "empty"), ("x" * (CONTEXT + 1), f"{CONTEXT}")])
def test_a_text_that_cannot_be_read_is_an_error_and_the_panel_works_on(panel, text, words):
    drawn = list(trace(panel, "dropped").y)
    panel.text.value = text
    with pytest.raises(ValueError, match=words):
        panel.wait(60)
    assert words in panel.status
    assert list(trace(panel, "dropped").y) == drawn, "what was seen was lost"
    panel.k.value = 6
    panel.wait(60)
    assert sum(trace(panel, "kept").y) == 6
    assert words in panel.status, "the text is still wrong: moving a slider must not hide that"
    panel.text.value = "again"
    panel.wait(60)
    assert panel.status == "" and len(panel.strip.tokens) == 6


def test_append_writes_on_with_drawn_tokens(panel):
    panel.k.value = 1
    panel.wait(60)
    best = panel._rows.label([panel.to_frame()["id"][0]])[0]
    panel.append_button.click()
    for _ in range(2):  # the click's own job, then that of the longer text
        panel.wait(60)
    assert panel.text.value == "Hello" + best


def test_the_model_s_own_dtype_is_said_and_differs_only_by_rounding(model):
    half = LlamaForCausalLM(model.model.config).to(torch.bfloat16).eval()
    panel = LogitExplorer(wrap(half, model.tokenizer, name="half"), text="Hello", k=5)
    try:
        panel.wait(60)
        assert "float32" in panel.caption
        panel.logits_dtype.value = "model"
        panel.wait(60)
        assert "bfloat16" in panel.caption
        row = panel._view.facts.row
        assert torch.equal(row, row.bfloat16().float())
        assert "logits_dtype='model'" in panel.code()
    finally:
        panel.close()


def test_append_after_a_newer_text_and_twice(model, panel):
    """What is written belongs to the text that stands in the box."""
    panel.k.value = 1
    panel.wait(60)
    panel.text.value = "World"
    panel.append_button.click()
    panel.append_button.click()
    for _ in range(4):
        panel.wait(60)
    assert panel.text.value.startswith("World")
    added = panel.text.value.removeprefix("World")
    ids = model.encode("World")
    for letter in added:
        with torch.inference_mode():
            best = int(model.model(ids[None]).logits[0, -1].argmax())
        assert model.decode([best]) == letter
        ids = torch.cat([ids, torch.tensor([best])])


def test_append_writes_behind_the_last_token_whatever_is_shown(model, panel):
    panel.k.value, panel.position.value = 1, 2
    panel.wait(60)
    panel.append_button.click()
    for _ in range(2):
        panel.wait(60)
    with torch.inference_mode():
        best = int(model.model(model.encode("Hello")[None]).logits[0, -1].argmax())
    assert panel.text.value == "Hello" + model.decode([best])


def test_append_says_when_a_token_has_no_text(panel):
    panel._draws.use((panel.position.value, "float32", 5, 1.0, 1.0, "k_then_p"))
    panel._draws.last = 0  # the end of a text decodes to nothing
    panel.append_button.click()
    with pytest.raises(ValueError, match="ends the text"):
        panel.wait(60)
    assert panel.text.value == "Hello" and "ends the text" in panel.status


def test_run_reads_the_same_text_again(panel):
    before = len(panel.computed_ms)
    panel.run_button.click()
    panel.wait(60)
    assert len(panel.computed_ms) == before + 1, "one text, one picture"


def test_layers_are_compared_at_one_position(panel):
    panel.position.value = 2
    panel.wait(60)
    panel.layer.value = 1
    panel.wait(60)
    assert panel.position.value == 2 and panel.strip.here == 2


def test_position_is_checked_at_once(model):
    with pytest.raises(TypeError, match="whole number"):
        LogitExplorer(model, position=1.5)


def test_a_position_beyond_the_first_text_is_told_once(model):
    panel = LogitExplorer(model, text="abc", position=9)
    try:
        with pytest.raises(ValueError, match="position must be from"):
            panel.wait(60)
        panel.text.value = "abcd"
        panel.wait(60)
        assert panel.position.value == 4
    finally:
        panel.close()


def test_an_opener_can_be_chosen_twice(panel):
    import ipywidgets as w

    chooser = next(c for c in panel.children[1].children if isinstance(c, w.Dropdown))
    opener = chooser.options[1][1]
    for _ in range(2):
        panel.text.value = "something else"
        chooser.value = opener
        assert panel.text.value == opener and chooser.value == ""
    panel.wait(60)
    assert panel.status == ""


def test_code_reproduces_a_live_view(model, panel):
    panel.position.value, panel.k.value = 3, 9
    panel.wait(60)
    scope = {"model": model}
    exec(panel.code().replace("lm = ...", "lm = model"), scope)
    assert int(scope["kept"].isfinite().sum()) == 9
    assert float(scope["kept"].max()) == float(panel._view.facts.sorted[0])


def test_cancel_leaves_what_is_shown(panel, monkeypatch):
    import threading

    from widgets.panels import rows

    started = threading.Event()

    def slow(lm, text, *, layer, progress):
        for i in range(10_000):
            progress(i, 10_000, "the model reads the text")
            started.set()
            threading.Event().wait(0.001)

    monkeypatch.setattr(rows, "capture_logits", slow)
    drawn = list(trace(panel, "dropped").y)
    panel.text.value = "never shown"
    assert started.wait(10)
    panel._cancel_button.click()
    panel.wait(10)
    assert panel.status.startswith("cancelled") and list(trace(panel, "dropped").y) == drawn


def test_closing_frees_model_and_capture(model):
    import gc
    import weakref

    panel = LogitExplorer(model, text="Hello")
    panel.wait(60)
    capture = weakref.ref(panel._rows.capture)
    panel.close()
    gc.collect()
    assert capture() is None


def test_packed_texts_show_their_own_tokens_and_only_captured_rows_can_be_picked(model):
    capture = capture_logits(model, ["abc", "defg"], positions=[2, 5, 8])
    panel = LogitExplorer(capture, position=0)
    try:
        panel.wait(60)
        assert "".join(panel.strip.tokens).endswith("abc") and panel.strip.here == 2
        assert panel.strip.readable == [2]
        panel.position.value = 1
        panel.wait(60)
        assert "".join(panel.strip.tokens).endswith("defg") and panel.strip.here == 1
        assert panel.strip.readable == [1, 4]
        panel.strip.picked = [3, 1]  # not captured: nothing happens
        panel.strip.picked = [4, 2]
        panel.wait(60)
        assert panel.position.value == 2 and "the text goes on" not in panel.summary
    finally:
        panel.close()


def test_a_long_text_shows_a_window_of_tokens(model):
    from widgets.sources import WINDOW, CaptureRows

    capture = capture_logits(model, [[5] * 60] * 12)
    capture.starts = capture.starts[:1]  # one text of 720 tokens
    rows = CaptureRows(capture, [])
    for row in (0, 300, 719):
        shown = rows.text(row)
        assert len(shown.tokens) == len(shown.rows) <= 2 * WINDOW
        assert shown.rows[shown.here] == row
