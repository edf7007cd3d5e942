"""NeedleExplorer on small models from configurations, and on the default model, where the effect must show."""

import threading

import numpy as np
import pytest
import torch

from activations import Selection, wrap
from activations.needle import NeedleReader, Place, Reply, needle
from widgets import NeedleExplorer
from widgets.needle_view import NeedleView, Setting, fate

LENGTH = 256


@pytest.fixture(scope="module")
def model(tiny_model):
    """A small model that reads 512 tokens."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    config = type(tiny_model.model.config)(**{**tiny_model.model.config.to_dict(), "max_position_embeddings": 512})
    return wrap(LlamaForCausalLM(config).eval(), tiny_model.tokenizer, name="small")


@pytest.fixture
def panel(open_panel, model):
    return open_panel(NeedleExplorer, model, length=LENGTH, c=200)


def test_what_is_shown_is_what_the_model_answers(panel, model, trace_of):
    made = needle(model.encode, LENGTH, 0)
    reply = NeedleReader(model, made).answer(Selection("refine", 16, 8, 200, proxy="first"))
    assert panel._view.shown.probability == reply.probability and f"c = {200:,}" in panel.summary
    assert list(trace_of(panel, "now").x) == [200] and list(trace_of(panel, "now").y) == [reply.probability]
    chosen = [(int(x), int(y)) for x, y in zip(trace_of(panel, "chosen").x, trace_of(panel, "chosen").y)]
    assert chosen == [(p, i) for i, place in enumerate(reply.places.values()) for p in place.chosen]
    assert all(len(place.chosen) for place in reply.places.values())
    kept, lost = (list(trace_of(panel, name).y) for name in ("key_kept", "key_lost"))
    assert kept == [i for i, place in enumerate(reply.places.values()) if place.selected]
    assert sorted(kept + lost) == [0, 1, 2]


def test_the_line_over_c_goes_from_the_least_legal_budget_to_all_keys(panel, trace_of):
    drawn = trace_of(panel, "curve")
    assert drawn.x[0] == 31 and drawn.x[-1] == LENGTH and (np.diff(drawn.x) > 0).all()
    for c, probability in zip(drawn.x, drawn.y):
        panel.c.value = int(c)
        panel.wait(60)
        assert trace_of(panel, "now").y[0] == probability
    frame = panel.to_frame("c")
    assert list(frame["probability"]) == list(drawn.y) and len(panel.to_frame()) == 3
    assert sorted([*trace_of(panel, "right").x, *trace_of(panel, "wrong").x]) == list(drawn.x)


def test_controls_change_the_answer(panel, trace_of):
    seen = {panel._view.shown.probability}
    for name, value in (("proxy", "mean"), ("g", 4), ("k", 20), ("system", "reuse"), ("seed", 3), ("depth", 80.0)):
        getattr(panel, name).value = value
        panel.wait(60)
        seen.add(panel._view.shown.probability)
    assert len(seen) == 7 and panel.status == ""
    panel.system.value = "full"
    panel.wait(60)
    assert panel._view.shown is panel._view.full
    assert not len(trace_of(panel, "chosen").x) and not len(trace_of(panel, "cut").x) and panel.strip.kept == []
    assert "full attention" in panel.summary and "selected" not in panel.summary


def test_a_budget_below_the_least_is_raised_and_said(panel, trace_of):
    panel.c.value = 5
    panel.wait(60)
    assert "c = 5 is below k + 2g − 1, which Refine needs in prefill: c = 31 is used" in panel.summary
    assert set(trace_of(panel, "cut").x) == {31}
    with pytest.raises(ValueError, match="c must be a whole number from 1 to 256"):
        panel.c.value = 0


def test_the_token_s_marks_and_the_prompt(panel):
    view, made = panel._view, panel._view.made
    tokens = panel.strip.tokens
    assert tokens[panel.strip.here] == view.tokens[-1] and "…" in tokens
    assert {tokens[i] for i in panel.strip.kept} <= {view.tokens[p] for p in view.chosen}
    assert made.asked in panel.answers.value and made.answer.strip() in panel.answers.value


def test_a_needle_of_one_s_own_is_escaped_and_a_single_word_is_refused(panel):
    panel.text.value = "x"
    with pytest.raises(ValueError, match="at least two words, of which the last is asked for"):
        panel.wait(60)
    assert "at least two words" in panel.status
    panel.k.value = 14  # the last prompt still answers, and its line over c hides no error
    panel.wait(60)
    assert "k = 14" in panel.summary and len(panel._view.curve) >= 14 and "at least two words" in panel.status
    panel.c.value = 100
    panel.wait(60)
    assert "c = 100" in panel.summary and "at least two words" in panel.status
    panel.text.value = "The <b>tag</b> is <script>."
    panel.wait(60)
    assert panel.status == "" and "&lt;script&gt;" in panel.answers.value and "<script>" not in panel.answers.value
    assert panel._view.made.asked == "The <b>tag</b> is"
    panel.text.value = "so long " * 60
    with pytest.raises(ValueError, match="leave no haystack"):
        panel.wait(60)


def test_cancel_keeps_what_is_known_and_go_on_fills_in(panel, trace_of):
    answer, asked = panel._reader.answer, []

    def cancelled_soon(selection):
        asked.append(selection)
        if len(asked) == 6:
            panel.cancel()
        return answer(selection)

    panel._reader.answer = cancelled_soon
    panel.k.value = 12
    panel.wait(60)
    assert panel.status.startswith("cancelled") and 2 < len(trace_of(panel, "curve").x) < 14
    assert panel.curve_button.layout.display == ""
    panel.c.value = 150
    panel.wait(60)
    assert "c = 150" in panel.summary and len(trace_of(panel, "curve").x) < 14
    panel._reader.answer = answer
    panel.curve_button.click()
    panel.wait(60)
    assert len(trace_of(panel, "curve").x) >= 14 and panel.curve_button.layout.display == "none"


def asks(panel, at, then):
    """Keep what the model is asked, and call `then` when it is asked for the `at`-th time."""
    answer, asked = panel._reader.answer, []

    def answering(selection):
        asked.append(selection)
        if len(asked) == at:
            then()
        return answer(selection)

    panel._reader.answer = answering
    return asked


def test_after_cancel_nothing_is_asked_and_the_open_setting_stays(panel, trace_of):
    """The change that came with Cancel is told as not drawn, so it must not be drawn."""

    def change_and_cancel():
        panel.g.value = 4
        panel.cancel()

    asked = asks(panel, 7, change_and_cancel)
    panel.k.value = 12
    panel.wait(60)
    assert panel.status.startswith("cancelled") and len(asked) == 7
    assert panel._view.at.g == 8 and "g = 8" in panel.summary and panel.g.value == 4
    assert len(trace_of(panel, "curve").x) == len(panel._view.curve) == 5, "c = 200, and the line's first four"
    assert panel.curve_button.layout.display == ""
    panel.curve_button.click()
    panel.wait(60)
    assert panel._view.at.g == 4 and "g = 4" in panel.summary and len(trace_of(panel, "curve").x) >= 14


def test_close_during_the_line_asks_and_draws_no_more(model, widgets_alive, monkeypatch):
    before, called, closed = widgets_alive(), threading.Event(), threading.Event()
    panel = NeedleExplorer(model, length=LENGTH, c=200)
    panel.wait(60)
    painted = []
    monkeypatch.setattr(panel, "_paint", lambda at, paint=panel._paint: (painted.append(at), paint(at)))

    def wait_for_close():
        called.set()
        assert closed.wait(30)

    asked = asks(panel, 6, wait_for_close)
    panel.k.value = 12
    assert called.wait(30)
    drawn, worker = len(painted), panel._worker
    panel.g.value = 4
    monkeypatch.setattr(worker._thread, "join", lambda *_, join=worker._thread.join: (closed.set(), join(30)))
    panel.close()
    assert not worker.alive and len(asked) == 6 and len(painted) == drawn
    assert panel._reader is None and widgets_alive() == before


def test_an_error_in_the_line_is_told_and_what_was_known_stays(panel, trace_of, monkeypatch):
    def fail():
        raise ValueError("the model broke")

    asked = asks(panel, 6, fail)
    panel.k.value = 12
    with pytest.raises(ValueError, match="the model broke"):
        panel.wait(60)
    assert panel.status == "the model broke" and len(asked) == 6
    assert panel._view.at.k == 12 and len(trace_of(panel, "curve").x) == 3, "c = 200, and the line's ends"

    def fail_twice():
        def paint(_):
            raise ValueError("nor can it be drawn")

        monkeypatch.setattr(panel, "_paint", paint)
        fail()

    asks(panel, 2, fail_twice)
    panel.c.value = 150
    with pytest.raises(ValueError, match="the model broke"):
        panel.wait(60)
    assert panel.status == "the model broke"


def a_view(system="refine", **places):
    """What is said of a needle's key that stands so in its layers: of 256 keys, c = 31 and k = 16 are taken."""
    found = {int(name[1:]): Place(**{**FAR, **fields}, chosen=np.empty(0)) for name, fields in places.items()}
    made = needle(lambda text: torch.tensor([1, *map(ord, text)]), LENGTH, 0, sentence="It is b.")
    reply = Reply(0.1, False, ["x"], 0.5, found)
    at = Setting(system, 16, 8, "first", 31, "auto")
    return NeedleView(made, ["x"] * LENGTH, at, list(found), reply, reply, reply)


