"""The figure of `TruncationExplorer` as pure functions: a map of hits, candidates by position, and one row."""

from __future__ import annotations

import functools

import numpy as np
import plotly.graph_objects as go

from widgets import histograms, theme
from widgets.painting import Properties
from widgets.sorted_rows import CANDIDATE_BUFFER, MISS, OVERFLOW
from widgets.text import DECADES, escape, number
from widgets.truncation_view import STATES, TruncationView, name_setting, place

COLOURS = {"miss": theme.VERMILLION, "overflow": theme.BLUE, "hit": theme.GREEN}
SYMBOLS = {"miss": "x", "overflow": "triangle-up", "hit": "circle"}
SIGNS = {"miss": "▧", "overflow": "▨", "hit": "■"}  # as the hatching of the map runs
SHARES = {share: f"{share:g}" for share in (0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)}
STROKES = 50  # across the map; a position has at least one
INK = "#1a1a1a"  # lines on the map's colours
SPLIT = 0.6  # where the left half of the figure ends


def truncation_figure() -> go.Figure:
    """The empty figure: the map above, candidates below it on the same positions, one row's histogram on the right."""
    figure = go.Figure(layout=_layout())
    upper, lower, right = ({"xaxis": f"x{i}", "yaxis": f"y{i}"} for i in ("", 2, 3))
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    white = {"color": "#ffffff", "width": 1}
    now = {"color": theme.GREY, "width": 1.5}
    level = {**line, "mode": "lines+text", "textposition": "top right", **lower}
    mark = {**line, "mode": "lines+text", "cliponaxis": False, "hoverinfo": "all", **right}
    states = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "marker": {"symbol": SYMBOLS[name], "size": 8, "color": COLOURS[name]},
            "hovertemplate": "%{customdata}<extra></extra>",
            **lower,
        }
        for name in ("hit", "miss", "overflow")
    ]
    traces = [
        {**_MAP, **upper},
        {**line, "name": "miss_hatch", "line": white, **upper},
        {**line, "name": "overflow_hatch", "line": white, **upper},
        {**line, "name": "setting", "line": {"color": INK, "width": 2, "dash": "dash"}, **upper},
        {**line, "name": "here_map", "line": {"color": INK, "width": 1.5}, **upper},
        {**line, "name": "here_kept", "line": now, **lower},
        {**line, "name": "candidates", "line": {"color": theme.GREY, "width": 1}, **lower},
        {**level, "name": "wanted", "line": {"color": theme.VERMILLION, "width": 2}},
        {**level, "name": "buffer", "line": {"color": theme.BLUE, "width": 2, "dash": "dash"}},
        *states,
        {
            **line,
            "name": "kept_region",
            "fill": "toself",
            "fillcolor": "rgba(0, 158, 115, 0.14)",
            "line": {"width": 0},
            **right,
        },
        {**histograms.BARS, "name": "dropped", "marker": {"color": theme.GREY}, **right},
        {**histograms.BARS, "name": "kept", "marker": {"color": theme.GREEN}, **right},
        {**line, "name": "normal", "line": {"color": theme.BLUE, "width": 2}, **right},
        {**mark, "name": "threshold", "line": {"color": theme.PURPLE, "width": 2, "dash": "dash"}},
        {**mark, "name": "cut", "line": {"color": theme.VERMILLION, "width": 2.5}},
    ]
    make = {"bar": go.Bar, "heatmap": go.Heatmap, "scatter": go.Scatter}
    figure.add_traces([make[trace["type"]](trace) for trace in traces])
    return figure


_SCALE = [(i / 3, COLOURS[name]) for i, name in enumerate(STATES)]
_MAP = {
    "type": "heatmap",
    "name": "map",
    "zmin": -0.5,
    "zmax": 2.5,
    "colorscale": [(at, colour) for i, (_, colour) in enumerate(_SCALE) for at in (i / 3, (i + 1) / 3)],
    "showscale": False,
    "xgap": 0,
    "hoverongaps": False,
    "hovertemplate": "position %{x}: %{customdata[1]:,} candidates at %{customdata[0]}<extra></extra>",
}


