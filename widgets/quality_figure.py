"""The figure of `QualityExplorer` as pure functions: what systems answer or lose, with intervals, beside the paper.

Over lengths, g or c: a line for each system, over lengths only where its points are of the same tasks. Proxies and
rivals: a row for each. Both use the same traces; the paper has axes of its own to the right.
"""

from __future__ import annotations

import plotly.graph_objects as go

from widgets import theme
from widgets.painting import Properties
from widgets.quality_marks import (
    STYLES,
    error_bars,
    hover,
    hovers,
    range_of,
    range_of_paper,
    scale_name,
    scale_of,
    scaled,
    turned,
    unit_of,
    value_of,
)
from widgets.quality_paper import LOSES_AT, LOSES_AT_TOPK
from widgets.quality_view import ROWS, SERIES, Point, QualityView
from widgets.quality_words import NAMES, name_of

HEIGHT, PLOT_PX, SIZE = 436, 320, 10
LIFT_PX, HEAD_PX = 15, 44  # of a number above its dot, of the name of full attention above the first row
DASHES = {"full": "dot", "dense": "dash", "reuse": "dashdot", "refine": "solid", "rivals": "solid"}
DODGE = {"full": -0.09, "dense": -0.03, "refine": 0.03, "reuse": 0.09, "rivals": 0.0}  # so that intervals stand apart
MARK = "the paper: from here down<br>Refine starts to lose"


def quality_figure() -> go.Figure:
    """The empty figure. Traces: `full_interval`, the names of `SERIES`, `value`, `name`, `paper`,
    `paper_value` and `paper_mark`."""
    left, right = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    text = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "cliponaxis": False}
    band = {"fill": "toself", "fillcolor": "rgba(0, 158, 115, 0.14)", "line": {"width": 0}}
    traces = [{**line, **band, "name": "full_interval", **left}]
    traces += [{**_series(name), **left} for name in SERIES]
    mark = {"color": theme.VERMILLION, "width": 2, "dash": "dot"}
    traces.append({**line, **text, "name": "paper_mark", "mode": "lines+text", "line": mark, **left})
    traces += [{**text, "name": name, **left} for name in ("value", "name")]
    paper = {"symbol": "diamond-open", "color": theme.VERMILLION, "size": 11, "line": {"width": 2}}
    hover = {"hovertemplate": "%{customdata}<extra></extra>"}
    traces.append({"type": "scatter", "name": "paper", "mode": "markers", "marker": paper, **hover, **right})
    traces.append({**text, "name": "paper_value", **right})
    figure = go.Figure(layout=_layout())
    figure.add_traces([go.Scatter(trace) for trace in traces])
    return figure


def _series(name: str) -> dict:
    colour, symbol = STYLES[name]
    bars = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 5, "visible": False}
    return {
        **{"type": "scatter", "name": name, "mode": "lines+markers", "cliponaxis": False},
        "marker": {
            "color": colour,
            "symbol": symbol,
            "size": SIZE,
            "opacity": 1,
            "line": {"width": 2, "color": colour},
        },
        "line": {"color": colour, "width": 1.5, "dash": DASHES[name]},
        "hovertemplate": "%{customdata}<extra></extra>",
        **{"error_x": dict(bars), "error_y": dict(bars)},
    }


