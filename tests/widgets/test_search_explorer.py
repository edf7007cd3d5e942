"""SearchExplorer driven as code drives it: what is drawn is what `trace_search` lists; the ties are the kernel's."""

import functools
import math
import threading
import time

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from activations import capture_logits, recorded, synthetic
from qp_kernels.qrita import top_k_top_p, trace_search
from widgets import SearchExplorer
from widgets.search_figure import even_ticks, search_figure
from widgets.search_view import told_apart

VOCAB = 5003


@pytest.fixture(scope="module")
def rows():
    """Rows without ties, with many, of a peak, and with values that are never eligible."""
    rows = torch.cat([synthetic.logits(kind, 1, VOCAB, seed=4) for kind in ("gaussian", "ties", "peaked", "laplace")])
    rows[3, ::5], rows[3, 1], rows[3, 2:4] = -math.inf, math.nan, math.inf
    return rows


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, SearchExplorer)


def steps_of(panel, rows):
    limits = {"k": panel.k.value or None, "p": panel.p.value if panel.p.value < 1 else None}
    return trace_search(rows[panel.position.value], **limits, search=panel.search.value, space=panel.space.value)


def values(trace, name):
    return [] if trace[name] is None else list(trace[name])


SETTINGS = (
    {"k": 40, "p": 1.0},
    {"k": 0, "p": 0.9},
    {"k": 700, "p": 0.5},
    {"k": 700, "p": 0.99, "search": "binary"},
    {"k": 90, "p": 0.7, "space": "bits"},
    {"k": 4000, "p": 1.0, "space": "bits", "search": "binary"},
)


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_step_is_drawn_as_it_is_traced(make, rows, trace_of, settings, position):
    panel = make(rows, position=position, **settings)
    steps = steps_of(panel, rows)
    assert panel.step.grid == list(range(1, len(steps) + 1))
    for number, traced in enumerate(steps, 1):
        panel.step.value = number
        panel.wait(30)
        step, target = traced.as_logits(), panel.k.value if traced.stage == "k" else panel.p.value
        amounts = traced.counts if traced.stage == "k" else traced.masses
        enough, few = trace_of(panel, "enough"), trace_of(panel, "too_few")
        assert values(enough, "x") + values(few, "x") == list(step.pivots)
        assert len(values(enough, "x")) == sum(amount >= target for amount in amounts)
        said = [f"{amount:,}" for amount in amounts] if traced.stage == "k" else None
        if said is not None:
            assert [text.strip() for text in values(enough, "text") + values(few, "text")] == said
        assert f"step {number} of {len(steps)}, {traced.stage} = {target:,} among" in panel.summary
        assert f"{traced.bytes_read:,} bytes read so far" in panel.summary
        assert ("stops: the cut is" in panel.summary) == traced.stop
        if not traced.stop:
            following = steps[number].as_logits()
            seen = np.clip([following.lo, following.hi], *panel.figure.layout.xaxis.range)
            assert trace_of(panel, "next").x[:2].tolist() == seen.tolist()
    assert f"{steps[-1].kept:,} are kept" in panel.summary


@pytest.mark.parametrize("settings", SETTINGS)
def test_both_searches_stand_side_by_side(make, rows, trace_of, settings):
    panel = make(rows, position=0, **settings)
    limits = {"k": panel.k.value or None, "p": panel.p.value if panel.p.value < 1 else None}
    for search in ("quaternary", "binary"):
        steps = trace_search(rows[0], **limits, search=search, space=panel.space.value)
        assert values(trace_of(panel, f"bytes_{search}"), "y") == [step.bytes_read / 1e3 for step in steps]
        assert values(trace_of(panel, f"left_{search}"), "x") == list(range(1, len(steps) + 1))
        assert f"{search}: {len(steps)} steps and {steps[-1].bytes_read:,} bytes" in panel.summary
    frame = panel.to_frame()
    assert set(frame["search"]) == {"quaternary", "binary"} and {"lo", "hi", "min_above"} <= set(frame)


