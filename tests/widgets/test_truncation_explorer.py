"""TruncationExplorer driven as code drives it: what is drawn is what `truncation` says of every position."""

import functools
import math
import threading

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from activations import capture_logits, synthetic
from qp_kernels.qrita import select, truncation
from widgets import TruncationExplorer
from widgets.sorted_rows import CANDIDATE_BUFFER, HIT, MISS, OVERFLOW
from widgets.sources import TensorRows
from widgets.truncation_figure import truncation_figure
from widgets.truncation_view import place, setting_grid

VOCAB = 20_011


class Slow(TensorRows):
    def row(self, index, logits_dtype="float32"):
        threading.Event().wait(0.05)
        return super().row(index, logits_dtype)


@pytest.fixture(scope="module")
def rows():
    """Twelve positions, some of which miss: the bounded ones have fewer candidates than the bell curve says."""
    kinds = ("gaussian", "uniform", "laplace", "bimodal")
    return torch.cat([synthetic.logits(kind, 3, VOCAB, seed=5) for kind in kinds])


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, TruncationExplorer)


def limits_of(panel):
    setting = getattr(panel, panel.over.value).value
    return {panel.over.value: setting}


def expected_of(panel, rows):
    scaled = (rows + panel.shift.value) / panel.temperature.value
    return truncation(scaled, **limits_of(panel), margin=panel.margin.value, rule=panel.rule.value)


SETTINGS = (
    {"k": 500},
    {"margin": 0.0},
    {"rule": "paper"},
    {"shift": -300.0},
    {"shift": 0.0, "temperature": 0.5},
    {"k": 0},
    {"over": "p"},
    {"p": 0.999},
    {"temperature": 1.3, "rule": "sigma"},
    {"p": 1.0},
)


def test_candidates_and_states_are_those_of_truncation(make, rows, trace_of):
    panel = make(rows)
    for settings in SETTINGS:
        for name, value in settings.items():
            getattr(panel, name).value = value
        panel.wait(30)
        stats = expected_of(panel, rows)
        assert trace_of(panel, "candidates").y.tolist() == np.maximum(stats.kept.numpy(), 0.7).tolist(), settings
        states = {"miss": ~stats.hit, "overflow": stats.hit & stats.overflow, "hit": stats.hit & ~stats.overflow}
        for name, where in states.items():
            drawn = trace_of(panel, name).x
            assert ([] if drawn is None else list(drawn)) == where.nonzero().flatten().tolist(), (settings, name)
            assert f"{int(where.sum())} {'of 12 positions hit' if name == 'hit' else name}" in panel.summary
        kept = np.sort(stats.kept.numpy())
        assert f"median {kept[5]:,} (" in panel.summary and f"p99 {kept[11]:,} ·" in panel.summary
        assert f"t = {float(stats.threshold[11]):.4g} leaves {int(stats.kept[11]):,} for " in panel.summary


@pytest.mark.parametrize("over", ["k", "p"])
def test_the_map_holds_every_position_and_setting(make, rows, trace_of, over):
    panel = make(rows, over=over, temperature=0.7)
    grid, drawn = setting_grid(over, VOCAB), trace_of(panel, "map")
    np.testing.assert_allclose(drawn.y, np.round(place(over, grid), 1) if over == "k" else place(over, grid), atol=0.1)
    for i, setting in enumerate(grid.tolist()):
        stats = truncation(rows / 0.7, **{over: setting})
        state = np.where(~stats.hit, MISS, np.where(stats.overflow, OVERFLOW, HIT))
        assert list(drawn.z[i]) == state.tolist(), setting
        assert drawn.customdata[i][:, 1].tolist() == stats.kept.tolist()
    # Four strokes (two ends and a gap each) in every cell that is no hit: the state is not told by colour alone.
    for name, state in (("miss_hatch", MISS), ("overflow_hatch", OVERFLOW)):
        assert len(trace_of(panel, name).x) == 4 * 3 * (np.asarray(drawn.z) == state).sum()


def test_the_open_row_shows_threshold_and_real_cut(make, rows, trace_of):
    panel = make(rows, k=40, position=1, margin=0.0)
    ordered = torch.sort(rows[1], descending=True).values
    stats = truncation(rows[1], k=40, margin=0.0)
    assert trace_of(panel, "cut").x[0] == float(ordered[39])
    assert trace_of(panel, "threshold").x[0] == pytest.approx(float(stats.threshold))
    assert sum(trace_of(panel, "kept").y) == 40
    assert sum(trace_of(panel, "kept").y) + sum(trace_of(panel, "dropped").y) == VOCAB
    panel.over.value, panel.p.value = "p", 0.5
    panel.wait(30)
    assert sum(trace_of(panel, "kept").y) == int(select(rows[1], p=0.5).count)
    assert trace_of(panel, "wanted").y.tolist() == select(rows, p=0.5).count.tolist()


