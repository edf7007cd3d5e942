"""The figure of `OverlapExplorer` as pure functions: a map, lines over distance and g, layers, one query's keys."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from widgets import key_bars, theme
from widgets.overlap_measures import chance_joint, chance_union
from widgets.overlap_view import LayerNumbers, OverlapView
from widgets.painting import Properties
from widgets.ranked_windows import GROUPS, WINDOW
from widgets.text import escape, rough, short

FEW_LAYERS = 8  # so many have their numbers beside their dots
TOP, BOTTOM = 0.3, 0.16  # where the upper parts begin, and the lowest ends
INK = "#ffffff"  # lines on the map's colours


def overlap_figure(names: list[str]) -> go.Figure:
    """The empty figure for layers of these names; several have a part that compares them."""
    several = len(names) > 1
    figure = go.Figure(layout=_layout(names))
    part = {name: {"xaxis": f"x{i}", "yaxis": f"y{i}"} for name, i in _PARTS.items()}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    dot = {"type": "scatter", "mode": "markers+text", "cliponaxis": False, "hoverinfo": "skip"}
    dotted = {"line": {"color": theme.GREY, "width": 1.5, "dash": "dot"}, "textfont": {"size": 11}}
    chance = {**line, "mode": "lines+text", "cliponaxis": False, **dotted}
    now = {**dot, "marker": {"color": theme.VERMILLION, "size": 10}, "textfont": {"size": 13}}
    blue = {"color": theme.BLUE, "width": 2.5}
    marks = {"hoverinfo": "all", "mode": "lines+markers", "marker": {"size": 5}}
    hatching = {"shape": "/", "fgcolor": INK, "fillmode": "overlay", "size": 5, "solidity": 0.2}
    traces = [
        {**_MAP, **part["map"]},
        {**line, "name": "groups", "line": {"color": INK, "width": 1.2}, **part["map"]},
        {**line, "name": "here", "line": {"color": theme.VERMILLION, "width": 2}, **part["map"]},
        {**chance, "mode": "lines", "name": "chance", **part["distance"]},
        {**line, "name": "overlap", "line": blue, "hoverinfo": "all", "hovertemplate": _DISTANCE, **part["distance"]},
        {**now, "name": "adjacent", "textposition": "top right", **part["distance"]},
        {**chance, "name": "union_most", "textposition": "top left", **part["union"]},
        {**chance, "name": "union_chance", "textposition": "top left", **part["union"]},
        {**line, **marks, "name": "union", "line": blue, "hovertemplate": _UNION, **part["union"]},
        {**now, "name": "union_now", "textposition": "bottom right", **part["union"]},
        {**chance, "mode": "lines", "name": "joint_chance", **part["joint"]},
        {**line, **marks, "name": "joint", "line": blue, "hovertemplate": _JOINT, **part["joint"]},
        {**now, "name": "joint_now", "textposition": "top right", **part["joint"]},
        {**key_bars.BAR, "name": "shared", "marker": {"color": theme.GREEN}, **part["keys"]},
        {**key_bars.BAR, "name": "new", "marker": {"color": theme.VERMILLION, "pattern": hatching}, **part["keys"]},
        {**line, "name": "own", "line": {"color": theme.GREY, "width": 1.5, "dash": "dash"}, **part["keys"]},
    ]
    if several:
        few = {"mode": "markers+text"} if len(names) <= FEW_LAYERS else {}
        hover = {"hoverinfo": "all", "hovertemplate": "%{customdata}<extra></extra>"}
        ring = {"symbol": "circle-open", "size": 15, "color": theme.VERMILLION, "line": {"width": 2.5}}
        dots = {**dot, "mode": "markers", "marker": {"color": theme.BLUE, "size": 9}, **few, **hover}
        traces += [
            {**dots, "name": "layers", **part["layers"]},
            {**dot, "mode": "markers", "name": "layer_now", "marker": ring, **part["layers"]},
        ]
    make = {"bar": go.Bar, "heatmap": go.Heatmap, "scatter": go.Scatter}
    figure.add_traces([make[trace["type"]](trace) for trace in traces])
    return figure


_PARTS = {"map": "", "distance": 2, "union": 3, "joint": 4, "keys": 5, "layers": 6}
_DISTANCE = "%{x} tokens apart: %{y:.1%} of their keys shared<extra></extra>"
_UNION = "g = %{x}: together %{y:.2f} × k keys<extra></extra>"
_JOINT = "g = %{x}: all want %{y:.1%} of k<extra></extra>"
_WORDS = {10: "nothing shared ", 64: "by chance"}  # where lines over g have their names
_MAP = {
    "type": "heatmap",
    "name": "map",
    "zmin": 0,
    "zmax": 1,
    "colorscale": "Viridis",
    "hoverongaps": False,
    "hovertemplate": "queries %{x} and %{y}: %{z:.1%} of their keys shared<extra></extra>",
    "colorbar": {
        "thickness": 10,
        "x": 0.362,
        "xpad": 0,
        "ypad": 0,
        "y": TOP,
        "yanchor": "bottom",
        "len": 1 - TOP,
        "tickformat": ".0%",
        "tickvals": [0, 0.5, 1],
        "outlinewidth": 0,
        "ticks": "",
    },
}


def _layout(names: list[str]) -> dict:
    def heading(x: float, y: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": y}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    several = len(names) > 1
    left, right = 0.5, 0.72 if several else 1.0
    upper, lower = [0.71, 1], [TOP, 0.575]
    cut = (left + 1) / 2
    share = {"tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1], "range": [0, 1.04]}
    size = {"type": "log", "tickvals": [1, 2, 4, 8, 16, 32, 64]}
    of_g = {**size, "range": [-0.06, np.log10(WINDOW * 1.15)]}
    axis = theme.axis
    axes = {
        "xaxis": axis("query", domain=[0, 0.35], showgrid=False, constrain="domain"),
        "yaxis": axis("query", domain=[TOP, 1], showgrid=False),
        "xaxis2": axis("distance of two queries [tokens]", domain=[left, right], anchor="y2", type="log"),
        "yaxis2": axis("", domain=upper, anchor="x2", **share),
        "xaxis3": axis("g queries a group", domain=[left, cut - 0.035], anchor="y3", **of_g),
        "yaxis3": axis("", domain=lower, anchor="x3", **{**of_g, "tickvals": [1, 2, 4, 8, 16, 32, 64]}),
        "xaxis4": axis("g queries a group", domain=[cut + 0.035, 1], anchor="y4", **of_g),
        "yaxis4": axis("", domain=lower, anchor="x4", **share),
        "xaxis5": axis("key [position]", domain=[0, 1], anchor="y5", showgrid=False),
        "yaxis5": axis("", domain=[0, BOTTOM], anchor="x5", tickformat=".0%", nticks=3),
    }
    headings = [heading(0, 1), heading(left, 1), heading(left, 0.575), heading(cut + 0.035, 0.575), heading(0, BOTTOM)]
    if several:
        ticks = {"tickvals": list(range(len(names))), "ticktext": [escape(name, 14) for name in names]}
        if len(names) > FEW_LAYERS:
            every = -(-len(names) // FEW_LAYERS)
            ticks = {name: values[::every] for name, values in ticks.items()}
        ends = {"range": [len(names) - 0.4, -0.6], "showgrid": len(names) <= FEW_LAYERS}
        axes["xaxis6"] = axis("neighbours share", domain=[0.8, 1], anchor="y6", **share | {"tickvals": [0, 0.5, 1]})
        axes["yaxis6"] = axis("", domain=upper, anchor="x6", **ticks, **ends)
        headings.append(heading(0.8, 1))
    return {
        **theme.layout(640),
        "barmode": "stack",
        "bargap": 0,
        "margin": {"l": 58, "r": 20, "t": 30, "b": 44},
        **axes,
        "annotations": headings,
    }


def overlap_properties(view: OverlapView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    traces = {**map_traces(view), **distance_traces(view), **group_traces(view), **key_traces(view)}
    layout = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))} | axes(view, traces)
    if len(view.layers) > 1:
        traces |= layer_traces(view)
    return traces, layout


def map_traces(view: OverlapView) -> dict[str, dict]:
    """The map, squares around its groups of g, and a frame around the open query's row and column.

    The map's cells are columns of x, y and z: those travel as bytes, a matrix as JSON, which has no NaN.
    """
    rows, starts = np.arange(view.rows.start, view.rows.stop), view.chosen.groups(view.g)
    low, high = rows[0] + starts - 0.5, rows[0] + starts + view.g - 0.5
    gap = np.full(len(starts), np.nan)
    squares = {
        "x": np.stack([low, high, high, low, low, gap], 1).ravel(),
        "y": np.stack([low, low, high, high, low, gap], 1).ravel(),
    }
    q, first, last = view.query, rows[0] - 0.5, rows[-1] + 0.5
    column = [q - 0.5, q + 0.5, q + 0.5, q - 0.5, q - 0.5, None]
    row = [first, first, last, last, first, None]
    return {
        "map": {
            "x": np.tile(rows, len(rows)).astype(np.float32),
            "y": np.repeat(rows, len(rows)).astype(np.float32),
            "z": view.chosen.overlap.ravel().astype(np.float32),
        },
        "groups": squares if view.g > 1 else {"x": np.empty(0), "y": np.empty(0)},
        "here": {"x": [*column, *row], "y": [*row, *column]},
    }


def distance_traces(view: OverlapView) -> dict[str, dict]:
    """Overlap against distance, the mean of neighbours on it, and what chance alone would share."""
    distances, overlap = view.chosen.by_distance
    share, now = view.chosen.share, view.now.adjacent
    ends = [float(distances[0]), float(distances[-1])] if len(distances) else []
    words = "neighbours" if view.chosen.ranked.step == 1 else f"{view.chosen.ranked.step:,} apart"
    label = [] if np.isnan(now) else [f" {words}: {rough(now)}"]
    return {
        "overlap": {"x": distances, "y": overlap},
        "adjacent": {"x": ends[:1] if label else [], "y": [now] if label else [], "text": label},
        "chance": {"x": ends, "y": [share] * len(ends)},
    }


def group_traces(view: OverlapView) -> dict[str, dict]:
    """Union and joint set over g with the current g marked, between what chance gives and the most there can be."""
    sizes, union, joint = view.chosen.over_g
    share, now, g = view.chosen.share, view.now, view.g
    line = np.asarray(GROUPS, np.float64)
    known = not np.isnan(now.union)
    at = {size: [words if one == size else "" for one in GROUPS] for size, words in _WORDS.items()}
    return {
        "union": {"x": sizes, "y": union},
        "union_now": {"x": [g] * known, "y": [now.union] * known, "text": [f"{now.union:.2f} × k"] * known},
        "union_most": {"x": line, "y": line, "text": at[10]},
        "union_chance": {"x": line, "y": chance_union(share, line), "text": at[64]},
        "joint": {"x": sizes, "y": joint},
        "joint_now": {"x": [g] * known, "y": [now.joint] * known, "text": [f" {rough(now.joint)}"] * known},
        "joint_chance": {"x": line, "y": chance_joint(share, line)},
    }


def key_traces(view: OverlapView) -> dict[str, dict]:
    """Where on the position axis the open query's keys are: how much of each bin, shared with its neighbour or not."""
    shared, new = view.keys()
    return {
        **key_bars.binned(view.n_keys, shared=shared, new=new),
        "own": {"x": [view.position] * 2, "y": [0, 1]},
    }