def _layout() -> dict:
    def heading(x: float, y: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": y}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    log = {"type": "log", "tickvals": list(DECADES), "ticktext": list(DECADES.values())}
    return {
        **theme.layout(560),
        "barmode": "overlay",
        "bargap": 0,
        "margin": {"l": 64, "r": 20, "t": 30, "b": 44},
        "xaxis": theme.axis("", domain=[0, SPLIT], showticklabels=False, ticks="", showgrid=False),
        "yaxis": theme.axis("", domain=[0.52, 1], showgrid=False),
        "xaxis2": theme.axis("position", domain=[0, SPLIT], anchor="y2", showgrid=False),
        "yaxis2": theme.axis("candidates", domain=[0, 0.42], anchor="x2", **log),
        "xaxis3": theme.axis("logit as the rule sees it", domain=[SPLIT + 0.08, 1], anchor="y3"),
        "yaxis3": theme.axis("tokens per bin", domain=[0, 1], anchor="x3", **log),
        "annotations": [heading(0, 1.0), heading(0, 0.42), heading(SPLIT + 0.08, 1.0)],
    }


def truncation_properties(view: TruncationView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    traces = {**map_traces(view), **kept_traces(view), **row_traces(view)}
    texts = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, {**texts, **axes(view)}


def map_traces(view: TruncationView) -> dict[str, dict]:
    """The map with its hatching, and the lines that mark what is set and which position is open."""
    over, x = view.rule.over, np.asarray(view.looked)
    y, state = place(over, view.grid), view.map.state
    known = np.searchsorted(x, view.rows)
    z = np.full((len(y), len(x)), None)  # sent as JSON, which knows no NaN
    z[:, known] = state.T
    counts = np.zeros((len(y), len(x), 2))  # where z has a gap nothing hovers
    counts[..., 0] = view.grid[:, None]
    counts[:, known, 1] = view.map.kept.T
    half = view.looked.step / 2, (y[1] - y[0]) / 2 if len(y) > 1 else 0.5
    out = {"map": {"x": x, "y": y, "z": z.tolist(), "customdata": counts}}
    for name, which, slope in (("miss_hatch", MISS, -1), ("overflow_hatch", OVERFLOW, 1)):
        row, column = np.nonzero(state == which)
        out[name] = _strokes(x[known][row], y[column], *half, slope, max(1, STROKES // len(x)))
    at = float(place(over, view.setting))
    edges = [x[0] - half[0], x[-1] + half[0]]
    out["setting"] = {"x": edges, "y": [at, at]} if np.isfinite(at) else {"x": [], "y": []}
    out["here_map"] = {"x": [view.opened.row] * 2, "y": [y[0] - half[1], y[-1] + half[1]]}
    return out


def _strokes(x: np.ndarray, y: np.ndarray, half_x: float, half_y: float, slope: int, parts: int) -> dict:
    """Diagonals through cells, `parts` in each, all in one line: a shape for each would be slow to draw."""
    half_x = half_x / parts
    x = (x[:, None] + half_x * (2 * np.arange(parts) + 1 - parts)).ravel()
    y, none = y.repeat(parts), np.full(len(x), np.nan)
    across = np.stack([x - 0.8 * half_x, x + 0.8 * half_x, none], 1).ravel()
    up = np.stack([y - 0.8 * slope * half_y, y + 0.8 * slope * half_y, none], 1).ravel()
    return {"x": across, "y": up}


def kept_traces(view: TruncationView) -> dict[str, dict]:
    """Candidates of each position, by state, between what is wanted and what the buffer holds."""
    x, kept, state = np.asarray(view.rows), np.maximum(view.now.kept, 0.7), view.now.state
    edges = [view.looked[0] - view.looked.step / 2, view.looked[-1] + view.looked.step / 2]
    hover = [_hover(view, i) for i in range(len(x))]
    out = {"candidates": {"x": x, "y": kept}}
    for number_, name in enumerate(STATES):
        which = np.flatnonzero(state == number_)
        out[name] = {"x": x[which], "y": kept[which], "customdata": [hover[i] for i in which]}
    if view.rule.over == "k":
        wanted = max(view.setting, 0.7)
        out["wanted"] = {"x": edges, "y": [wanted] * 2, "text": [f" {name_setting('k', view.setting)}", ""]}
    else:
        out["wanted"] = {"x": x, "y": np.maximum(view.wanted, 0.7), "text": []}
    out["buffer"] = {"x": edges, "y": [CANDIDATE_BUFFER] * 2, "text": [f" buffer {CANDIDATE_BUFFER:,}", ""]}
    out["here_kept"] = {"x": [view.opened.row] * 2, "y": [0.5, 2 * view.vocab]}
    return out


def _hover(view: TruncationView, i: int) -> str:
    name = f" <b>{escape(view.names[i], 40)}</b>" if view.names[i] else ""
    state = STATES[int(view.now.state[i])]
    return (
        f"position {view.rows[i]}{name}<br>t = {number(float(view.now.threshold[i]))}<br>"
        f"{int(view.now.kept[i]):,} candidates for {int(view.wanted[i]):,}: {state}"
    )


def row_traces(view: TruncationView) -> dict[str, dict]:
    """The histogram of the open row with the normal curve of its sample, the threshold and the real cut."""
    row, hist = view.opened, view.opened.hist
    height = float(hist.counts.max()) if hist is not None else float(row.infinite)
    mark = functools.partial(histograms.mark, hist=hist, height=height)
    out = histograms.split_bars(hist, row.kept - row.infinite)
    out["normal"] = histograms.normal_curve(hist, row.mean, row.std, row.finite)
    out["cut"] = mark("cut", row.cut, f"cut: {row.kept:,} kept")
    out["threshold"] = mark("threshold", row.threshold, f"t: {row.candidates:,} candidates")
    out["kept_region"] = {"x": [], "y": []}
    if hist is not None and np.isfinite(row.cut):
        right, ceiling = hist.range[1], height * histograms.HEADROOM
        out["kept_region"] = {"x": [row.cut, right, right, row.cut], "y": [0.5, 0.5, ceiling, ceiling]}
    return out


def headings(view: TruncationView) -> list[str]:
    """What each part says above it."""
    legend = "  ".join(f"<span style='color:{COLOURS[name]}'>{SIGNS[name]}</span> {name}" for name in STATES[::-1])
    counts = view.counts
    now = ", ".join(f"{counts[name]:,} {name}" for name in STATES[::-1])
    if view.rule.over == "p":
        now += f"  <span style='color:{theme.VERMILLION}'>━</span> nucleus"
    row, name = view.opened, ""
    if row.row in view.rows and view.names[view.rows.index(row.row)]:
        name = f" after {escape(view.names[view.rows.index(row.row)])}"
    return [
        f"<b>Every {view.rule.over}, every position</b>  {legend}",
        f"<b>{name_setting(view.rule.over, view.setting)}</b>: {now}",
        f"<b>Position {row.row}</b>{name}: {STATES[row.state]}",
    ]


def axes(view: TruncationView) -> dict:
    """Axis settings that follow the rows and the rule, by path."""
    over, y, half = view.rule.over, place(view.rule.over, view.grid), view.looked.step / 2
    across = [view.looked[0] - half, view.looked[-1] + half]
    step = (y[1] - y[0]) / 2 if len(y) > 1 else 0.5
    names = DECADES if over == "k" else SHARES
    ticks = [tick for tick in names if place(over, tick) <= y[-1] + step]
    top = max(view.vocab, 2) * 2
    out = {
        "xaxis.range": across,
        "xaxis2.range": across,
        "xaxis2.dtick": 1 if len(view.looked) <= 12 else None,
        "yaxis.title.text": "k" if over == "k" else "p",
        "yaxis.range": [y[0] - step, y[-1] + step],
        "yaxis.tickvals": [float(place(over, tick)) for tick in ticks],
        "yaxis.ticktext": [names[tick] for tick in ticks],
        "yaxis2.range": [np.log10(0.5), np.log10(top)],
    }
    hist = view.opened.hist
    if hist is not None:
        out["xaxis3.range"] = list(hist.range)
        out["yaxis3.range"] = [np.log10(0.5), np.log10(float(hist.counts.max()) * histograms.HEADROOM)]
    return out
