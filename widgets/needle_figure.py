"""The figure of `NeedleExplorer` as pure functions: chosen keys of the prompt, the needle's key, the line over c."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from widgets import theme
from widgets.needle_view import NeedleView, quoted, verdict
from widgets.painting import Properties
from widgets.text import escape, percent

PARTS = {"prompt": (0.8, 1.0), "needed": (0.47, 0.64), "curve": (0.0, 0.37)}
GOOD = {"symbol": "circle", "size": 11, "color": theme.GREEN}
BAD = {"symbol": "x", "size": 11, "color": theme.VERMILLION}


def needle_figure() -> go.Figure:
    """The empty figure: three parts below each other; the lower two share the axis of c."""
    figure = go.Figure(layout=_layout())
    prompt, needed, curve = ({"xaxis": f"x{n}", "yaxis": f"y{n}"} for n in ("", 2, 3))
    marks, line = {"mode": "markers", "cliponaxis": False}, {"mode": "lines", "hoverinfo": "skip"}
    labelled = {"mode": "lines+text", "hoverinfo": "skip", "cliponaxis": False}
    tick = {"symbol": "line-ns", "size": 11, "line": {"width": 1.5, "color": theme.GREEN}}
    cut = {"color": theme.VERMILLION, "width": 2}
    hover = {"hovertemplate": "%{customdata}<extra></extra>"}
    blue, grey = {"color": theme.BLUE, "width": 1.5, "dash": "dash"}, {"color": theme.GREY, "width": 1.5, "dash": "dot"}
    now = {"symbol": "diamond-open", "size": 17, "color": theme.VERMILLION, "line": {"width": 2}}
    needed_text = {**marks, "mode": "markers+text", "textposition": "middle right", "textfont": {"size": 12}, **hover}
    figure.add_traces(
        [
            go.Scatter(name="lanes", line={"color": theme.GRID, "width": 1}, connectgaps=False, **line, **prompt),
            go.Scatter(name="chosen", marker=tick, **marks, **hover, **prompt),
            go.Scatter(name="key_kept", marker=GOOD, **marks, **hover, **prompt),
            go.Scatter(name="key_lost", marker=BAD, **marks, **hover, **prompt),
            go.Scatter(name="taken", fill="toself", fillcolor="rgba(0, 158, 115, 0.12)", **_bare(line), **needed),
            go.Scatter(name="cut", line=cut, textposition="top center", **labelled, **needed),
            go.Scatter(name="inside", marker=GOOD, **needed_text, **needed),
            go.Scatter(name="outside", marker=BAD, **needed_text, **needed),
            go.Scatter(name="illegal", fill="toself", fillcolor="rgba(140, 140, 140, 0.16)", **_bare(line), **curve),
            go.Scatter(name="full", line=blue, textposition="top right", textfont={"size": 11}, **labelled, **curve),
            go.Scatter(
                name="dense", line=grey, textposition="bottom right", textfont={"size": 11}, **labelled, **curve
            ),
            go.Scatter(name="curve", line={"color": theme.GREY, "width": 2}, **line, **curve),
            go.Scatter(name="right", marker=GOOD, **marks, **hover, **curve),
            go.Scatter(name="wrong", marker=BAD, **marks, **hover, **curve),
            go.Scatter(name="cut_c", line=cut, **line, **curve),
            go.Scatter(name="now", marker=now, **marks, **hover, **curve),
        ]
    )
    return figure


def _bare(line: dict) -> dict:
    return {**line, "line": {"width": 0}}


def _layout() -> dict:
    prompt, needed, curve = PARTS.values()
    lanes = {"showgrid": False, "ticks": ""}
    place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    heading = {"text": "", "x": 0, "font": {"size": 13}, **place}
    band = {"type": "rect", "xref": "x", "yref": "y domain", "y0": 0, "y1": 1, "line": {"width": 0}, "layer": "below"}
    word = {"yref": "paper", "y": prompt[1] - 0.005, "yanchor": "bottom", "showarrow": False, "text": "", "x": 0}
    return {
        **theme.layout(600),
        "margin": {"l": 76, "r": 24, "t": 44, "b": 44},
        "xaxis": theme.axis("", domain=[0, 1], anchor="y", showgrid=False),
        "yaxis": theme.axis("", domain=prompt, anchor="x", **lanes),
        "xaxis2": theme.axis("", domain=[0, 1], anchor="y2", type="log", showticklabels=False),
        "yaxis2": theme.axis("", domain=needed, anchor="x2", **lanes),
        "xaxis3": theme.axis("c candidates [keys]", domain=[0, 1], anchor="y3", type="log", matches="x2"),
        "yaxis3": theme.axis("probability", domain=curve, anchor="x3", range=[-0.04, 1.04], tickformat=".0%"),
        "annotations": [
            {**heading, "y": prompt[1] + 0.035},
            {**heading, "y": needed[1] + 0.04},
            {**heading, "y": curve[1] + 0.005},
            {**word, "xref": "x", "xanchor": "center"},
            {**word, "xref": "x", "xanchor": "right"},
        ],
        "shapes": [
            {**band, "fillcolor": "rgba(0, 114, 178, 0.45)"},
            {**band, "fillcolor": "rgba(140, 140, 140, 0.45)"},
        ],
    }


def needle_properties(view: NeedleView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    traces = {**prompt_traces(view), **needed_traces(view), **curve_traces(view)}
    layout = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, layout | axes(view)


def prompt_traces(view: NeedleView) -> dict[str, dict]:
    """In each layer the keys that the answering query attends to, and the needle's key, kept or lost."""
    places, key = view.shown.places, view.made.key
    height = {layer: i for i, layer in enumerate(view.layers)}
    positions = [int(p) for place in places.values() for p in place.chosen]
    of = [layer for layer, place in places.items() for _ in place.chosen]
    token = {p: escape(view.tokens[p], 30) for p in {*positions, key}}
    traces = {
        "lanes": {
            "x": np.array([0, view.n_keys - 1, np.nan] * len(height), np.float32),
            "y": np.repeat(np.arange(len(height)), 3),
        },
        "chosen": {
            "x": positions,
            "y": [height[layer] for layer in of],
            "customdata": [f"<b>{token[p]}</b>, position {p:,}, selected in layer {n}" for p, n in zip(positions, of)],
        },
    }
    for name, kept in (("key_kept", True), ("key_lost", False)):
        mine = [layer for layer, place in places.items() if place.selected == kept]
        traces[name] = {
            "x": [key] * len(mine),
            "y": [height[layer] for layer in mine],
            "customdata": [f"the needle's key <b>{token[key]}</b><br>{_fate(view, layer)}" for layer in mine],
        }
    return traces


