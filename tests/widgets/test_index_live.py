"""Panels on an indexer with a live model: a tiny one built from a configuration, so that no download is needed."""

import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from activations import capture_index, texts, wrap
from qp_kernels import index_metrics
from qp_kernels.pivot import dense_topk, pivot_topk
from widgets import OverlapExplorer, PivotExplorer, index_live
from widgets.index_live import LiveIndex, example_texts

TEXT = "the cat sat on the mat, the cat sat"  # with BOS 36 tokens, of 64 that the model reads
SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 0}
HEADS = {"intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture
def panel(open_panel, tiny_model):
    return open_panel(OverlapExplorer, tiny_model, text=TEXT, k=5)


@pytest.fixture
def wrapped(tiny_model):
    """wrapped(Model, Config, ...): a model with random weights and the letters as tokens."""

    def build(model, config, **more):
        torch.manual_seed(0)
        return wrap(model(config(**{**SIZES, **more})).eval(), tiny_model.tokenizer, name="made")

    return build


def refused(panel, words):
    with pytest.raises(ValueError, match=words):
        panel.wait(60)
    assert words.split(".*")[0].replace("\\", "") in panel.status


def test_what_is_drawn_is_the_model_s_own_index(panel, tiny_model, map_of):
    captures = capture_index(tiny_model, TEXT, layer=[0, 1, 2])
    for name, capture in zip("012", captures):
        panel.layer.value = name
        panel.wait(60)
        indices = dense_topk(capture.q, capture.k, capture.w, 5, lo=capture.lo, hi=capture.hi)
        z = index_metrics.overlap(indices[-1].expand_as(indices).contiguous(), indices)
        assert map_of(panel)[-1] == pytest.approx(z.numpy())
    assert panel.to_frame("layers")["layer"].tolist() == ["0", "1", "2"]
    assert panel.query.value == 35 and panel.to_frame()["token"].tolist()[1:] == list(TEXT)
    assert panel.caption.startswith("tiny · layer 2 · attention · float32 · cpu · queries 0 to 35 of 36")
    assert "".join(panel.strip.tokens) == "<bos>" + TEXT


def test_a_new_text_is_a_new_picture_at_its_last_query(panel, map_of):
    panel.layer.value = "1"
    panel.query.value = 7
    panel.wait(60)
    panel.text.value = "another text of other words"
    panel.wait(60)
    assert len(map_of(panel)) == 28 and panel.query.value == 27 and panel.layer.value == "1"
    assert panel.k.limit == 28 and panel.k.value == 5 and panel.query.limit == panel.place.limit == 27
    assert "shares" in panel.summary and panel.summary.startswith("layer 1, k = 5 of up to 28 keys")


def test_k_follows_the_text_until_a_hand_sets_it(open_panel, tiny_model):
    given = open_panel(OverlapExplorer, tiny_model, text="x" * 63, k=4)
    given.text.value = "x" * 31
    given.wait(60)
    assert given.k.value == 4
    panel = open_panel(OverlapExplorer, tiny_model, text="x" * 63)
    assert panel.k.value == 64 // 16
    panel.text.value = "x" * 31
    panel.wait(60)
    assert panel.k.value == 32 // 16
    panel.k.value = 9
    panel.text.value = "y" * 63
    panel.wait(60)
    assert panel.k.value == 9
    panel.text.value = "y"
    panel.wait(60)
    assert panel.k.value == 2 and panel.summary.startswith("layer 0, k = 2 of up to 2 keys (100 %)")


def test_run_reads_the_same_text_and_stays_where_it_is(panel):
    panel.query.value = 7
    panel.wait(60)
    panel.run_button.click()
    panel.wait(60)
    assert panel.query.value == 7 and "query 7 (position 7" in panel.summary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text is empty: type or paste one"),
        (" \n", "the text is empty"),
        ("x" * 64, "the text has 65 tokens, tiny reads at most 64"),
    ],
)
def test_a_text_that_cannot_be_read_is_said_and_the_panel_works_on(panel, text, words):
    seen = panel.summary
    panel.text.value = text
    refused(panel, words)
    assert panel.summary == seen, "what was seen was lost"
    panel.k.value = 6
    panel.wait(60)
    assert panel.summary.startswith("layer 0, k = 6 of up to 36") and words in panel.status
    panel.text.value = "again"
    panel.wait(60)
    assert panel.status == "" and panel.summary.startswith("layer 0, k = 6 of up to 6 keys")