def layer_traces(view: OverlapView) -> dict[str, dict]:
    """Every layer's neighbours, with its union beside the dot; the open layer has a ring."""
    names, numbers = list(view.layers), list(view.layers.values())
    here = names.index(view.layer.name)
    adjacent = [None if np.isnan(one.adjacent) else one.adjacent for one in numbers]
    return {
        "layers": {
            "x": adjacent,
            "y": list(range(len(names))),
            "text": [_beside(one) for one in numbers],
            "textposition": [f"top {_side(one.adjacent)}" for one in numbers],
            "customdata": [_layer_hover(name, one, view.g) for name, one in view.layers.items()],
        },
        "layer_now": {"x": [adjacent[here]], "y": [here]},
    }


def _side(share: float) -> str:
    """Where a label keeps off the ends of an axis of shares."""
    return "right" if share < 0.3 else "left" if share > 0.7 else "center"


def _beside(one: LayerNumbers) -> str:
    if np.isnan(one.adjacent):
        return ""
    return rough(one.adjacent) + ("" if np.isnan(one.union) else f" · {one.union:.2f} × k")


def _layer_hover(name: str, one: LayerNumbers, g: int) -> str:
    title = f"<b>{escape(name, 40)}</b>"
    if np.isnan(one.adjacent):
        return f"{title}<br>not read, or no neighbours"
    return (
        f"{title}<br>neighbours share {short(one.adjacent)}<br>"
        f"{g} together want {one.union:.2f} × k<br>all {g} want {short(one.joint)} of k"
    )


