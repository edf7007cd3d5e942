"""The empty figure of `PivotExplorer`: lines over g and c, systems, a score tail, members, and one query's keys."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from widgets import key_bars, theme
from widgets.ranked_windows import WINDOW
from widgets.text import DECADES

LEFT, MIDDLE, RIGHT = (0.0, 0.25), (0.32, 0.57), (0.7, 1.0)  # the upper parts, across
TAIL, MEMBERS = (0.0, 0.57), (0.65, 1.0)  # the middle ones
TOP, CENTRE, LOW = (0.68, 1.0), (0.27, 0.53), (0.0, 0.12)  # up and down
PER_CENT = {"tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1], "range": [0, 1.04]}
SIZES = [1, 2, 4, 8, 16, 32, 64]
_PARTS = {"g": "", "c": 2, "systems": 3, "tail": 4, "members": 5, "keys": 6}
_FOUND = "{}, {} = %{{x:,}}: %{{y:.1%}} {}<extra></extra>"


def pivot_figure() -> go.Figure:
    """The empty figure."""
    part = {name: {"xaxis": f"x{i}", "yaxis": f"y{i}"} for name, i in _PARTS.items()}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    both = {**line, "mode": "lines+markers", "hoverinfo": "all"}
    refine = {"line": {"color": theme.BLUE, "width": 2.5}, "marker": {"size": 5}}
    reuse = {"line": {"color": theme.ORANGE, "width": 2.5, "dash": "dash"}, "marker": {"size": 6, "symbol": "square"}}
    refine_mass = {"line": {"color": theme.BLUE, "width": 1.2, "dash": "dot"}}
    reuse_mass = {"line": {"color": theme.ORANGE, "width": 1.2, "dash": "dot"}}
    grey = {"line": {"color": theme.GREY, "width": 1.2, "dash": "dot"}, "mode": "lines"}
    ring = {"symbol": "circle-open", "size": 13, "color": theme.VERMILLION, "line": {"width": 2.5}}
    now = {"type": "scatter", "mode": "markers+text", "cliponaxis": False, "hoverinfo": "skip", "marker": ring}
    cut = {**line, "mode": "lines+text", "cliponaxis": False, "textposition": "middle right"}
    bar = {**key_bars.BAR, **part["keys"]}
    hatch = {"fillmode": "overlay", "fgcolor": "#ffffff", "size": 5, "solidity": 0.2}
    traces = [
        {**line, **grey, "name": "attention_g", **part["g"]},
        {
            **line,
            **refine_mass,
            "name": "refine_mass_g",
            "hoverinfo": "all",
            **_hover("Refine", "g", "mass"),
            **part["g"],
        },
        {**line, **reuse_mass, "name": "reuse_mass_g", "hoverinfo": "all", **_hover("Reuse", "g", "mass"), **part["g"]},
        {**both, **reuse, "name": "reuse_g", **_hover("Reuse", "g"), **part["g"]},
        {**both, **refine, "name": "refine_g", **_hover("Refine", "g"), **part["g"]},
        {**now, "name": "now_g", **part["g"]},
        {**line, **grey, "name": "attention_c", **part["c"]},
        {
            **line,
            **refine_mass,
            "name": "refine_mass_c",
            "hoverinfo": "all",
            **_hover("Refine", "c", "mass"),
            **part["c"],
        },
        {**line, **reuse, "name": "reuse_c", **part["c"]},
        {**both, **refine, "name": "refine_c", **_hover("Refine", "c"), **part["c"]},
        {**now, "name": "now_c", "textposition": "bottom right", **part["c"]},
        {**_SYSTEMS, "name": "systems", **part["systems"]},
        {**_ATTENTION, "name": "systems_mass", **part["systems"]},
        {**_BESIDE, "name": "systems_text", **part["systems"]},
        {
            **line,
            "name": "attention_so_far",
            "line": {"color": theme.GREEN, "width": 1.5, "dash": "dot"},
            **part["tail"],
        },
        {
            **line,
            "name": "scores",
            "line": {"color": theme.GREY, "width": 2},
            "fill": "tozeroy",
            **_TAIL,
            **part["tail"],
        },
        {**line, "name": "so_far", "line": {"color": theme.BLUE, "width": 2.5}, **_SO_FAR, **part["tail"]},
        {**cut, "name": "k_cut", "line": {"color": theme.VERMILLION, "width": 2}, **part["tail"]},
        {**cut, "name": "c_cut", "line": {"color": theme.VERMILLION, "width": 1.5, "dash": "dash"}, **part["tail"]},
        {**_MEMBERS, "name": "members", "marker": {"color": theme.VERMILLION, "pattern": {"shape": "/", **hatch}}},
        {
            **both,
            "name": "regret",
            "line": {"color": theme.PURPLE, "width": 2, "dash": "dash"},
            **_REGRET,
            **part["members"],
        },
        {
            **now,
            "name": "group",
            "mode": "markers",
            "marker": {**ring, "color": theme.BLUE, "size": 10},
            **_GROUP,
            **part["members"],
        },
        {**bar, "name": "kept", "marker": {"color": theme.GREEN}},
        {**bar, "name": "lost", "marker": {"color": theme.VERMILLION, "pattern": {"shape": "/", **hatch}}},
        {**bar, "name": "gained", "marker": {"color": theme.ORANGE, "pattern": {"shape": ".", **hatch}}},
        {**line, "name": "own", "line": {"color": theme.GREY, "width": 1.5, "dash": "dash"}, **part["keys"]},
    ]
    make = {"bar": go.Bar, "scatter": go.Scatter}
    figure = go.Figure(layout=_layout())
    figure.add_traces([make[trace["type"]](trace) for trace in traces])
    return figure


def _hover(name: str, axis: str, what: str = "keys") -> dict:
    words = "of a query's own keys" if what == "keys" else "of the attention"
    return {"hovertemplate": _FOUND.format(name, axis, words)}


_SYSTEMS = {"type": "bar", "orientation": "h", "hovertemplate": "%{customdata}<extra></extra>", "width": 0.62}
_SYSTEMS |= {"marker": {"pattern": {"fillmode": "overlay", "fgcolor": "#ffffff", "size": 6, "solidity": 0.2}}}
_BESIDE = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "cliponaxis": False, "textposition": "middle right"}
_ATTENTION = {"type": "scatter", "mode": "markers", "hoverinfo": "skip", "cliponaxis": False}
_ATTENTION |= {"marker": {"symbol": "diamond-open", "size": 9, "color": theme.GREEN, "line": {"width": 2}}}
_TAIL = {"hoverinfo": "all", "hovertemplate": "rank %{x:,}: %{y:.1%} of the best score<extra></extra>"}
_TAIL |= {"fillcolor": "rgba(140, 140, 140, 0.2)"}
_SO_FAR = {"hoverinfo": "all", "hovertemplate": "the best %{x:,} hold %{y:.1%} of all score<extra></extra>"}
_MEMBERS = {"type": "bar", "xaxis": "x5", "yaxis": "y5", "width": 0.7}
_MEMBERS |= {"hovertemplate": "member %{x}: loses %{y:.1%} of its keys, in the mean of the groups<extra></extra>"}
_REGRET = {"hovertemplate": "member %{x}: loses %{y:.1%} of their score<extra></extra>", "marker": {"size": 5}}
_GROUP = {"hoverinfo": "all", "hovertemplate": "member %{x} of the open query's group: %{y:.1%}<extra></extra>"}


def _layout() -> dict:
    def heading(x: float, y: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": y}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    axis = theme.axis
    of_g = {"type": "log", "tickvals": SIZES, "range": [-0.06, np.log10(WINDOW * 1.15)]}
    decades = {"type": "log", "tickvals": list(DECADES), "ticktext": list(DECADES.values())}
    axes = {
        "xaxis": axis("g queries a group", domain=LEFT, **of_g),
        "yaxis": axis("", domain=TOP, **PER_CENT),
        "xaxis2": axis("c candidates a group", domain=MIDDLE, anchor="y2", type="log"),
        "yaxis2": axis("", domain=TOP, anchor="x2", **PER_CENT),
        "xaxis3": axis("share of a query's own keys", domain=RIGHT, anchor="y3", **PER_CENT | {"range": [0, 1.9]}),
        "yaxis3": axis("", domain=TOP, anchor="x3", showgrid=False, ticks=""),
        "xaxis4": axis("rank of the key in the query's own order", domain=TAIL, anchor="y4", **decades),
        "yaxis4": axis("", domain=CENTRE, anchor="x4", **PER_CENT),
        "xaxis5": axis("member of the group", domain=MEMBERS, anchor="y5", showgrid=False),
        "yaxis5": axis("", domain=CENTRE, anchor="x5", tickformat=".0%", nticks=4),
        "xaxis6": axis("key [position]", domain=[0, 1], anchor="y6", showgrid=False),
        "yaxis6": axis("", domain=LOW, anchor="x6", tickformat=".0%", nticks=3),
    }
    corners = [(LEFT, TOP), (MIDDLE, TOP), (RIGHT, TOP), (TAIL, CENTRE), (MEMBERS, CENTRE), ((0,), LOW)]
    return {
        **theme.layout(660),
        "barmode": "stack",
        "bargap": 0,
        "margin": {"l": 58, "r": 20, "t": 30, "b": 44},
        **axes,
        "annotations": [heading(x[0] if x is not RIGHT else 0.6, y[1]) for x, y in corners],
    }