def test_what_is_left_shrinks_to_the_entries_equal_to_the_cut(make, rows, trace_of):
    for position, settings in ((0, {"k": 40}), (1, {"k": 40}), (1, {"k": 40, "space": "bits"})):
        panel = make(rows, position=position, p=1.0, **settings)
        left = values(trace_of(panel, "left_quaternary"), "y")
        step = steps_of(panel, rows)[0]
        low, high = step.as_logits().lo, step.as_logits().hi
        row = rows[position]
        inside = (row >= low) & ((row < high) if panel.space.value == "bits" else (row <= high))
        assert left[0] == int(inside.sum())
        assert left == sorted(left, reverse=True) and left[-1] >= steps_of(panel, rows)[-1].multiplicity


def test_the_curve_counts_what_stands_at_or_above(make, rows, trace_of):
    panel = make(rows, position=0, k=40, p=1.0)
    for number in (1, 3):
        panel.step.value = number
        panel.wait(30)
        drawn = trace_of(panel, "amount")
        for x, y in zip(drawn.x[::7], drawn.y[::7], strict=True):
            assert y == max(int((rows[0].double() >= x).sum()), y * (y < 1))
    panel.k.value, panel.p.value = 0, 0.9
    panel.wait(30)
    mass = torch.softmax(rows[0].double(), 0)
    drawn = trace_of(panel, "amount")
    for x, y in zip(drawn.x[::7], drawn.y[::7], strict=True):
        assert y == pytest.approx(float(mass[rows[0].double() >= x].sum()), abs=1e-6)


@pytest.mark.parametrize("settings", [{"k": 40, "p": 1.0}, {"k": 0, "p": 0.9}, {"k": 300, "p": 0.95}])
def test_ties_stay_and_go_as_the_kernel_says(make, rows, trace_of, settings):
    panel = make(rows, position=1, **settings)
    panel.step.value = panel.step.grid[-1]
    panel.wait(30)
    limits = {"k": settings["k"] or None, "p": settings["p"] if settings["p"] < 1 else None}
    kept = top_k_top_p(rows[1], **limits).isfinite()
    cut = rows[1][kept].min()
    equal = (rows[1] == cut).nonzero().flatten().tolist()
    stay = [index for index in equal if kept[index]]
    heading = panel.figure.layout.annotations[1].text
    assert f"{len(equal):,} entries equal it, {len(stay):,} stay, {len(equal) - len(stay):,} go" in heading
    drawn = {name: trace_of(panel, name) for name in ("stays", "goes")}
    for name, wanted in (("stays", stay), ("goes", [i for i in equal if not kept[i]])):
        for place, words in zip(values(drawn[name], "x"), values(drawn[name], "customdata"), strict=True):
            assert equal[place - 1] in wanted and f"index {equal[place - 1]:,}: {name}" in words
    assert trace_of(panel, "tie_cut").x[0] == len(stay) + 0.5


def test_stages_show_their_own_ties(make, rows):
    panel = make(rows, position=1, k=300, p=0.95)
    steps = steps_of(panel, rows)
    for stage in "kp":
        last = max(i for i, step in enumerate(steps, 1) if step.stage == stage)
        panel.step.value = last
        panel.wait(30)
        heading = panel.figure.layout.annotations[1].text
        assert heading.startswith(f"<b>Cut {steps[last - 1].min_above:.4g}</b>")
        assert f", {steps[last - 1].ties:,} stay" in heading