def _fate(view: NeedleView, layer: int) -> str:
    place = view.shown.places[layer]
    own = f"layer {layer}: rank {place.rank + 1:,} for the query that answers"
    proxy = "" if view.at.system == "dense" else f"<br>{'' if place.candidate else 'not '}among the candidates"
    return f"{own}{proxy}<br>{'' if place.selected else 'not '}selected"


def needed_traces(view: NeedleView) -> dict[str, dict]:
    """In each layer how many keys must be taken before the needle's is, against how many are."""
    places, left = view.shown.places, left_of(view)
    height = {layer: i for i, layer in enumerate(view.layers)}
    ends, traces = [-0.6, len(height) - 0.4], {}
    what = "c" if view.at.system == "refine" else "k"
    again = f"another {what} changes what later layers are given, and so their order"
    for name, inside in (("inside", True), ("outside", False)):
        mine = [layer for layer, place in places.items() if place.candidate == inside]
        traces[name] = {
            "x": [min(max(places[n].needed, 1.1 * left), view.n_keys) for n in mine],
            "y": [height[layer] for layer in mine],
            "text": [f"  {_needed(view, layer)}" for layer in mine],
            "textposition": ["middle left" if places[n].needed > 0.4 * view.n_keys else "middle right" for n in mine],
            "customdata": [f"{_fate(view, layer)}<br>{again}" for layer in mine],
        }
    cut = [] if view.cut is None else [view.cut]
    words = f"{what} = {view.cut or 0:,}"
    traces["cut"] = {"x": cut * 2, "y": ends * len(cut), "text": [words, ""] * len(cut)}
    box = {"x": [left, *cut, *cut, left], "y": [ends[0], ends[0], ends[1], ends[1]]}
    traces["taken"] = {name: values * len(cut) for name, values in box.items()}
    return traces


def _needed(view: NeedleView, layer: int) -> str:
    place = view.shown.places[layer]
    if place.is_dense and view.at.system != "dense":
        return f"searched by itself: {place.rank + 1:,} of {view.n_keys:,}"
    return f"{place.needed:,}" + ("" if place.selected or not place.candidate else ", but the query prefers others")


