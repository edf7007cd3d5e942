"""LogitExplorer on a live model: a tiny one built from a configuration, so that no download or cache is needed."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from activations import capture_logits, wrap
from widgets import LogitExplorer

VOCAB, CONTEXT = 300, 64


class Letters:
    """One token a character; ids beyond the alphabet have no name, as in a padded vocabulary."""

    bos_token_id = 1

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [2 + ord(c) % 250 for c in text]

    def decode(self, ids, **_):
        return "".join("<bos>" if i == 1 else chr(i - 2) if i >= 2 else "" for i in ids)

    def __len__(self):
        return 252


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=0,
    )
    return wrap(LlamaForCausalLM(config).eval(), Letters(), name="tiny")


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
    assert panel.status == "" and sum(trace(panel, "kept").y) == 6
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
    panel = LogitExplorer(wrap(half, Letters(), name="half"), text="Hello", k=5)
    try:
        panel.wait(60)
        assert "float32" in panel.caption
        panel.logits_dtype.value = "model"
        panel.wait(60)
        assert "bfloat16" in panel.caption
        row = panel._view.facts.row
        assert torch.equal(row, row.bfloat16().float())
        assert 'logits_dtype="model"' in panel.code()
    finally:
        panel.close()


def test_cancel_leaves_what_is_shown(panel, monkeypatch):
    import threading

    from widgets.panels import logits

    started = threading.Event()

    def slow(lm, text, *, layer, progress):
        for i in range(10_000):
            progress(i, 10_000, "the model reads the text")
            started.set()
            threading.Event().wait(0.001)

    monkeypatch.setattr(logits, "capture_logits", slow)
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