def headings(view: OverlapView) -> list[str]:
    """What each part says above it."""
    green, red = (f"<span style='color:{c}'>■</span>" for c in (theme.GREEN, theme.VERMILLION))
    now, g = view.now, view.g
    some = (
        "no neighbours" if np.isnan(now.adjacent) else f"{rough(now.adjacent)}, ┄ by chance {rough(view.chosen.share)}"
    )
    kinds = (
        "" if view.neighbour is None else f": {green} shared with query {view.rows[view.neighbour]} {red} not shared"
    )
    squares = f", □ g = {g}" if g > 1 and len(view.chosen.groups(g)) else ""
    out = [
        f"<b>Keys two queries share</b>{squares}",
        "<b>Overlap</b> " + ("of no neighbours" if np.isnan(now.adjacent) else some),
        f"<b>Union / k</b> of {g}" + ("" if np.isnan(now.union) else f": {now.union:.2f}"),
        f"<b>Joint / k</b> of {g}" + ("" if np.isnan(now.joint) else f": {rough(now.joint)}"),
        f"<b>Keys of query {view.query}</b>{view.token}, part of the keys there{kinds}",
    ]
    return [*out, f"<b>Layers</b>, union of {g}"] if len(view.layers) > 1 else out


def axes(view: OverlapView, traces: dict) -> dict:
    """Axis settings that follow the window and the selection, by path."""
    ends = [view.rows.start - 0.5, view.rows.stop - 0.5]
    distances = traces["overlap"]["x"]
    last = max(float(distances[-1]), 2.0) if len(distances) else 2.0
    first = float(distances[0]) if len(distances) else 1.0
    ticks = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192, 32768, 131072) if first <= n <= last]
    return {
        "xaxis.range": ends,
        "yaxis.range": ends,
        "xaxis.dtick": 1 if len(view.rows) <= 12 else None,
        "yaxis.dtick": 1 if len(view.rows) <= 12 else None,
        "xaxis2.range": [np.log10(first) - 0.04, np.log10(max(last, first * 1.01)) + 0.02],
        "xaxis2.tickvals": ticks,
        "xaxis5.range": [-0.5, view.n_keys - 0.5],
        "yaxis5.range": key_bars.ends(key_bars.highest(view.n_keys, *view.keys())),
    }
