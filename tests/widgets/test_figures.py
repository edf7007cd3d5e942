"""Figures as data: what each trace holds for known rows, and that no token can inject HTML."""

import math

import numpy as np
import pytest
import torch

from qp_kernels.qrita import truncation
from widgets import figures
from widgets.histograms import histogram, mantissa_bits
from widgets.logit_view import BAR_ROWS, RowFacts, bar_ranks, look, row_order, sentence
from widgets.painting import Painter
from widgets.text import escape, percent


def names(ids):
    return [f"<b>{int(i)}</b>" for i in ids]


def view_of(row, **more):
    settings = {"k": 0, "p": 1.0, "temperature": 1.0, **more}
    return look(RowFacts(torch.as_tensor(row, dtype=torch.float32)), names, **settings)


@pytest.fixture(scope="module")
def gaussian():
    return torch.randn(5003, generator=torch.Generator().manual_seed(3)) * 4


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (" Paris", "␣Paris"),
        ("<b>", "&lt;b&gt;"),
        ("a\nb", "a↵b"),
        ("\x00", "\\x00"),
        ("&amp;", "&amp;amp;"),
        ('"', "&#34;"),
        ("   ", "␣␣␣"),
        ("x" * 40, "x" * 14 + "…" + "x" * 5),
        ("法" * 20, "法" * 7 + "…" + "法" * 2),
        ("法国", "法国"),
        ("", ""),
    ],
)
def test_escape(raw, shown):
    assert escape(raw) == shown


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.99990001, "99.99 %"),
        (0.999951, "99.995 %"),
        (0.9, "90 %"),
        (0.123456, "12.3 %"),
        (0.000123, "0.0123 %"),
        (3e-9, "3e-9"),
        (0, "0"),
    ],
)
def test_percent(share, text):
    assert percent(share) == text


def test_bars_hold_probabilities_before_and_after():
    view = view_of([1.0, 3.0, 2.0, -math.inf, 0.0], k=2)
    weights = np.exp([3.0, 2.0, 1.0, 0.0])
    before = weights / weights.sum()
    traces, ticks = figures.bar_traces(view, {}, log=False)
    np.testing.assert_allclose(traces["before"]["x"], before, rtol=1e-12)
    np.testing.assert_allclose(traces["after"]["x"], [*(weights[:2] / weights[:2].sum()), 0, 0], rtol=1e-12)
    assert ticks["ticktext"] == [
        "&lt;b&gt;1&lt;/b&gt;",
        "&lt;b&gt;2&lt;/b&gt;",
        "&lt;b&gt;0&lt;/b&gt;",
        "&lt;b&gt;4&lt;/b&gt;",
    ]
    assert traces["cut_rank"]["y"] == [1.5, 1.5]
    assert "<b><b>" not in "".join(traces["before"]["customdata"])


def test_temperature_scales_the_masses_but_not_the_axis():
    warm, cold = view_of([1.0, 3.0, 2.0], temperature=2.0), view_of([1.0, 3.0, 2.0])
    weights = np.exp(np.array([3.0, 2.0, 1.0]) / 2)
    np.testing.assert_allclose([b.before for b in warm.bars], weights / weights.sum(), rtol=1e-12)
    assert [b.logit for b in warm.bars] == [b.logit for b in cold.bars] == [3.0, 2.0, 1.0]


def test_greedy_keeps_the_first_of_the_row_order():
    view = view_of([1.0, 3.0, 3.0], temperature=0.0, k=2, p=0.9)
    assert view.kept == 1 and view.mass == 1.0 and view.bars[0].token == 1
    assert (view.ties, view.ties_kept) == (2, 1)


def test_infinite_logits_share_the_mass():
    view = view_of([0.0, math.inf, math.inf, 2.0], p=0.9)
    assert view.kept == 2 and [b.before for b in view.bars] == [0.5, 0.5, 0.0, 0.0]
    paint(view)


def paint(view):
    figure = figures.logit_figure()
    Painter(figure).paint(figures.logit_properties(view, {}, False))
    return {trace.name: trace for trace in figure.data}


def test_histogram_counts_every_entry(gaussian):
    row = torch.sort(gaussian, descending=True).values.numpy()
    hist = histogram(row)
    assert hist.counts.sum() + hist.outside == len(row)
    for kept in (0, 1, 50, 4000, len(row)):
        parts = hist.prefix_counts(kept)
        edges = np.append(hist.left, hist.left[-1] + hist.width).astype(np.float32)
        expected, _ = np.histogram(row[:kept], bins=edges)
        np.testing.assert_array_equal(parts, expected)


