"""IndexerExplorer driven as code drives it: what is drawn is what `dense_topk` and the formula say."""

import functools
import html
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from activations import capture_index, recorded, synthetic
from activations.texts import looking_back
from qp_kernels.pivot import dense_topk
from widgets import IndexerExplorer
from widgets.indexer_view import SHOWN


@pytest.fixture(scope="module")
def capture():
    return recorded("sentence_layer_11")


@pytest.fixture(scope="module")
def layers():
    return [recorded(f"sentence_layer_{layer}") for layer in (5, 11, 17)]


@pytest.fixture(scope="module")
def long():
    return synthetic.index(8, 500, 3, 16, seed=4, topics=4, integers=True)


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, IndexerExplorer)


def selected(capture, row, k):
    part = slice(row, row + 1)
    found = dense_topk(capture.q[part], capture.k, capture.w[part], k, lo=capture.lo[part], hi=capture.hi[part])[0]
    return found[found >= 0].tolist()


def drawn(trace):
    """Keys of a bar trace that have a bar."""
    return [int(x) for x, y in zip(trace.x, trace.y) if not np.isnan(y)]


def test_the_picture_is_the_formula_and_the_kernel_s_selection(make, capture, trace_of):
    panel = make(capture, k=4)
    for settings in ({}, {"k": 1}, {"k": 7}, {"query": 9}, {"query": 0}, {"query": 18, "k": 19}):
        for name, value in settings.items():
            getattr(panel, name).value = value
        panel.wait()
        row, seen = panel.query.value, panel.query.value + 1
        products = capture.q[row] @ capture.k.T
        score = capture.w[row] @ products.relu()
        kept = selected(capture, row, panel.k.value)
        z = np.array(trace_of(panel, "products").z).reshape(4, -1)
        np.testing.assert_allclose(z[:, :seen], products[:, :seen], rtol=1e-5, atol=1e-4)
        assert np.isnan(z[:, seen:]).all(), "a later token is no key"
        weighted = np.array(trace_of(panel, "weighted").z).reshape(4, -1)
        np.testing.assert_allclose(np.nansum(weighted, 0)[:seen], score[:seen], rtol=1e-4)
        assert (np.isnan(weighted[:, :seen]) == (products[:, :seen] <= 0).numpy()).all()
        assert len(trace_of(panel, "zero").x) == int((products[:, :seen] <= 0).sum())
        assert drawn(trace_of(panel, "kept")) == drawn(trace_of(panel, "mass_kept")) == kept
        assert drawn(trace_of(panel, "dropped")) == [key for key in range(seen) if key not in kept]
        assert trace_of(panel, "cut").y[0] == pytest.approx(float(score[kept].min()), rel=1e-5)
        assert panel.strip.kept == kept and panel.strip.here == row
        held = float(capture.mass[row, kept].double().sum())
        assert f"{100 * min(held, 1):.3g} % of its mass" in panel.summary
        frame = panel.to_frame()
        assert frame["position"].tolist() == list(range(seen))
        assert frame.loc[frame["kept"], "position"].tolist() == kept
        assert sorted(frame["rank"]) == list(range(seen))
        np.testing.assert_allclose(frame["score"], score[:seen], rtol=1e-5)


def test_the_sentence_names_the_best_keys_first(make, capture):
    panel = make(capture, k=3)
    best = panel.to_frame().sort_values("rank")["token"][:3]
    assert ", ".join(map(repr, best)) in panel.summary
    assert panel.summary.startswith("layer 11, query 18 ' the' keeps 3 of 19 keys: ")
    assert "ReLU sets 27.6 % of the products to 0" in panel.summary
    panel.k.value = 19
    panel.wait()
    assert " and 13 more" in panel.summary and "no more than k keys: all are kept" in panel.summary


def test_several_layers_open_on_the_middle_one(make, layers, trace_of):
    panel = make(layers)
    assert panel.layer.options == ("5", "11", "17") and panel.layer.value == "11"
    before = trace_of(panel, "products").z
    panel.layer.value = "17"
    panel.wait()
    assert (trace_of(panel, "products").z != before).any() and panel.summary.startswith("layer 17, query 18")
    assert drawn(trace_of(panel, "kept")) == selected(layers[2], 18, 4)
    assert make(layers, layer=5, query=2).summary.startswith("layer 5, query 2")


def test_a_click_on_a_token_opens_its_query(make, capture):
    panel = make(capture)
    panel.strip.picked = [7, 1]
    panel.wait()
    assert panel.query.value == 7 and "query 7 ' wolf' keeps 4 of 8 keys" in panel.summary


def test_of_a_long_text_a_part_is_drawn(make, long, trace_of):
    panel = make(long, k=40)
    assert panel.place.layout.display == "" and len(panel.strip.tokens) == SHOWN
    kept = selected(long, 7, 40)
    for place in (499, 0, 250):
        panel.place.value = place
        panel.wait()
        keys = panel._view.stretch()
        assert len(keys) == SHOWN and place in keys
        assert drawn(trace_of(panel, "kept")) == [key for key in kept if key in keys]
        assert trace_of(panel, "mass_kept").x == () and "not known" in panel.figure.layout.annotations[3].text
    assert "keeps 40 of 500 keys" in panel.summary and "attention gives" not in panel.summary
    assert f"of 500, with {len([key for key in kept if key in keys])} of them" in panel.legend.value
    assert make(recorded("sentence_layer_5")).place.layout.display == "none"