def test_buttons_and_slider_go_step_by_step(make, rows):
    panel = make(rows, position=0, k=40, p=1.0, step=2)
    last = panel.step.grid[-1]
    assert panel.step.value == 2 and panel.summary.startswith(f"step 2 of {last}, ")
    panel.next_button.click()
    panel.wait(30)
    assert panel.summary.startswith(f"step 3 of {last}, ")
    for _ in range(9):
        panel.back_button.click()
    panel.wait(30)
    assert panel.step.value == 1
    for _ in range(30):
        panel.next_button.click()
    panel.wait(30)
    assert panel.step.value == last
    panel.k.value, panel.p.value, panel.search.value = 700, 0.99, "binary"
    panel.wait(30)
    assert panel.step.value == last < panel.step.grid[-1], "another k keeps the step that is seen"


def test_both_limits_off_is_an_error_in_the_panel(make, rows):
    panel = make(rows, k=40, p=1.0)
    panel.k.value = 0
    with pytest.raises(ValueError, match="both off.*set k to 1"):
        panel.wait(30)
    assert "both off" in panel.status
    panel.p.value = 0.5
    panel.wait(30)
    assert panel.status == "" and panel.summary.startswith("step 1 of ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"position": 4}, ValueError),
        ({"position": 1.5}, TypeError),
        ({"k": -2}, ValueError),
        ({"p": 1.5}, ValueError),
        ({"search": "ternary"}, ValueError),
        ({"space": "ulp"}, ValueError),
        ({"step": 0}, ValueError),
        ({"step": 1.5}, ValueError),
        ({"backend": "cuda"}, ValueError),
        ({"text": "no model here"}, ValueError),
    ],
)
def test_bad_arguments_say_what_is_accepted(rows, arguments, error):
    before = threading.active_count()
    with pytest.raises(error):
        SearchExplorer(rows, **arguments)
    assert threading.active_count() == before


@pytest.mark.parametrize("settings", SETTINGS)
def test_code_reproduces_what_is_seen(make, rows, run_code, settings):
    panel = make(rows, position=1, **settings)
    steps = run_code(panel, "steps", rows)
    assert steps == steps_of(panel, rows)
    frame = panel.to_frame()
    assert frame[frame["search"] == panel.search.value]["bytes_read"].tolist() == [step.bytes_read for step in steps]


def test_rows_of_16_bits_are_read_as_such(make, rows, run_code):
    narrow = rows.to(torch.bfloat16)
    panel = make(narrow, position=0, k=40, p=1.0)
    assert run_code(panel, "steps", narrow) == trace_search(narrow[0], 40)
    assert f"{trace_search(narrow[0], 40)[0].bytes_read:,} bytes read so far" in panel.summary


def test_trace_names_are_stable(make, rows):
    names = [trace.name for trace in search_figure().data]
    assert len(set(names)) == len(names)
    panel = make(rows)
    panel.space.value = "bits"
    panel.wait(30)
    assert [trace.name for trace in panel.figure.data] == names


def test_snapshot_and_export(make, rows, trace_of, tmp_path):
    panel = make(rows, position=0, k=40, p=1.0)
    still = panel.snapshot()
    assert isinstance(still, go.Figure) and not isinstance(still, go.FigureWidget)
    before = list(trace_of(still, "amount").x)
    panel.step.value = 3
    panel.wait(30)
    assert list(trace_of(still, "amount").x) == before != list(trace_of(panel, "amount").x)
    for slider in ("step", "k", "p"):
        text = panel.export_html(tmp_path / "view.html", slider=slider, steps=6).read_text(encoding="utf-8")
        assert f"{slider} = " in text and 'src="http' not in text
    names, views, active = panel._slider_views("step", 50)
    assert names == [f"step = {i}" for i in panel.step.grid] and active == 2
    assert panel.summary in views[2][1].values()
    with pytest.raises(ValueError):
        panel.export_html(tmp_path / "x.html", slider="T")


def test_close_leaves_nothing_behind(rows, widgets_alive):
    before = widgets_alive()
    panel = SearchExplorer(rows)
    panel.wait(30)
    panel.close()
    assert widgets_alive() == before
    assert not panel._worker.alive and panel._rows is None and not panel._traces and not panel._facts