def test_one_token_is_a_sensible_picture(open_panel, tiny_model, monkeypatch):
    monkeypatch.setattr(
        type(tiny_model.tokenizer), "encode", lambda self, text, add_special_tokens=True: [5] * len(text)
    )
    panel = open_panel(OverlapExplorer, tiny_model, text="x")
    assert "no two neighbouring queries to compare" in panel.summary and panel.k.limit == 1


def test_the_code_makes_it_again(panel, tiny_model):
    panel.layer.value = "2"
    panel.wait(60)
    scope = {"given": tiny_model}
    exec(panel.code().replace("lm = ...", "lm = given"), scope)
    assert float(scope["adjacent"]) == pytest.approx(panel.to_frame("layers")["adjacent"][2])
    assert f"text = {TEXT!r}" in panel.code()


def test_code_names_a_built_in_text_instead_of_spelling_it(tiny_model):
    (label, text), *_ = example_texts()
    assert label.startswith("reference of Python") and 3_000 < len(text) <= 4_000
    live = LiveIndex(tiny_model)
    live.model.model.config.max_position_embeddings, before = 8192, live.model.context
    try:
        code = live.read(text, False, lambda *told: None)[0].code
    finally:
        live.model.model.config.max_position_embeddings = before
    assert f"text = texts.builtin_text('pydoc', {len(text)})" in code and texts.builtin_text("pydoc", len(text)) == text
    assert index_live._text_code("x" * 5000) == "...  # the 5,000 characters in the text box"


def test_examples_type_themselves(panel):
    names = [name for name, _ in panel.texts.options]
    assert names[0] == "texts …" and "The Zen of Python" in names
    panel.texts.value = dict(panel.texts.options)["The Zen of Python"]
    refused(panel, "the text has .* tokens, tiny reads at most 64")
    assert panel.text.value.startswith("The Zen of Python, by Tim Peters") and panel.texts.value == ""


class Gate:
    """A capture that tells progress and waits until it is let go."""

    def __init__(self, monkeypatch):
        self.reached, self.open, self.texts = threading.Event(), threading.Event(), []
        monkeypatch.setattr(index_live, "capture_index", self)

    def __call__(self, lm, ids, *, progress, **options):
        self.texts.append(len(ids))
        progress(0, len(ids), "Reading the text")
        self.reached.set()
        assert self.open.wait(30)
        progress(len(ids), len(ids), "Reading the text")
        return capture_index(lm, ids, **options)


def test_cancel_leaves_what_was_seen_and_run_goes_on(panel, monkeypatch):
    gate, seen = Gate(monkeypatch), panel.summary
    panel.text.value = "another text"
    assert gate.reached.wait(30) and panel.status == "Reading the text 0 of 13 …"
    assert panel._cancel_button.layout.display == ""
    panel.cancel()
    gate.open.set()
    panel.wait(60)
    assert panel.status == "cancelled: Reading the text" and panel.summary == seen
    panel.run_button.click()
    panel.wait(60)
    assert panel.status == "" and "of up to 13 keys" in panel.summary and len(panel.to_frame("layers").dropna()) == 3


def test_the_first_text_can_be_cancelled_and_controls_wait_for_it(tiny_model, monkeypatch):
    gate = Gate(monkeypatch)
    panel = OverlapExplorer(tiny_model, text=TEXT)
    try:
        assert gate.reached.wait(30)
        panel.k.value, panel.g.value, panel.layer.value = 7, 3, "2"
        panel.cancel()
        gate.open.set()
        panel.wait(60)
        assert panel.status.startswith("cancelled") and panel.summary == ""
        with pytest.raises(RuntimeError, match="nothing is drawn yet"):
            panel.to_frame()
        panel.g.value = 2
        panel.wait(60)
        panel.run_button.click()
        panel.wait(60)
        assert panel.summary.startswith("layer 2, k = 7 of up to 36 keys") and "groups of 2" in panel.summary
    finally:
        panel.close()


