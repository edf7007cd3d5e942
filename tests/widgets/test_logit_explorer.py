"""LogitExplorer driven as code drives it: traits in, figure data and text out. No browser, no real model."""

import functools
import math
import threading

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
import traitlets

from activations import save_capture, synthetic
from qp_kernels.qrita import top_k_top_p
from widgets import LogitExplorer
from widgets.sources import open_rows


@pytest.fixture(scope="module")
def rows():
    return torch.randn(4, 3001, generator=torch.Generator().manual_seed(1)) * 3


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, LogitExplorer)


def trace(panel, name):
    return next(t for t in panel.figure.data if t.name == name)


def kept_count(panel):
    return int(sum(trace(panel, "kept").y))


def test_the_figure_shows_what_the_kernel_keeps(make, rows):
    panel = make(rows, k=40, p=0.9)
    for settings in (
        {"k": 7},
        {"k": 0},
        {"p": 0.5},
        {"p": 1.0},
        {"k": 3001, "p": 0.999},
        {"position": 0},
        {"order": "joint", "k": 20},
    ):
        for name, value in settings.items():
            getattr(panel, name).value = value
        panel.wait(30)
        limits = {"k": panel.k.value or None, "p": panel.p.value if panel.p.value < 1 else None}
        expected = top_k_top_p(rows[panel.position.value], **limits, order=panel.order.value).isfinite().sum()
        assert kept_count(panel) == int(expected), settings
        assert f"{int(expected):,} of 3,001 tokens kept" in panel.summary
        assert trace(panel, "cut").x[0] == panel.to_frame(limit=4000)["logit"].min()


def test_trace_names_are_stable(make, rows):
    panel = make(rows)
    names = [t.name for t in panel.figure.data]
    assert {"kept", "dropped", "normal", "cut", "threshold", "qq", "before", "after", "min_p", "top_n_sigma"} <= set(
        names
    )
    panel.k.value = 5
    panel.wait(30)
    assert [t.name for t in panel.figure.data] == names


def test_position_negative_counts_from_the_end(make, rows):
    assert make(rows).position.value == 3
    assert make(rows, position=-4).position.value == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"position": 4}, ValueError),
        ({"position": 1.5}, TypeError),
        ({"k": -2}, ValueError),
        ({"k": 2.5}, ValueError),
        ({"p": 1.5}, ValueError),
        ({"p": float("nan")}, ValueError),
        ({"temperature": -1}, ValueError),
        ({"backend": "cuda"}, ValueError),
        ({"text": "no model here"}, ValueError),
    ],
)
def test_bad_arguments_say_what_is_accepted(rows, arguments, error):
    before = threading.active_count()
    with pytest.raises(error):
        LogitExplorer(rows, **arguments)
    assert threading.active_count() == before, "a panel that could not be made left its thread behind"


@pytest.mark.parametrize(
    "source", [torch.zeros(2, 3, 4), torch.zeros(0, 5), torch.arange(5), {"logits": 1}, "missing.npy", None]
)
def test_bad_sources_say_what_is_accepted(source):
    with pytest.raises((TypeError, ValueError, FileNotFoundError)):
        LogitExplorer(source)


def test_files(make, rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows.numpy())
    np.savez(tmp_path / "rows.npz", logits=rows.numpy(), other=np.zeros(3))
    for name in ("rows.npy", "rows.npz"):
        panel = make(str(tmp_path / name), k=11, p=1.0)
        assert kept_count(panel) == 11
        scope = {}
        exec(panel.code(), scope)
        assert int(scope["kept"].isfinite().sum()) == 11
    np.savez(tmp_path / "two.npz", a=rows.numpy(), b=rows.numpy())
    with pytest.raises(ValueError, match="name one of them 'logits'"):
        LogitExplorer(tmp_path / "two.npz")
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError):
        LogitExplorer(tmp_path / "pickle.npy")
    (tmp_path / "text.txt").write_text("1 2 3")
    with pytest.raises(ValueError, match="only .safetensors, .npy and .npz"):
        LogitExplorer(tmp_path / "text.txt")
    index = save_capture(synthetic.index(2, 5, 1, 4, smoothness=0.5, seed=0), tmp_path / "index.safetensors")
    with pytest.raises(ValueError, match="holds queries and keys of an indexer, and no logits"):
        LogitExplorer(index)


