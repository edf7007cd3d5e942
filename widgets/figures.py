"""Figures as pure functions: numbers in, plotly traces out. Panels show them; tests read them as data.

A figure is made once with all its traces, named for what they are; later only what changed is sent. The `*_traces`
functions return `{trace name: properties}` for one view, so that the first picture and every update share them.
"""

from __future__ import annotations

import functools

import numpy as np
import plotly.graph_objects as go

from widgets import histograms, theme
from widgets.logit_view import BAR_ROWS, Bar, LogitView, RowFacts
from widgets.text import escape, number, percent

DRAW_SCALE_FLOOR = 1e-6  # left end of the logarithmic probability axis


def logit_figure() -> go.Figure:
    """The empty figure of `LogitExplorer`: bars of tokens on the left, histogram and QQ view on the right."""
    figure = go.Figure(layout=_logit_layout())
    left, upper, lower = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}, {"xaxis": "x3", "yaxis": "y3"}
    bar = {"type": "bar", "orientation": "h", **left}
    line = {"type": "scatter", "mode": "lines"}
    mark = {**line, "mode": "lines+text", "cliponaxis": False, **upper}
    before_style = {"color": "rgba(0,0,0,0)", "line": {"color": theme.GREY, "width": 1.2}}
    traces = [
        {**bar, "name": "before", "marker": before_style, "width": 0.78, "hovertemplate": _BAR_HOVER},
        {**bar, "name": "after", "marker": {"color": theme.GREEN}, "width": 0.46, "hovertemplate": _BAR_HOVER},
        # A text trace: plotly measures the labels of bars one by one, which costs more than drawing them.
        {
            "type": "scatter",
            "mode": "text",
            "name": "share",
            "textposition": "middle right",
            "cliponaxis": False,
            "hoverinfo": "skip",
            **left,
        },
        {
            **line,
            "mode": "markers",
            "name": "drawn",
            "marker": {"symbol": "diamond", "size": 9, "color": theme.BLUE, "line": {"width": 1, "color": "#ffffff"}},
            "hovertemplate": "drawn %{customdata} times<extra></extra>",
            **left,
        },
        {**line, "name": "cut_rank", "line": {"color": theme.VERMILLION, "width": 2}, "hoverinfo": "skip", **left},
        {
            **line,
            "name": "kept_region",
            "fill": "toself",
            "fillcolor": "rgba(0, 158, 115, 0.14)",
            "line": {"width": 0},
            "hoverinfo": "skip",
            **upper,
        },
        {**histograms.BARS, "name": "dropped", "marker": {"color": theme.GREY}, **upper},
        {**histograms.BARS, "name": "kept", "marker": {"color": theme.GREEN}, **upper},
        {**line, "name": "normal", "line": {"color": theme.BLUE, "width": 2}, "hoverinfo": "skip", **upper},
        {**mark, "name": "threshold", "line": {"color": theme.PURPLE, "width": 2, "dash": "dash"}},
        {**mark, "name": "min_p", "line": {"color": theme.ORANGE, "width": 2, "dash": "dot"}},
        {**mark, "name": "top_n_sigma", "line": {"color": theme.ORANGE, "width": 2, "dash": "dashdot"}},
        {**mark, "name": "cut", "line": {"color": theme.VERMILLION, "width": 2.5}},
        {
            **line,
            "name": "qq_line",
            "line": {"color": theme.BLUE, "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
            **lower,
        },
        {**line, "name": "qq", "line": {"color": theme.GREY, "width": 2.5}, "hovertemplate": _QQ_HOVER, **lower},
        {**line, "name": "qq_kept", "line": {"color": theme.GREEN, "width": 4}, "hovertemplate": _QQ_HOVER, **lower},
    ]
    figure.add_traces([go.Bar(t) if t["type"] == "bar" else go.Scatter(t) for t in traces])
    return figure


_BAR_HOVER = "%{customdata}<extra></extra>"
_QQ_HOVER = "normal %{x:.2f} σ, row %{y:.2f} σ<extra></extra>"


def _logit_layout() -> dict:
    def heading(text: str, x: float, y: float, x_anchor: str = "left") -> dict:
        return {
            "text": text,
            "xref": "paper",
            "yref": "paper",
            "x": x,
            "y": y,
            "xanchor": x_anchor,
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 13},
        }

    return {
        **theme.layout(540),
        "barmode": "overlay",
        "bargap": 0,
        "margin": {"l": 150, "r": 20, "t": 30, "b": 40},
        "xaxis": theme.axis("probability", domain=[0, 0.36]),
        "yaxis": theme.axis("", range=[BAR_ROWS - 0.4, -0.6], tickfont={"size": 13}, ticks="", showgrid=False),
        "xaxis2": theme.axis("logit", domain=[0.46, 1], anchor="y2"),
        "yaxis2": theme.axis(
            "tokens per bin", domain=[0.52, 1], anchor="x2", type="log", tickvals=[1, 10, 100, 1e3, 1e4, 1e5]
        ),
        "xaxis3": theme.axis("normal quantile [σ]", domain=[0.46, 1], anchor="y3", range=[-5.2, 5.2]),
        "yaxis3": theme.axis("row quantile [σ]", domain=[0, 0.36], anchor="x3", range=[-7, 9]),
        "annotations": [
            heading("", 0, 1.0, "left"),
            heading("", 0.46, 1.0),
            heading("", 0.46, 0.36),
        ],
    }