def test_a_click_opens_a_position(make, rows, trace_of):
    panel = make(rows)
    for name in ("map", "candidates"):
        here = 3 if name == "map" else 7
        points = type("Points", (), {"xs": [here]})
        for callback in trace_of(panel, name)._click_callbacks:
            callback(None, points, None)
        panel.wait(30)
        assert panel.position.value == here and f"position {here}: t = " in panel.summary
        assert list(trace_of(panel, "here_map").x) == [here, here]


def test_a_threshold_beyond_the_axis_is_still_named(make, rows, trace_of):
    panel = make(rows, rule="paper")
    panel.shift.value = -300.0
    panel.wait(30)
    mark = trace_of(panel, "threshold")
    assert mark.text[1].strip() == f"← t: {VOCAB:,} candidates" and len(set(mark.x)) == 1 == len(set(mark.y))
    assert panel.figure.layout.xaxis3.range[0] <= mark.x[0] < -250


def test_trace_names_are_stable_and_lines_are_few(make, rows):
    names = [trace.name for trace in truncation_figure().data]
    assert len(set(names)) == len(names)
    panel = make(rows)
    panel.rule.value, panel.shift.value = "paper", -300.0
    panel.wait(30)
    assert [trace.name for trace in panel.figure.data] == names
    assert all(len(trace.x) < 10_000 for trace in panel.figure.data if trace.x is not None)


def test_k_or_p_alone_decides_what_is_asked(make, rows):
    assert make(rows, k=0, p=0.5).over.value == "p"
    assert make(rows, k=None, p=None).over.value == "k"
    panel = make(rows)
    assert panel.over.value == "k" and panel.p.layout.display == "none"
    panel.over.value = "p"
    panel.wait(30)
    assert panel.k.layout.display == "none" and panel.p.layout.display == ""
    assert panel.summary.startswith("p = 0.9, σ margin 0.2, T = 1: ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"position": 12}, ValueError),
        ({"position": 1.5}, TypeError),
        ({"k": -2}, ValueError),
        ({"p": 1.5}, ValueError),
        ({"temperature": 0}, ValueError),
        ({"margin": -0.1}, ValueError),
        ({"rule": "none"}, ValueError),
        ({"over": "T"}, ValueError),
        ({"backend": "cuda"}, ValueError),
        ({"text": "no model here"}, ValueError),
    ],
)
def test_bad_arguments_say_what_is_accepted(rows, arguments, error):
    before = threading.active_count()
    with pytest.raises(error):
        TruncationExplorer(rows, **arguments)
    assert threading.active_count() == before


def test_a_row_that_cannot_be_drawn_is_an_error_and_the_others_are_shown(make, rows, trace_of):
    bad = rows.clone()
    bad[1] = -math.inf
    panel = make(bad, position=0)
    panel.position.value = 1
    with pytest.raises(ValueError, match="no eligible entry"):
        panel.wait(30)
    assert "no eligible entry" in panel.status
    panel.position.value = 2
    panel.wait(30)
    assert panel.status == "" and len(trace_of(panel, "candidates").x) == 12


@pytest.mark.parametrize("settings", SETTINGS)
def test_code_reproduces_what_is_seen(make, rows, run_code, settings):
    panel = make(rows)
    for name, value in settings.items():
        getattr(panel, name).value = value
    panel.wait(30)
    stats, frame = run_code(panel, "stats", rows), panel.to_frame()
    for name in ("kept", "hit", "overflow", "threshold"):
        assert frame[name].tolist() == getattr(stats, name).tolist(), name
    assert frame["position"].tolist() == list(range(12))


def test_snapshot_and_export(make, rows, trace_of, tmp_path):
    panel = make(rows)
    still = panel.snapshot()
    assert isinstance(still, go.Figure) and not isinstance(still, go.FigureWidget)
    drawn = list(trace_of(still, "candidates").y)
    panel.margin.value = 0.0
    panel.wait(30)
    assert list(trace_of(still, "candidates").y) == drawn != list(trace_of(panel, "candidates").y)
    text = panel.export_html(tmp_path / "view.html", slider="shift", steps=5).read_text(encoding="utf-8")
    assert "shift = -400" in text and "12 of 12 positions" not in text.split("shift = -400")[0][-50:]
    assert 'src="http' not in text
    for bad in ("q", "p"):
        with pytest.raises(ValueError):
            panel.export_html(tmp_path / "x.html", slider=bad)
    assert not (tmp_path / "x.html").exists()


def test_a_slider_in_a_file_shows_what_the_panel_would(make, rows, trace_of):
    panel = make(rows)
    names, views, active = panel._slider_views("k", 6)
    traces, layout = views[-1]
    assert names[-1] == f"k = {VOCAB}" and "k = 50" in names[active]
    panel.k.value = VOCAB
    panel.wait(30)
    assert traces["candidates"]["y"].tolist() == trace_of(panel, "candidates").y.tolist()
    assert panel.summary in layout.values()


def test_close_leaves_nothing_behind(rows, widgets_alive):
    before = widgets_alive()
    panel = TruncationExplorer(rows)
    panel.wait(30)
    panel.close()
    assert widgets_alive() == before
    assert not panel._worker.alive and panel._rows is None and panel._known is None and not panel._tensors
    panel.close()