def test_a_newer_text_replaces_the_one_that_is_read(panel, monkeypatch):
    gate = Gate(monkeypatch)
    panel.text.value = "one text"
    assert gate.reached.wait(30)
    panel.text.value = "another text"
    gate.open.set()
    panel.wait(60)
    assert gate.texts == [9, 13] and "of up to 13 keys" in panel.summary and panel.status == ""


def test_windows_of_the_text_before_are_forgotten(panel):
    """A scan that was under way when another text came leaves nothing of the old one."""
    before = panel._ranked
    panel.text.value = TEXT[::-1]
    panel.wait(60)
    assert panel._ranked is not before and len(before._ranked) == 0
    assert all(one.capture.tokens[1:] == list(TEXT[::-1]) for one in panel._layers.values())


# Which layers


def test_models_without_an_eligible_layer(wrapped):
    with pytest.raises(
        ValueError, match="no layer of made has an indexer, or attention .* open this panel on a capture"
    ):
        OverlapExplorer(wrapped(MambaForCausalLM, MambaConfig))


def test_layers_with_a_window_read_what_fits_into_it(wrapped, open_panel):
    lm = wrapped(MistralForCausalLM, MistralConfig, **HEADS, sliding_window=8)
    panel = open_panel(OverlapExplorer, lm, text="1234567")
    assert panel.summary.startswith("layer 0, k = 1 of up to 8 keys")
    panel.text.value = "12345678"
    refused(panel, "layer 0 attends to 8 neighbouring tokens only, of 9 in the text")


def test_of_many_layers_a_few_are_taken(wrapped):
    lm = wrapped(LlamaForCausalLM, LlamaConfig, **HEADS, num_hidden_layers=20)
    assert LiveIndex(lm).layers == [0, 3, 5, 8, 11, 14, 16, 19]
    assert LiveIndex(lm, "7").layers == [0, 3, 5, 7, 8, 11, 14, 16, 19] and LiveIndex(lm, 19).unread()[-1].name == "19"
    with pytest.raises(ValueError, match=r"layer must be one of 0, 1, .* of made, got 20"):
        OverlapExplorer(lm, layer=20)


def test_an_indexer_of_the_model_s_own_comes_first(tiny_model, monkeypatch):
    there = {("native", None): [1, 2], ("attention", None): [0, 1, 2]}
    monkeypatch.setattr(index_live, "index_layers", lambda lm, source, n_tokens: there.get((source, n_tokens), []))
    assert (LiveIndex(tiny_model).source, LiveIndex(tiny_model).layers) == ("native", [1, 2])
    del there["native", None]
    assert (LiveIndex(tiny_model).source, LiveIndex(tiny_model).layers) == ("attention", [0, 1, 2])


def test_queries_of_a_long_text_are_its_last_and_mass_costs_some(tiny_model, monkeypatch):
    monkeypatch.setattr(index_live, "MOST_QUERIES", 20)
    found = LiveIndex(tiny_model).read(TEXT, False, lambda *told: None)
    assert [len(one.capture) for one in found] == [20] * 3 and found[0].capture.mass is None
    assert found[0].capture.positions.tolist() == list(range(16, 36))
    monkeypatch.setattr(index_live, "WINDOW", 4)
    monkeypatch.setattr(index_live, "MASS_BYTES", 4 * 36 * 3 * 11)
    found = LiveIndex(tiny_model).read(TEXT, True, lambda *told: None)
    assert len(found[0].capture) == 8 and found[0].capture.mass.shape == (8, 36)
    assert "positions=range(-8, 0), mass=True" in "\n".join(found[0].code)


# Arguments


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"k": 0}, ValueError, "k must be a whole number from 1 to 64"),
        ({"g": 65}, ValueError, "g must be a whole number from 1 to 64"),
        ({"layer": 3}, ValueError, "layer must be one of 0, 1, 2 of tiny, got 3"),
        ({"query": 1.5}, TypeError, "query must be a whole number"),
        ({"backend": "triton"}, RuntimeError, "cannot run here"),
    ],
)
def test_arguments_that_cannot_be(tiny_model, options, error, words, widgets_alive):
    alive = widgets_alive()
    with pytest.raises(error, match=words):
        OverlapExplorer(tiny_model, text=TEXT, **options)
    assert widgets_alive() == alive