def logit_properties(view: LogitView, drawn: dict[int, int], log: bool) -> tuple[dict[str, dict], dict]:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    bars, ticks = bar_traces(view, drawn, log)
    traces = {**row_traces(view.facts), **cut_traces(view), **bars}
    notes = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, {**{f"yaxis.{key}": value for key, value in ticks.items()}, **notes, **logit_axes(view, log)}


def row_traces(facts: RowFacts) -> dict[str, dict]:
    """The normal curve and the QQ view, which only a new row changes."""
    normal = histograms.normal_curve(facts.histogram, facts.moments.mean, facts.moments.std, facts.normal_count)
    theory, scaled = _qq(facts)
    return {"normal": normal, "qq": {"x": theory, "y": scaled}, "qq_line": {"x": [-5, 5], "y": [-5, 5]}}


def _qq(facts: RowFacts) -> tuple[np.ndarray, np.ndarray]:
    """Normal quantiles and those of the row, both in σ."""
    _, theory, values = facts.qq
    return theory, (values - facts.moments.mean) / (facts.moments.std or 1.0)


def cut_traces(view: LogitView) -> dict[str, dict]:
    """The parts that k, p, T and the rivals change, bars apart."""
    facts, hist = view.facts, view.facts.histogram
    out = histograms.split_bars(hist, view.kept - facts.infinite)
    height = float(facts.eligible) if hist is None else float(hist.counts.max())
    mark = functools.partial(histograms.mark, hist=hist, height=height)
    out["cut"] = mark("cut", view.cut, f"cut: {view.kept:,} kept")
    out["threshold"] = mark("threshold", view.threshold, f"t: {view.candidates:,} candidates")
    for name, title in (("min_p", "min-p"), ("top_n_sigma", "top-nσ")):
        rival = view.rivals.get(name)
        words = f"{title}: {rival[2]:,} kept" if rival else ""
        out[name] = mark(name, rival[1] if rival else np.nan, words)
    right = hist.range[1] if hist is not None else view.cut
    band = [view.cut, right, right, view.cut] if np.isfinite(view.cut) else []
    out["kept_region"] = {
        "x": band,
        "y": [0.5, 0.5, height * histograms.HEADROOM, height * histograms.HEADROOM][: len(band)],
    }
    theory, scaled = _qq(facts)
    above = facts.qq[2] >= view.cut
    out["qq_kept"] = {"x": theory[above], "y": scaled[above]}
    return out


def bar_traces(view: LogitView, drawn: dict[int, int], log: bool) -> tuple[dict[str, dict], dict]:
    """The bars of tokens before and after the cut, with the drawn samples, and the tick labels of their axis."""
    places = {i: bar for i, bar in enumerate(view.bars) if bar is not None}
    rows, bars = list(places), list(places.values())
    total = sum(drawn.values())
    floor = DRAW_SCALE_FLOOR if log else 0.0
    drawn_rows = [(i, drawn[b.token]) for i, b in places.items() if b.token in drawn]
    hover = [_bar_hover(b) for b in bars]
    out = {
        "before": {"x": [max(b.before, floor) for b in bars], "y": rows, "customdata": hover},
        "after": {"x": [b.after for b in bars], "y": rows, "customdata": hover},
        "share": {
            "x": [max(b.before, b.after, floor) for b in bars],
            "y": rows,
            "text": [f" {_bar_text(b)}" for b in bars],
        },
        "drawn": {
            "x": [n / total for _, n in drawn_rows],
            "y": [i for i, _ in drawn_rows],
            "customdata": [f"{n:,} of {total:,}" for _, n in drawn_rows],
        },
        "cut_rank": _cut_rank(view, floor),
    }
    ticks = {"tickvals": rows, "ticktext": [_tick(b) for b in bars]}
    if None in view.bars:
        gap = view.bars.index(None)
        hidden = view.bars[gap + 1].rank - view.bars[gap - 1].rank - 1
        ticks = {"tickvals": [*rows, gap], "ticktext": [*ticks["ticktext"], f"⋮ {hidden:,} more"]}
    return out, ticks