def test_far_outliers_do_not_stretch_the_axis(gaussian):
    row = gaussian.clone()
    row[:3] = torch.tensor([1e9, -1e9, -1e4])
    view = view_of(row, k=5)
    low, high = view.facts.histogram.range
    assert -60 < low < high < 140
    assert "3 outside" in figures.headings(view)[1]
    assert view.facts.histogram.counts.sum() == 5000


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 7), (torch.float16, 10)])
def test_bins_of_16_bit_rows_are_whole_steps(gaussian, dtype, bits):
    row = (gaussian + 20).to(dtype).float()
    hist = RowFacts(row, None, bits).histogram
    inner = hist.counts[(hist.centres > 14) & (hist.centres < 26)]
    assert inner.min() > 0.3 * np.median(inner), "a bin without a representable value looks like a hole"


def test_threshold_and_cut_lines(gaussian):
    view = view_of(gaussian, k=50)
    traces = paint(view)
    ordered = torch.sort(gaussian, descending=True).values
    assert traces["cut"].x[0] == pytest.approx(float(ordered[49]))
    assert traces["threshold"].x[0] < traces["cut"].x[0]
    assert sum(traces["kept"].y) == 50 and sum(traces["dropped"].y) == 4953
    shared = np.isin(traces["dropped"].x, traces["kept"].x)
    assert list(np.array(traces["dropped"].base)[shared]) == list(traces["kept"].y)[: shared.sum()]
    assert min(traces["kept"].y) > 0 and min(traces["dropped"].y) > 0
    assert len(traces["qq_kept"].x) < len(traces["qq"].x)
    assert view.candidates == int((gaussian >= view.threshold).sum()) and view.hit


def test_normal_curve_has_the_area_of_the_row(gaussian):
    view = view_of(gaussian, k=50)
    curve = paint(view)["normal"]
    area = np.trapezoid(curve.y, curve.x) / view.facts.histogram.width
    assert area == pytest.approx(5003, rel=1e-3)


def test_rivals_are_drawn_at_their_cut(gaussian):
    view = view_of(gaussian, k=50, min_p=0.1, n_sigma=1.0)
    top = float(gaussian.max())
    assert view.rivals["min_p"][1] == pytest.approx(top + math.log(0.1), abs=1e-4)
    assert view.rivals["min_p"][2] == int((gaussian >= top + math.log(0.1)).sum())
    assert view.rivals["top_n_sigma"][1] == pytest.approx(top - float(gaussian.std(correction=0)), abs=1e-3)
    assert "min-p: " in "".join(paint(view)["min_p"].text)
    assert not paint(view_of(gaussian))["min_p"].x


@pytest.mark.parametrize(
    "row", [[0.0], [1.0, 1.0, 1.0], [-math.inf, 2.0], [math.nan, 1.0], [5e-324, 0.0], [3e38, -3e38], [math.inf]]
)
def test_odd_rows_have_a_picture(row):
    for settings in ({"k": 1}, {"p": 0.5}, {"k": 2, "p": 0.3, "temperature": 0.0}, {"min_p": 0.5, "n_sigma": 1.0}):
        paint(view_of(row, **settings))


def test_row_without_eligible_entries_says_so():
    with pytest.raises(ValueError, match="no eligible entry"):
        RowFacts(torch.tensor([-math.inf, math.nan]))


@pytest.mark.parametrize(
    ("kept", "eligible"), [(1, 5), (10, 262144), (134, 262144), (262144, 262144), (262143, 262144), (18, 18)]
)
def test_bars_show_the_top_and_the_cut(kept, eligible):
    ranks = bar_ranks(kept, eligible)
    shown = [r for r in ranks if r is not None]
    assert shown == sorted(set(shown)) and len(ranks) <= BAR_ROWS and shown[0] == 0
    assert kept - 1 in shown and (kept == eligible or kept in shown)


def test_ties_at_the_cut_are_marked():
    view = view_of([1.0, 1.0, 1.0, 2.0], k=2)
    _, ticks = figures.bar_traces(view, {}, log=False)
    assert [t.endswith(" =") for t in ticks["ticktext"]] == [False, True, True, True]
    assert "tie at the cut (=): 1 of 3 kept" in sentence(view)