def test_plain_tensors_and_other_weights(make, capture, trace_of):
    panel = make((capture.q, capture.k, capture.w))
    assert panel.strip.tokens == [] and "'key 15'" in panel.summary
    one = replace(capture, w=capture.w * torch.tensor([1.0, 0, 0, 0]))
    panel = make(one)
    assert list(trace_of(panel, "weights").x) == one.w[-1].tolist()
    assert drawn(trace_of(panel, "kept")) == selected(one, 18, 4)
    negative = make(replace(capture, w=-capture.w))
    assert drawn(trace_of(negative, "kept")) == selected(replace(capture, w=-capture.w), 18, 4)
    assert negative.figure.layout.yaxis3.range[0] < float(np.nanmin(trace_of(negative, "dropped").y)) < 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_other_dtypes(make, long, dtype, trace_of):
    small = replace(long, q=long.q.to(dtype), k=long.k.to(dtype))
    panel = make(small, k=9)
    assert sorted(panel.to_frame().query("kept")["position"]) == selected(small, 7, 9)


def test_ties_nan_and_nothing_to_select(make, capture):
    alike = make(replace(capture, k=torch.zeros_like(capture.k)))
    assert "the cut goes through equal scores: the lowest positions stay" in alike.summary
    assert alike.to_frame().query("kept")["position"].tolist() == [0, 1, 2, 3]
    spoiled = make(replace(capture, q=capture.q * torch.nan))
    assert "selects no key: it sees none, or every score is NaN" in spoiled.summary
    assert len(spoiled.to_frame()) == 0
    empty = make(replace(capture, hi=torch.zeros_like(capture.hi)))
    assert "selects no key" in empty.summary and empty.status == ""


def test_nothing_that_is_sent_is_nan(make, capture, long):
    """JSON has no NaN; plotly sends matrices and lists as JSON."""
    for panel in (make(capture, query=3), make(long), make(replace(capture, q=capture.q * torch.nan))):
        for trace in panel.figure.to_dict()["data"]:
            for name, value in trace.items():
                flat = np.array(value, dtype=object).ravel() if isinstance(value, (list, tuple)) else []
                assert not any(isinstance(one, float) and np.isnan(one) for one in flat), (trace["name"], name)


def test_code_gives_what_is_seen(make, capture):
    panel = make(capture, k=5, query=12)
    scope = {"given": capture}
    exec(panel.code().replace("capture = ...", "capture = given"), scope)
    assert scope["indices"][0].tolist() == panel.to_frame().query("kept")["position"].tolist()
    np.testing.assert_allclose(scope["scores"][:13], panel.to_frame()["score"], rtol=1e-5)


def test_an_exported_slider_shows_each_step(make, capture, tmp_path):
    panel = make(capture)
    text = panel.export_html(tmp_path / "one.html", slider="k", steps=5).read_text("utf-8")
    assert "k = 19" in text and "https://" not in html.unescape(text).split("<script")[0]
    assert isinstance(panel.snapshot(), go.Figure) and not isinstance(panel.snapshot(), go.FigureWidget)


def test_tokens_are_escaped(make, capture):
    panel = make(replace(capture, tokens=[f"<b>{i}</b>" for i in range(19)]))
    labels = panel.figure.layout.xaxis4.ticktext
    assert labels[3] == "&lt;b&gt;3&lt;/b&gt;" and "<b>18</b>" not in panel.legend.value
    assert "<b>18</b>" not in panel.figure.layout.annotations[0].text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"query": 19}, "query must be from -19 to 18, got 19"),
        ({"layer": 3}, "layer must be one of '11', got 3"),
        ({"text": "a"}, "text needs a live model"),
    ],
)
def test_what_it_refuses(capture, options, words):
    with pytest.raises(ValueError, match=words):
        IndexerExplorer(capture, **options)


def test_it_refuses_other_types():
    with pytest.raises(TypeError, match="k must be a whole number"):
        IndexerExplorer(recorded("sentence_layer_5"), k=2.5)
    with pytest.raises(TypeError, match="opens on an IndexCapture"):
        IndexerExplorer(3)


def test_a_live_model_reads_what_is_typed(make, tiny_model, trace_of):
    panel = make(tiny_model, text="Hello", k=4)
    assert panel.layer.options == ("0", "1", "2") and panel.layer.value == "1" and panel.query.value == 5
    capture = capture_index(tiny_model, "Hello", layer=1)
    assert drawn(trace_of(panel, "kept")) == selected(capture, 5, 4)
    panel.query.value = 3
    panel.k.value = 2
    panel.text.value = "Another"
    panel.wait(60)
    assert panel.k.value == 2, "another text keeps k"
    assert panel.query.value == 7 and "".join(panel.strip.tokens).endswith("Another")
    panel.query.value = 3
    panel.run_button.click()
    panel.wait(60)
    assert panel.query.value == 3, "the same text: the query that was shown"
    assert "tiny · layer 1 · attention" in panel.caption
    assert "text = 'Another'" in panel.code() and "capture = captures[1]" in panel.code()


def test_a_text_that_cannot_be_read_is_told_and_what_is_seen_stays(make, tiny_model, trace_of):
    panel = make(tiny_model, text="Hello", k=2)
    before = trace_of(panel, "products").z
    panel.text.value = "x" * 100
    with pytest.raises(ValueError, match="64"):
        panel.wait(60)
    assert "64" in panel.status and (trace_of(panel, "products").z == before).all()
    panel.k.value = 3
    panel.wait(60)
    assert len(drawn(trace_of(panel, "kept"))) == 3 and "64" in panel.status


def test_the_first_sentence_is_the_one_that_is_recorded(capture):
    assert "".join(capture.tokens) == f"<bos>{looking_back[0]}"


def test_closing_frees_everything(make, capture, widgets_alive):
    before = widgets_alive()
    panel = IndexerExplorer(capture)
    panel.wait(60)
    panel.close()
    assert widgets_alive() == before and panel._layers == {}