def _tick(bar: Bar) -> str:
    return f"{escape(bar.label)}{' =' if bar.tied else ''}"


def _bar_text(bar: Bar) -> str:
    return f"{percent(bar.before)} → {percent(bar.after)}" if bar.kept else f"{percent(bar.before)} dropped"


def _bar_hover(bar: Bar) -> str:
    fate = f"after the cut {percent(bar.after)}" if bar.kept else "dropped"
    tie = "<br>equal to the value at the cut" if bar.tied else ""
    return (
        f"<b>{escape(bar.label, 60)}</b> (id {bar.token})<br>rank {bar.rank:,}<br>logit {bar.logit:.4f}<br>"
        f"probability {percent(bar.before)}<br>{fate}{tie}"
    )


def _cut_rank(view: LogitView, floor: float) -> dict:
    """A line between the last kept and the first dropped row of the bars."""
    last = max((i for i, bar in enumerate(view.bars) if bar is not None and bar.kept), default=None)
    if last is None or last + 1 >= len(view.bars):
        return {"x": [], "y": []}
    return {"x": [floor, 1.3], "y": [last + 0.5, last + 0.5]}


def headings(view: LogitView) -> list[str]:
    """What each of the three parts says above it."""
    m = view.facts.moments
    outside = ""
    hist = view.facts.histogram
    if hist is not None and hist.outside:
        outside = f" · {hist.outside:,} outside"
    return [
        f"<b>Next token</b> ▭ before <span style='color:{theme.GREEN}'>■</span> after",
        f"<b>All logits</b> and N(μ {number(m.mean)}, σ {number(m.std)}){outside}",
        f"<b>QQ</b>: skew {m.skew:+.2f}, excess kurtosis {m.excess_kurtosis:+.2f}",
    ]


def logit_axes(view: LogitView, log: bool) -> dict:
    """Axis settings that follow the row and the scale, by path."""
    hist = view.facts.histogram
    top = float(hist.counts.max()) if hist is not None else 1.0
    axes = {"yaxis2.range": [np.log10(0.5), np.log10(max(top, 1) * histograms.HEADROOM)]}
    if hist is not None:
        axes["xaxis2.range"] = list(hist.range)
    if log:
        axes |= {
            "xaxis.type": "log",
            "xaxis.range": [-6, 1.1],
            "xaxis.tickvals": [1e-6, 1e-4, 1e-2, 1],
            "xaxis.tickformat": "",
        }
    else:
        axes |= {
            "xaxis.type": "linear",
            "xaxis.range": [0, 1.3],
            "xaxis.tickvals": [0, 0.5, 1],
            "xaxis.tickformat": ".0%",
        }
    return axes


def margin_figure(margins, kept, names: list[str], k: int) -> go.Figure:
    """How many candidates pass the threshold as its safety margin grows, one line a row.

    Args:
        margins: [M] margins. kept: [M, R] entries at or above the threshold. names: R labels. k: Tokens wanted.
    """
    figure = go.Figure(layout=theme.layout(420))
    margins, counts = np.asarray(margins, dtype=float), np.maximum(np.asarray(kept, dtype=float), 0.8)
    heights = spread(np.log10(counts[-1]), 0.14)
    for row, name in enumerate(names):
        style = {"color": theme.GREEN if counts[0, row] >= k else theme.VERMILLION, "width": 2}
        hover = "%{customdata}<br>margin %{x:.2f}: %{y:,} candidates<extra></extra>"
        texts = {"customdata": [escape(name, 60)] * len(margins), "hovertemplate": hover}
        figure.add_scatter(x=margins, y=counts[:, row], name=name, mode="lines", line=style, **texts)
        place = {"x": margins[-1], "y": heights[row], "xanchor": "left", "xshift": 6}
        figure.add_annotation(text=escape(name, 40), showarrow=False, **place)
    wanted = {"color": theme.BLUE, "width": 2, "dash": "dash"}
    figure.add_scatter(x=margins[[0, -1]], y=[k, k], name="k", mode="lines", line=wanted, hoverinfo="skip")
    below = {"x": margins[-1], "y": np.log10(k), "xanchor": "right", "yshift": -12, "showarrow": False}
    figure.add_annotation(text=f"k = {k}: below this line the k-th token is lost", **below)
    figure.update_layout(
        margin_r=230,
        xaxis=theme.axis("margin [share of δσ]", range=[margins[0], margins[-1]]),
        yaxis=theme.axis("candidates at or above t", type="log", dtick=1),
    )
    return figure


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Move labels up until each stands at least `gap` above the next lower one."""
    order = np.argsort(heights, kind="stable")
    placed = np.array(heights, dtype=float)
    for lower, upper in zip(order, order[1:], strict=False):
        placed[upper] = max(placed[upper], placed[lower] + gap)
    return placed