def curve_traces(view: NeedleView) -> dict[str, dict]:
    """The probability of the right answer over c with Refine, between full attention and dense selection."""
    known = sorted(view.curve)
    left, right = left_of(view), 1.15 * view.n_keys
    traces = {
        "curve": {"x": known, "y": [view.curve[c].probability for c in known]},
        "illegal": {"x": [left, view.at.least, view.at.least, left], "y": [-0.04, -0.04, 1.04, 1.04]},
    }
    for name, is_right in (("right", True), ("wrong", False)):
        mine = [c for c in known if view.curve[c].right == is_right]
        traces[name] = {
            "x": mine,
            "y": [view.curve[c].probability for c in mine],
            "customdata": [_point(view, c) for c in mine],
        }
    for name, reply, words in (("full", view.full, "full attention"), ("dense", view.dense, "dense selection")):
        said = f" {words}: {verdict(reply)}, {percent(reply.probability)}"
        traces[name] = {"x": [left, right], "y": [reply.probability] * 2, "text": [said, ""]}
    swap = view.full.probability < view.dense.probability
    traces["full"]["textposition"] = "bottom right" if swap else "top right"
    traces["dense"]["textposition"] = "top right" if swap else "bottom right"
    is_refine = view.at.system == "refine"
    c = view.at.budget
    traces["cut_c"] = {"x": [c, c] * is_refine, "y": [-0.04, 1.04] * is_refine}
    traces["now"] = {
        "x": [c] * is_refine,
        "y": [view.shown.probability] * is_refine,
        "customdata": [_words(view, c, view.shown)] * is_refine,
    }
    return traces


def _point(view: NeedleView, c: int) -> str:
    return _words(view, c, view.curve[c])


def _words(view: NeedleView, c: int, reply) -> str:
    lost = [str(layer) for layer, place in reply.places.items() if not place.selected]
    where = f"key lost in layers {', '.join(lost)}" if lost else "key selected in every layer"
    said = f"answers {escape(quoted(reply), 30)}: {verdict(reply)}"
    return f"c = {c:,}: {said}<br>right answer {percent(reply.probability)}<br>{where}"


def left_of(view: NeedleView) -> float:
    """The left end of the axis of c, where keys are drawn that come earlier."""
    return 0.7 * min(view.at.k, view.at.least)


def headings(view: NeedleView) -> list[str]:
    """What each part says above it, and the words at needle and question."""
    at, green, cross = (
        view.at,
        f"<span style='color:{theme.GREEN}'>",
        f"<span style='color:{theme.VERMILLION}'>✖</span>",
    )
    keys = (
        "under full attention every key is seen"
        if at.system == "full"
        else (
            f"{green}┃</span> the {at.k:,} keys that the answering query attends to; the needle's key: {green}●</span> "
            f"attended to, {cross} lost"
        )
    )
    proxy = f"as its group's proxy ({at.proxy} of {at.g} queries) ranks it"
    why = {
        "refine": f"how many candidates c the needle's key needs, {proxy} at this c",
        "reuse": f"how many keys k the needle's key needs, {proxy} at this k",
        "dense": "how many keys k the needle's key needs, as the answering query itself ranks it at this k",
        "full": "full attention selects nothing",
    }[at.system]
    return [
        f"<b>1 · The prompt</b> by position [token]: {keys}",
        f"<b>2 · Why</b>: {why}",
        f"<b>3 · Probability of the right answer</b> with Refine over c (proxy: {at.proxy} of {at.g}): {green}●</span> "
        f"right, {cross} wrong; grey: no legal c",
        "needle",
        "question",
    ]


def axes(view: NeedleView) -> dict:
    """Axis settings that follow the prompt, by path."""
    made, n, count = view.made, view.n_keys, len(view.layers)
    names = [f"layer {layer}" for layer in view.layers]
    layout = {"xaxis.range": [-0.01 * n, 1.01 * n]}
    for axis in ("yaxis", "yaxis2"):
        layout |= {f"{axis}.tickvals": list(range(count)), f"{axis}.ticktext": names}
        layout[f"{axis}.range"] = [count - 0.4, -0.6]
    layout["xaxis2.range"] = layout["xaxis3.range"] = [math.log10(left_of(view)), math.log10(1.15 * n)]
    ticks = [2**i for i in range(24) if left_of(view) <= 2**i <= n]
    for axis in ("xaxis2", "xaxis3"):
        layout |= {f"{axis}.tickvals": ticks, f"{axis}.ticktext": [f"{tick:,}" for tick in ticks]}
    wide = max(2.0, 0.002 * n)  # a needle of a few tokens must be seen
    for i, part in enumerate((made.line, made.question)):
        layout |= {f"shapes[{i}].x0": part.start - wide / 2, f"shapes[{i}].x1": part.stop + wide / 2}
    middle = (made.line.start + made.line.stop) / 2
    return layout | {"annotations[3].x": middle, "annotations[4].x": n}