FAR = {"rank": 3, "needed": 104, "cut": 31, "is_dense": False, "candidate": False, "selected": False}
LOST = "the needle's key is not selected in "


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            a_view(_5={**FAR, "needed": 40}, _11={}),
            "layers 5 and 11: in layer 11 its group's proxy has it as number 104 at this setting, and c = 31 are taken",
        ),
        (
            a_view("reuse", _5={"cut": 16}, _11={"candidate": True, "selected": True}),
            "layer 5: there its group's proxy has it as number 104 at this setting, and k = 16 are taken",
        ),
        (
            a_view(_5={"candidate": True, "needed": 20, "rank": 29}),
            "layer 5: there the query has it as number 30 at this setting, and k = 16 are taken",
        ),
        (a_view(_5={"needed": 2**31 - 1}), "layer 5"),
    ],
)
def test_how_far_the_key_is_behind_is_said_of_this_setting_alone(view, said):
    assert fate(view) == [LOST + said]


def test_code_gives_the_same_answer(panel, model):
    scope = {"torch": torch, "model_of_test": model}
    exec(panel.code().replace("lm = ...", "lm = model_of_test"), scope)
    assert scope["reply"].probability == panel._view.shown.probability


def test_export_with_a_slider_and_an_unknown_table(panel, tmp_path):
    path = panel.export_html(tmp_path / "needle.html", slider="c", steps=5)
    assert path.stat().st_size > 1e6 and '"c = 31"' in path.read_text()
    with pytest.raises(ValueError, match="kind must be one of 'layers', 'c'"):
        panel.to_frame("rows")