def test_a_row_that_cannot_be_drawn_is_an_error_in_the_panel_and_the_next_one_works(make, rows):
    bad = rows.clone()
    bad[1] = -math.inf
    panel = make(bad, position=0)
    panel.position.value = 1
    with pytest.raises(ValueError, match="no eligible entry"):
        panel.wait(30)
    assert "no eligible entry" in panel.status
    panel.position.value = 2
    panel.wait(30)
    assert panel.status == "" and kept_count(panel) > 0


def test_a_refused_entry_is_told_and_keeps_the_picture(make, rows):
    panel = make(rows, k=9, p=1.0)
    panel.k._box.value = 99999
    assert "k must be a whole number from 0 to 3,001, got 99999" in panel.status
    assert panel.k.value == 9 and kept_count(panel) == 9
    panel.k.value = 8
    panel.wait(30)
    assert panel.status == "" and kept_count(panel) == 8


def test_sample_marks_draws_and_a_new_setting_forgets_them(make, rows):
    panel = make(rows, k=3, p=1.0)
    for _ in range(20):
        panel.sample_button.click()
    panel.wait(30)
    drawn = trace(panel, "drawn")
    assert sum(drawn.x) == pytest.approx(1.0) and "of 20" in drawn.customdata[0]
    assert "drawn: " in panel.summary
    panel.k.value = 2
    panel.wait(30)
    assert not trace(panel, "drawn").x and "drawn" not in panel.summary


def test_sampling_never_leaves_the_kept_set(make, rows):
    panel = make(rows, k=5, p=0.6)
    panel.order.value = "joint"
    for _ in range(30):
        panel.sample_button.click()
    panel.wait(30)
    assert set(panel._draws.counts) <= set(panel.to_frame()["id"])


def test_snapshot_and_export(make, rows, tmp_path):
    panel = make(rows, k=12)
    still = panel.snapshot()
    assert isinstance(still, go.Figure) and not isinstance(still, go.FigureWidget)
    panel.k.value = 3
    panel.wait(30)
    assert sum(next(t for t in still.data if t.name == "kept").y) > 3
    path = panel.export_html(tmp_path / "view.html", slider="k", steps=10)
    text = path.read_text(encoding="utf-8")
    assert "k = 3001" in text and "<script" in text
    assert 'src="http' not in text and "<b><b>" not in text
    assert not list(tmp_path.glob(".*"))
    for bad in ({"slider": "q"}, {"slider": "k", "steps": 51}):
        with pytest.raises(ValueError):
            panel.export_html(tmp_path / "x.html", **bad)
    assert not (tmp_path / "x.html").exists()


def test_exported_slider_restyles_every_trace(make, rows):
    from widgets.painting import add_slider

    panel = make(rows, k=12)
    figure = panel.snapshot()
    names, views, active = panel._slider_views("k", 8)
    add_slider(figure, names, views, active)
    slider = figure.layout.sliders[0]
    restyle, relayout, traces = slider.steps[-1].args
    assert slider.active == active and slider.steps[active].label == "k = 12", "the handle is not where the picture is"
    assert relayout["annotations[3].text"].startswith("k = 3,001, ")
    place = traces.index([t.name for t in figure.data].index("before"))
    assert restyle["width"][place] == figure.data[traces[place]].width
    nucleus = int(top_k_top_p(rows[3], p=0.9).isfinite().sum())
    assert sum(restyle["y"][traces.index([t.name for t in figure.data].index("kept"))]) == nucleus


def test_to_frame_holds_the_kept_tokens(make, rows):
    frame = make(rows, k=6, p=1.0, position=2).to_frame()
    top = torch.sort(rows[2], descending=True, stable=True)
    assert frame["id"].tolist() == top.indices[:6].tolist()
    assert frame["probability_after"].sum() == pytest.approx(1.0)
    np.testing.assert_allclose(frame["probability"], torch.softmax(rows[2].double(), 0)[top.indices[:6]], rtol=1e-9)


def test_close_ends_everything(rows):
    panel = LogitExplorer(rows)
    panel.wait(30)
    figure = panel.figure
    panel.close()
    assert not panel._worker.alive and panel._rows is None and not panel._facts
    assert figure.comm is None
    panel.close()  # twice is harmless