def test_a_live_model_and_names_that_are_markup(make, tiny_model, trace_of):
    panel = make(tiny_model, text="<b>", k=5, p=1.0)
    assert panel.position.value == 3 and "tiny" in panel.caption and "torch back-end · steps traced" in panel.caption
    panel.strip.picked = [1, 1]
    panel.wait(60)
    assert panel.position.value == 1
    panel._rows.label = lambda ids: ["<i>&</i>" for _ in ids]
    panel.k.value = 6
    panel.wait(60)
    assert trace_of(panel, "stays").text[0] == "&lt;i&gt;&amp;&lt;/i&gt;"
    panel.text.value = ""
    with pytest.raises(ValueError, match="empty"):
        panel.wait(60)


def test_code_of_a_live_view_and_of_the_model_s_dtype(make, tiny_model):
    panel = make(capture_logits(tiny_model, "Hello"), k=5, p=1.0)
    panel.logits_dtype.value = "model"
    panel.wait(60)
    scope = {"made": panel._rows.capture}
    exec(panel.code().replace("capture = ...", "capture = made"), scope)
    assert len(scope["steps"]) == panel.step.grid[-1]


@pytest.mark.parametrize("vocab", [1, 2, 513])
def test_small_vocabularies_open(make, vocab):
    panel = make(torch.randn(2, vocab), k=1, p=0.5)
    assert panel.summary.startswith("step 1 of ")


@pytest.mark.parametrize(
    "row", [[0.0, 0.0, 0.0], [math.inf, 1.0, math.inf], [-math.inf, 2.0, 1.0], [3e38, -3e38, 0.0], [5e-324, 0.0, 1.0]]
)
@pytest.mark.parametrize("space", ["value", "bits"])
def test_odd_rows_have_a_picture(make, row, space):
    panel = make(torch.tensor(row), k=2, p=0.5, space=space)
    for step in panel.step.grid[:20]:
        panel.step.value = step
        panel.wait(30)


def test_a_row_without_eligible_entries_is_an_error(rows):
    panel = SearchExplorer(torch.full((1, 700), -math.inf))
    with pytest.raises(ValueError, match="no eligible entry"):
        panel.wait(30)
    panel.close()


def test_ticks_are_round_and_inside():
    assert even_ticks(140, 320, True) == [150, 200, 250, 300]
    assert even_ticks(0.2, 3.4, True) == [1, 2, 3]
    np.testing.assert_allclose(even_ticks(0.98997, 0.99031, False), [0.99, 0.9901, 0.9902, 0.9903])


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02, 0.05, 0.1])
def test_a_type_that_changes_while_the_first_job_runs(make, delay_s):
    """Rows and steps are kept by the type they were made for, never by the one that came meanwhile."""
    capture = recorded("openers")
    panel = make(capture, k=50, p=0.9, position=0)
    time.sleep(delay_s)
    panel.logits_dtype.value = "model"
    panel.wait(30)
    row = capture.logits([0], logits_dtype="model")[0]
    want = trace_search(row.to(capture.source.model_dtype), 50, 0.9)
    assert panel._view.steps == want
    panel.logits_dtype.value = "float32"
    panel.wait(30)
    assert panel._view.steps == trace_search(capture.logits([0], logits_dtype="float32")[0], 50, 0.9)


def test_the_type_of_the_logits_from_the_start(make):
    panel = make(recorded("openers"), logits_dtype="model", position=0)
    assert panel._view.dtype == "model" and "logits_dtype='model'" in panel.code()
    with pytest.raises(ValueError, match="logits_dtype must be one of"):
        SearchExplorer(torch.zeros(5), logits_dtype="bf16")


def test_pivots_are_told_apart():
    assert told_apart((8.8331, 8.8334, 8.8338)) == ["8.8331", "8.8334", "8.8338"]
    assert told_apart((1.0, 2.0)) == ["1", "2"]