def test_drawn_samples_are_shares():
    view = view_of([1.0, 3.0, 2.0], k=2)
    traces, _ = figures.bar_traces(view, {1: 3, 2: 1}, log=False)
    assert traces["drawn"]["x"] == [0.75, 0.25] and traces["drawn"]["customdata"] == ["3 of 4", "1 of 4"]


def test_figures_cannot_upload_and_follow_the_theme():
    figure = figures.logit_figure()
    assert "sendChartToCloud" in figure.layout.modebar.remove
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"


def test_margin_figure_marks_misses():
    figure = figures.margin_figure([0.0, 0.5], np.array([[60, 3], [200, 90]]), ["hit", "<miss>"], k=50)
    assert [t.line.color for t in figure.data[:2]] == [figures.theme.GREEN, figures.theme.VERMILLION]
    assert figure.layout.annotations[1].text == "&lt;miss&gt;"


def test_mantissa_bits():
    x = torch.randn(500)
    assert mantissa_bits(x) == 23
    assert mantissa_bits(x.half().float()) == 10
    assert mantissa_bits(torch.cat([x.bfloat16().float(), torch.tensor([math.inf, math.nan])])) == 7


def test_row_order_is_a_stable_sort():
    specials = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3e38, -3e38, 1.0, 1.0]
    for row in (torch.randn(4001), torch.randint(-3, 3, (4001,)).float(), torch.tensor(specials * 3)):
        clean = torch.where(row.isnan(), -math.inf, row) + 0.0
        expected = torch.sort(clean, descending=True, stable=True)
        n = int((expected.values > -math.inf).sum())
        assert row_order(row.numpy()).tolist() == expected.indices[:n].tolist()


def test_min_p_of_a_greedy_cut_keeps_the_maximum():
    view = view_of([1.0, 3.0, 2.9], temperature=0.0, min_p=0.1)
    assert view.kept == 1 and view.rivals["min_p"][1:] == (3.0, 1)


def test_only_what_changed_is_sent(gaussian):
    figure = figures.logit_figure()
    painter = Painter(figure)
    facts = RowFacts(gaussian)

    def paint_with(k):
        before = {trace.name: trace.to_plotly_json() for trace in figure.data}
        painter.paint(figures.logit_properties(look(facts, names, k=k, p=1.0, temperature=1.0), {}, False))
        after = {trace.name: trace.to_plotly_json() for trace in figure.data}
        return {name for name in after if str(before[name]) != str(after[name])}

    assert {"normal", "qq", "qq_line", "kept", "dropped"} <= paint_with(50)
    assert paint_with(50) == set()
    moved = paint_with(40)
    assert {"kept", "dropped", "cut", "after"} <= moved and not {"normal", "qq", "qq_line", "drawn"} & moved


def test_names_cannot_break_out_of_hover_templates():
    figure = figures.margin_figure([0.0, 0.5], np.array([[60], [200]]), ["a %{x} <b>"], k=50)
    assert "%{x} <b>" not in figure.data[0].hovertemplate
    assert figure.data[0].customdata[0] == "a %{x} &lt;b&gt;"


@pytest.mark.parametrize(
    "settings", [{"k": 50}, {"p": 0.9}, {"k": 50, "p": 0.9}, {"k": 900, "p": 0.5, "order": "joint"}, {}]
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_threshold_and_hit_are_those_of_truncation(gaussian, settings, temperature):
    rows = [gaussian, torch.where(torch.arange(5003) % 7 == 0, -math.inf, gaussian), gaussian.round()]
    for row in rows:
        view = view_of(row, temperature=temperature, margin=0.1, **settings)
        stats = truncation(row / temperature, settings.get("k"), settings.get("p"), order=view.order, margin=0.1)
        assert view.hit == bool(stats.hit)
        assert view.threshold == pytest.approx(float(stats.threshold) * temperature)
        if stats.threshold > -math.inf:
            assert view.candidates == int(stats.kept)
        else:
            assert view.candidates == int((row > -math.inf).sum())


def test_labels_that_would_overlap_are_spread():
    placed = figures.spread(np.array([1.0, 3.0, 1.05, 1.0]), 0.2)
    assert placed.tolist() == pytest.approx([1.0, 3.0, 1.4, 1.2])