def _layout() -> dict:
    def heading(x: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": 1.02}
        return {"text": "", "showarrow": False, "align": "left", "font": {"size": 13}, **place}

    return {
        **theme.layout(HEIGHT),
        "margin": {"l": 132, "r": 28, "t": 68, "b": 48},
        "xaxis": theme.axis("", anchor="y"),
        "yaxis": theme.axis("", anchor="x"),
        "xaxis2": theme.axis("", anchor="y2"),
        "yaxis2": theme.axis("", anchor="x2"),
        "annotations": [heading(0), heading(0.78)],
    }


def quality_properties(view: QualityView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    empty = {
        name: {
            "x": [],
            "y": [],
            "customdata": [],
            "marker.symbol": STYLES[name][1],
            "marker.size": SIZE,
            **error_bars([], view),
        }
        for name in SERIES
    }
    words = ("value", "name", "paper_value", "paper_mark")
    empty |= {name: {"x": [], "y": [], "text": []} for name in words}
    empty |= {name: {"x": [], "y": []} for name in ("full_interval", "paper")}
    rows = view.setting.question in ROWS
    drawn, layout = (_rows if rows else _lines)(view) if view.points else ({}, _nothing())
    # A trace keeps what it is not told: each is told all.
    return {name: {**unseen, **drawn.get(name, {})} for name, unseen in empty.items()}, layout


def _nothing() -> dict:
    hidden = {f"{axis}.visible": False for axis in ("xaxis", "yaxis", "xaxis2", "yaxis2")}
    return hidden | {f"annotations[{i}].text": "" for i in (0, 1)}


# A row for each system


def _rows(view: QualityView) -> Properties:
    points = [p for p in view.points if p.x is not None]
    rows, low_high, bottom = [p.x for p in points], range_of(view), len(points) - 0.4
    px = bottom / (PLOT_PX - HEAD_PX)  # in rows
    top, lift = -HEAD_PX * px, LIFT_PX * px
    out = {}
    for name in SERIES[1:]:
        mine = [p for p in points if p.series == name]
        out[name] = {
            **{"x": [scaled(p, view) for p in mine], "y": [p.x for p in mine], "mode": "markers"},
            **hovers(view, mine),
            **error_bars(mine, view, "x"),
        }
    out |= _reference(view, [bottom, top], upright=True)
    out["value"] = {
        **{"x": [scaled(p, view) for p in points], "y": [row - lift for row in rows]},
        "text": [value_of(p, view) for p in points],
        "textposition": "middle center",
    }
    quoted = [p for p in points if p.paper is not None]
    out["paper"] = {
        **{"x": [p.paper for p in quoted], "y": [p.x for p in quoted]},
        "customdata": [f"<b>the paper</b>, {name_of(p, view.setting.question)}: {p.paper:g}" for p in quoted],
    }
    out["paper_value"] = {
        **{"x": [p.paper for p in quoted], "y": [p.x - lift for p in quoted], "text": [f"{p.paper:g}" for p in quoted]},
        "textposition": "middle center",
    }
    out["name"] = _name_of_full(view, low_high, top + LIFT_PX * px)
    names = [name_of(p, view.setting.question) for p in points]
    layout = {
        **_common(view, bool(quoted)),
        **{"xaxis.title.text": unit_of(view), "xaxis.range": low_high, "xaxis.tickvals": None, "xaxis.ticktext": None},
        **{"yaxis.title.text": "", "yaxis.range": [bottom, top], "yaxis.tickvals": rows, "yaxis.ticktext": names},
        **{"xaxis2.title.text": "", "xaxis2.range": range_of_paper([p.paper for p in quoted])},
        **{"xaxis2.tickvals": None, "xaxis2.ticktext": None},
        **{"yaxis2.range": [bottom, top], "yaxis2.tickvals": rows, "yaxis2.ticktext": [""] * len(rows)},
    }
    return out, layout


def _name_of_full(view: QualityView, low_high: list[float], y: float) -> dict:
    """Beside the upper end of its line, on the side that has room."""
    full = view.at(series="full")
    x, (low, high) = [scaled(p, view) for p in full], low_high
    side = "middle left" if x and x[0] > (low + high) / 2 else "middle right"
    words = [f" <b>full</b> {value_of(p, view) if p.level.value else ''} " for p in full]
    return {"x": x, "y": [y] * len(x), "text": words, "textposition": side}


# Lines over lengths, g or c


def _lines(view: QualityView) -> Properties:
    places = view.places
    at = {x: i for i, x in enumerate(places)}
    out = {}
    for name in SERIES:
        mine = [p for p in view.at(series=name) if p.x is not None]
        out[name] = {
            **{"x": [at[p.x] + DODGE[name] for p in mine], "y": [scaled(p, view) for p in mine]},
            # A line between means of different tasks would show a change that is none.
            "mode": "lines+markers" if view.connected else "markers",
            **hovers(view, mine),
            **error_bars(mine, view, "y"),
        }
    out |= _reference(view, [-0.4, len(places) - 0.6], upright=False)
    ends = [(name, out[name]) for name in SERIES if out[name]["x"]]
    out["name"] = _names_at_ends(view, ends)
    low_high = range_of(view)
    out |= _mark(view, places, low_high)
    quoted = [p for p in _last(view) if p.paper is not None]
    paper = range_of_paper([p.paper for p in quoted])
    out["paper"] = {
        **{"x": list(range(len(quoted))), "y": [p.paper for p in quoted]},
        "customdata": [f"<b>the paper</b>, {name_of(p, view.setting.question)}: {p.paper:g}" for p in quoted],
    }
    out["paper_value"] = {
        **{"x": list(range(len(quoted))), "y": [p.paper + 0.07 * (paper[1] - paper[0]) for p in quoted]},
        **{"text": [f"{p.paper:g}" for p in quoted], "textposition": "middle center"},
    }
    names = [name_of(p, view.setting.question).removesuffix(" selection") for p in quoted]
    layout = {
        **_common(view, bool(quoted)),
        **{"xaxis.title.text": _over(view), "xaxis.range": [-0.4, -0.4 + 1.12 * (len(places) - 0.1)]},
        **{"xaxis.tickvals": list(range(len(places))), "xaxis.ticktext": [_tick(view, x) for x in places]},
        **{"yaxis.title.text": unit_of(view), "yaxis.range": low_high, "yaxis.tickvals": None, "yaxis.ticktext": None},
        **{"xaxis2.title.text": "", "xaxis2.range": [-0.6, len(quoted) - 0.4]},
        **{"xaxis2.tickvals": list(range(len(quoted))), "xaxis2.ticktext": names},
        **{"yaxis2.range": paper, "yaxis2.tickvals": None, "yaxis2.ticktext": None},
    }
    return out, layout


def _last(view: QualityView) -> list[Point]:
    """The points that the paper's numbers belong to: over lengths one of each system."""
    return view.at(view.places[-1]) if view.setting.question == "length" and view.places else list(view.points)


def _names_at_ends(view: QualityView, ends: list) -> dict:
    """The name of each line at its right end, moved apart where they would meet, and down where they would leave."""
    low, high = range_of(view)
    least = 0.055 * (high - low)
    placed = sorted(ends, key=lambda one: one[1]["y"][-1])
    y: list[float] = []
    for _, drawn in placed:
        y.append(max(drawn["y"][-1], y[-1] + least) if y else drawn["y"][-1])
    limit = high - least / 2
    for i in reversed(range(len(y))):
        y[i] = min(y[i], limit)
        limit = y[i] - least
    right = max((drawn["x"][-1] for _, drawn in placed), default=0) + 0.08
    words = [f"<b>{NAMES[name].split()[0]}</b>" for name, _ in placed]
    return {"x": [right] * len(y), "y": y, "text": words, "textposition": "middle right"}


def _mark(view: QualityView, places: list[float], low_high: list[float]) -> dict:
    """Where in c the paper's Refine starts to lose, in proportion to topk."""
    wanted = view.setting.topk * LOSES_AT / LOSES_AT_TOPK
    if view.setting.question != "budget" or not places or not places[0] <= wanted <= places[-1]:
        return {}
    i = max(i for i, x in enumerate(places) if x <= wanted)
    part = 0.0 if places[i] == wanted else (wanted - places[i]) / (places[i + 1] - places[i])
    low, high = low_high
    y = [low, low + (0.06 if view.setting.measure == "task" else 0.94) * (high - low), high]
    return {"paper_mark": {"x": [i + part] * 3, "y": y, "text": ["", f" {MARK}", ""], "textposition": "middle right"}}


def _over(view: QualityView) -> str:
    return {"length": "tokens of text", "group": "g, queries of a group", "budget": "c, candidates"}[
        view.setting.question
    ]


def _tick(view: QualityView, x: float) -> str:
    if view.setting.question == "budget":
        return f"{x:,.0f} = {x / view.setting.topk:.3g} topk"
    return f"{x:,.0f}"


# What both share


def _reference(view: QualityView, ends: list[float], upright: bool) -> dict:
    """Full attention and dense selection as lines, where they have no place on the axis; marks at the last end."""
    out, (first, last) = {}, ends
    for point in [p for p in view.points if p.x is None]:
        value, low, high = (scale_of(view) * n for n in (point.level.value, point.level.low, point.level.high))
        marks = {"customdata": [hover(view, point)] * 2, "mode": "lines+markers", "marker.size": [0, SIZE]}
        out[point.series] = turned([first, last], [value, value], upright) | marks
        if point.series == "full":
            box = [first, last, last, first], [low, low, high, high]
            out["full_interval"] = turned(*box, upright) if low < high else {}
        else:
            out[point.series] |= {"error_y.visible": True, "error_y.array": [0, high - value]}
            out[point.series] |= {"error_y.arrayminus": [0, value - low]}
    return out


def _common(view: QualityView, quoted: bool) -> dict:
    """Headings, and the place of the paper's axes, which are gone where it has no numbers."""
    what = "Tasks answered" if view.setting.measure == "task" else "Loss of passages"
    only = "" if view.setting.only == "all" else f", {view.setting.only}"
    hollow = "hollow: no difference from dense selection is shown"
    scale = f"<br>{scale_name(view)}" if quoted else ""
    return {
        **{"xaxis.domain": [0, 0.72 if quoted else 1.0], "xaxis2.domain": [0.78, 1.0]},
        **{f"{axis}.visible": True for axis in ("xaxis", "yaxis")},
        **{f"{axis}.visible": quoted for axis in ("xaxis2", "yaxis2")},
        "annotations[0].text": f"<b>{what}{only}</b>, 95 % intervals<br>{hollow}",
        "annotations[1].text": f"<b>The paper</b><br>DeepSeek-V3.2{scale}" if quoted else "",
    }