def test_running_a_cell_again_closes_its_earlier_panel(monkeypatch, rows):
    from widgets.panels import base

    run = iter([("cell", "run 1"), ("cell", "run 1"), ("cell", "run 2"), ("other", "run 3")])
    monkeypatch.setattr(base, "_running_cell", lambda: next(run))
    monkeypatch.setattr(base, "_shown_by_cell", {})
    first, second, third, other = (LogitExplorer(rows) for _ in range(4))
    for panel in (third, other):
        panel.wait(30)
    assert not first._worker.alive and not second._worker.alive
    assert third._worker.alive and other._worker.alive
    third.close()
    other.close()


def test_panel_nests_and_shows(make, rows):
    import ipywidgets as w

    panel = make(rows)
    assert w.HBox([panel]).children == (panel,)
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()


@pytest.mark.parametrize("vocab", [1, 2, 30, 49, 50, 51])
def test_small_vocabularies_open_with_the_defaults(make, vocab):
    panel = make(torch.randn(vocab))
    assert kept_count(panel) >= 1 and panel.k.value == min(50, vocab)


def test_close_leaves_no_widget_behind(rows, widgets_alive):
    before = widgets_alive()
    panel = LogitExplorer(rows)
    panel.wait(30)
    panel.close()
    assert widgets_alive() == before
    with pytest.raises(ValueError):
        LogitExplorer(rows, p=7.0)
    assert widgets_alive() == before, "a refused panel left widgets behind"


def test_close_during_a_long_job_frees_it_when_it_ends(rows):
    panel, gate = LogitExplorer(rows), threading.Event()
    panel.wait(30)
    panel.submit("capture", lambda job: (gate.wait(10), panel._use_rows(open_rows(rows), 0)))
    panel._worker.close(timeout_s=0.05)
    panel.release()
    gate.set()
    panel._worker.close()
    assert panel._rows is None
    panel.close()


def test_updates_per_s_is_checked_and_used(make, rows):
    panel = make(rows)
    with pytest.raises(traitlets.TraitError):
        panel.updates_per_s = 0
    panel.updates_per_s = 50
    assert panel._worker.updates_per_s == 50


def test_sampling_leaves_torch_s_random_numbers_alone(make, rows):
    panel = make(rows, p=1.0)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    panel.sample_button.click()
    panel.wait(30)
    assert torch.equal(torch.rand(3), expected)


def test_large_temperatures_can_be_set_exactly(make, rows):
    panel = make(rows, temperature=5.0, k=0, p=1.0)
    weights = torch.softmax(rows[3].double() / 5, 0)
    assert panel.to_frame()["probability"][0] == pytest.approx(float(weights.max()), rel=1e-6)


def test_show_frees_its_figure_when_the_cell_runs_again(monkeypatch, widgets_alive):
    from widgets import show
    from widgets.panels import base

    run = iter([("cell", "run 1"), ("cell", "run 2")])
    monkeypatch.setattr(base, "_running_cell", lambda: next(run))
    monkeypatch.setattr(base, "_shown_by_cell", {})
    before = widgets_alive()
    first, second = show(go.Figure()), show(go.Figure())
    assert first.figure.comm is None
    second.close()
    assert widgets_alive() == before and base._shown_by_cell["cell"][1] == []


@pytest.mark.parametrize("kind", ["one row", "float64", "safetensors", "tensor"])
def test_code_reproduces_what_is_seen(make, rows, tmp_path, kind):
    from safetensors.torch import save_file

    path = tmp_path / ("rows.safetensors" if kind == "safetensors" else "rows.npy")
    if kind == "safetensors":
        save_file({"logits": rows}, path)
    else:
        np.save(path, {"one row": rows[0], "float64": rows.double()}.get(kind, rows).numpy())
    panel = make(rows if kind == "tensor" else path, k=30, p=0.7, temperature=0.7)
    scope = {"torch": torch, "rows": rows}
    exec(panel.code().replace("logits = ...", "logits = rows"), scope)
    assert int(scope["kept"].isfinite().sum()) == kept_count(panel)
    assert float(scope["kept"][scope["kept"].isfinite()].min()) == pytest.approx(trace(panel, "cut").x[0] / 0.7)