def test_what_cannot_be_opened_says_why(tiny_model, model):
    with pytest.raises(TypeError, match="needs a model that answers.*got Tensor"):
        NeedleExplorer(torch.zeros(3))
    with pytest.raises(ValueError, match="tiny reads 64 tokens: a haystack needs 256"):
        NeedleExplorer(tiny_model)
    with pytest.raises(ValueError, match="length must be one of 256, got 2048"):
        NeedleExplorer(model, length=2048)
    for name, value in (("proxy", "middle"), ("g", 3), ("system", "hisa"), ("seed", -1), ("depth", 101), ("k", 0)):
        with pytest.raises(ValueError, match=f"{name}.* must be"):
            NeedleExplorer(model, length=LENGTH, **{name: value})


def test_a_model_without_an_eligible_layer(model):
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = MistralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
    near = wrap(MistralForCausalLM(config).eval(), model.tokenizer, name="near")
    with pytest.raises(ValueError, match="no layer of near attends to the whole text$"):
        NeedleExplorer(near)
    with pytest.raises(ValueError, match="no layer of small attends to the whole text and has an indexer"):
        NeedleExplorer(model, indexers={7: None})


def test_a_prompt_beyond_the_context_is_said(tiny_model):
    """The prompt alone fits, its answer of many tokens does not."""
    from transformers import LlamaForCausalLM

    fields = {**tiny_model.model.config.to_dict(), "max_position_embeddings": LENGTH + 2}
    short = wrap(LlamaForCausalLM(type(tiny_model.model.config)(**fields)).eval(), tiny_model.tokenizer, name="short")
    panel = NeedleExplorer(short, length=LENGTH, text="it is good")
    try:
        with pytest.raises(ValueError, match="261 tokens are more than the 258 that short reads"):
            panel.wait(60)
        assert "261 tokens" in panel.status
        panel.text.value = "it is a"
        panel.wait(60)
        assert panel.status == "" and panel._view is not None
    finally:
        panel.close()


def test_indexers_of_one_s_own_select(open_panel, model):
    """One that scores all keys alike takes the lowest positions; its keys of the haystack are known."""

    def flat(hidden, positions):
        one = torch.ones(len(hidden), 1, 4)
        return one, one[:, 0], one[:, 0, :1]

    panel = open_panel(NeedleExplorer, model, length=LENGTH, indexers={1: flat}, system="dense")
    assert list(panel._view.shown.places) == [1]
    assert panel._view.shown.places[1].chosen.tolist() == list(range(16))
    assert "select in layers 1 by the indexers given" in panel.caption


def test_close_frees_everything(model, widgets_alive):
    before = widgets_alive()
    panel = NeedleExplorer(model, length=LENGTH)
    panel.wait(60)
    panel.close()
    assert widgets_alive() == before and panel._reader is None
    with pytest.raises(RuntimeError, match="closed"):
        panel.wait()


@pytest.mark.model
@pytest.mark.slow
def test_the_needle_disappears_from_the_default_model(open_panel):
    from activations import load

    panel = open_panel(NeedleExplorer, load(), length=512)
    assert panel._view.full.right and panel._view.dense.right and panel._view.shown.right
    panel.c.value = 31
    panel.wait(120)
    view = panel._view
    assert not view.shown.right and view.shown.probability < 0.01 < view.dense.probability
    assert any(not place.candidate and place.rank < 16 for place in view.shown.places.values())
    assert "is not selected in layer" in panel.summary
    panel.proxy.value = "mean"
    panel.wait(120)
    assert panel._view.shown.right and all(place.candidate for place in panel._view.shown.places.values())