def test_long_texts_are_looked_at_evenly_and_any_position_opens(make, trace_of):
    rows = torch.randn(250, 600, generator=torch.Generator().manual_seed(2))
    panel = make(rows, position=100)
    assert trace_of(panel, "candidates").x.tolist() == list(range(0, 250, 3))
    assert panel.to_frame()["kept"].tolist() == truncation(rows[::3], k=50).kept.tolist()
    for here in (101, 200, 249, 0):
        panel.position.value = here
        panel.wait(30)
        assert f"position {here}: t = {float(truncation(rows[here], k=50).threshold):.4g} " in panel.summary


def test_cancel_keeps_what_is_read_and_the_rest_can_be_asked_for(rows, trace_of):
    gate = threading.Event()
    panel = TruncationExplorer(Slow(rows), k=5)
    try:
        while "reading positions" not in panel.status:
            gate.wait(0.01)
        assert panel._cancel_button.layout.display == ""
        panel._cancel_button.click()
        panel.wait(30)
        assert panel.status.startswith("cancelled: reading positions")
        panel.k.value = 6
        panel.wait(30)
        read = len(panel.to_frame())
        assert sum(cell is None for cell in trace_of(panel, "map").z[0]) == 12 - read
        assert 0 < read < 12 and f"({read} of 12 read)" in panel.summary
        assert panel.scan_button.layout.display == ""
        panel.scan_button.click()
        panel.wait(30)
        assert len(panel.to_frame()) == 12 and panel.scan_button.layout.display == "none"
        assert "read)" not in panel.summary and panel.status == ""
    finally:
        panel.close()


def test_sliders_move_while_positions_are_read(rows):
    gate = threading.Event()
    panel = TruncationExplorer(Slow(rows), k=5)
    try:
        while "reading positions" not in panel.status:
            gate.wait(0.01)
        panel.k.value = 7
        while not panel.summary.startswith("k = 7,"):
            gate.wait(0.005)
        assert len(panel.to_frame()) < 12, "the slider waited for the reading to end"
        panel.wait(30)
        assert len(panel.to_frame()) == 12
    finally:
        panel.close()


def test_a_live_model_shows_every_token_and_another_text(make, tiny_model, trace_of):
    panel = make(tiny_model, text="<b>ab</b>", k=5)
    assert len(trace_of(panel, "candidates").x) == len("<b>ab</b>") + 1
    assert panel.to_frame()["token"].tolist()[1:] == list("<b>ab</b>")
    assert (
        "&lt;" in "".join(trace_of(panel, "hit").customdata) and "<b><</b>" not in trace_of(panel, "hit").customdata[1]
    )
    panel.strip.picked = [2, 1]
    panel.wait(60)
    assert panel.position.value == 2
    panel.text.value = "Another text"
    panel.wait(60)
    assert len(panel.to_frame()) == len("Another text") + 1
    assert "tiny" in panel.caption and "t from a sample of 300" in panel.caption
    panel.text.value = ""
    with pytest.raises(ValueError, match="empty"):
        panel.wait(60)
    assert len(panel.to_frame()) == len("Another text") + 1


def test_code_of_a_live_view(make, tiny_model):
    panel = make(tiny_model, text="Hello", k=5)
    scope = {"model": tiny_model}
    exec(panel.code().replace("lm = ...", "lm = model"), scope)
    assert scope["stats"].kept.tolist() == panel.to_frame()["kept"].tolist()


def test_the_model_s_own_dtype_is_another_stack_of_rows(make, tiny_model):
    capture = capture_logits(tiny_model, "Hello")
    panel = make(capture, k=5)
    panel.logits_dtype.value = "model"
    panel.wait(60)
    assert len(panel.to_frame()) == 6 and "logits_dtype='model'" in panel.code()


@pytest.mark.parametrize("over", ["k", "p"])
def test_soft_masks_become_infinite_at_a_low_temperature(make, rows, trace_of, over):
    masked = rows.clone()
    masked[:, 100:] = torch.finfo(torch.float32).min
    panel = make(masked, over=over, k=500, p=0.9, temperature=0.5)
    stats = truncation(masked / 0.5, **limits_of(panel))
    assert panel.to_frame()["kept"].tolist() == stats.kept.tolist()
    eligible = 100 if over == "k" else int(select(masked[11] / 0.5, p=0.9).count)
    assert sum(trace_of(panel, "kept").y) == eligible


def test_the_buffer_is_the_kernels(make, rows, trace_of):
    assert list(trace_of(make(rows), "buffer").y) == [CANDIDATE_BUFFER] * 2


@pytest.mark.parametrize("vocab", [1, 2, 513])
def test_small_vocabularies_open(make, vocab):
    panel = make(torch.randn(2, vocab), p=0.5)
    panel.over.value = "p"
    panel.wait(30)
    assert "2 of 2 positions" in panel.summary