def test_a_query_out_of_range_is_said_once_the_text_is_known(tiny_model):
    panel = OverlapExplorer(tiny_model, text=TEXT, query=36)
    try:
        refused(panel, "query must be from -36 to 35, got 36")
        panel.run_button.click()
        panel.wait(60)
        assert panel.query.value == 35
    finally:
        panel.close()


def test_a_text_needs_a_live_model(tiny_model):
    capture = capture_index(tiny_model, TEXT, layer=0)
    with pytest.raises(ValueError, match="text needs a live model"):
        OverlapExplorer(capture, text=TEXT)


def test_a_closed_panel_holds_no_model_and_no_widget(tiny_model, widgets_alive):
    alive = widgets_alive()
    panel = OverlapExplorer(tiny_model, text=TEXT)
    panel.wait(60)
    panel.close()
    assert panel._live is None and panel._layers == {} and widgets_alive() == alive


def test_pivot_explorer_on_the_model_s_own_index(open_panel, tiny_model):
    panel = open_panel(PivotExplorer, tiny_model, text=TEXT, k=5, c=14, layer=1, rivals=("index_cache",))
    captures = capture_index(tiny_model, TEXT, layer=[0, 1, 2], mass=True)
    bounds = {"lo": captures[1].lo, "hi": captures[1].hi}
    indices = pivot_topk(captures[1].q, captures[1].k, captures[1].w, 5, group=4, budget=14, **bounds)
    dense = dense_topk(captures[1].q, captures[1].k, captures[1].w, 5, **bounds)
    assert panel._view.share("refine") == pytest.approx(float(index_metrics.recall(indices, dense).mean()))
    mass = float(index_metrics.captured(captures[1].mass, indices).mean())
    assert panel._view.attention("refine") == pytest.approx(mass, abs=1e-6)
    assert panel._view.systems["index_cache"].used == "layer 0"
    scope = {"tiny": tiny_model}
    exec(panel.code().replace("lm = ...", "lm = tiny"), scope)
    assert scope["indices"].equal(indices) and scope["dense"].equal(dense)


def test_c_follows_k_and_the_text_until_a_hand_sets_it(open_panel, tiny_model):
    panel = open_panel(PivotExplorer, tiny_model, text="x" * 63, g=2)
    assert (panel.k.value, panel.c.value) == (4, 8)
    panel.text.value = "x" * 31
    panel.wait(60)
    assert (panel.k.value, panel.c.value) == (2, 5), "k + W + g - 1"
    panel.c.value = 20
    panel.text.value = "y" * 63
    panel.wait(60)
    assert (panel.k.value, panel.c.value) == (4, 20)
    panel.text.value = "y" * 9
    panel.wait(60)
    assert panel.c.value == 10 and panel.summary.startswith("layer 0, k = 1 of up to 10 keys")


def test_c_follows_the_text_also_where_k_was_chosen(open_panel, tiny_model):
    panel = open_panel(PivotExplorer, tiny_model, text=TEXT, k=5)
    assert panel.c.value == 12
    for text, c in (("short", 6), (TEXT, 12)):  # all keys that there are, and again k + W + g - 1
        panel.text.value = text
        panel.wait(60)
        assert (panel.k.value, panel.c.value) == (5, c)


def test_a_text_that_comes_between_the_steps_of_a_search(open_panel, tiny_model, monkeypatch):
    from widgets import ranked_windows

    panel = open_panel(PivotExplorer, tiny_model, text="x" * 63)
    monkeypatch.setattr(ranked_windows, "STEP_SCORES", 32)  # a proxy a step
    for text in ("abc" * 20, "abd" * 20, "abc" * 20, "ab" * 20):
        panel.text.value = text
        panel.proxy.value = "last" if panel.proxy.value == "first" else "first"
        threading.Event().wait(0.02)
    panel.wait(60)
    assert panel.summary.startswith("layer 0, k = 2 of up to 41 keys") and panel.status == ""
