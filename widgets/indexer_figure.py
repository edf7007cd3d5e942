"""The figure of `IndexerExplorer` as pure functions: products, weighted products, scores and attention, key by key."""

from __future__ import annotations

import functools

import numpy as np
import plotly.graph_objects as go

from widgets import theme
from widgets.indexer_view import IndexerView
from widgets.painting import Properties
from widgets.text import escape, number, percent

FEW = 24  # keys whose bars, and cells without a colour, have their numbers
WIDE = 0.86  # where the columns of keys end
PARTS = {"products": (0.83, 1.0), "weighted": (0.6, 0.77), "score": (0.26, 0.53), "mass": (0.0, 0.19)}
HATCHING = {"shape": "/", "fgcolor": "#ffffff", "fillmode": "overlay", "size": 5, "solidity": 0.25}


def indexer_figure() -> go.Figure:
    """The empty figure: four parts with one column a key, and each head's weight at the right."""
    figure = go.Figure(layout=_layout())
    bar = {"textposition": "outside", "cliponaxis": False, "textfont": {"size": 11}, "textangle": 0}
    dropped = {"marker": {"color": theme.GREY, "pattern": HATCHING}}
    score = {**bar, "xaxis": "x3", "yaxis": "y3", "hovertemplate": "%{customdata}<extra></extra>"}
    mass = {**bar, "xaxis": "x4", "yaxis": "y4", "hovertemplate": "%{customdata}<extra></extra>"}
    line = {"mode": "lines+text", "hoverinfo": "skip", "cliponaxis": False, "xaxis": "x3", "yaxis": "y3"}
    cut = {"line": {"color": theme.VERMILLION, "width": 1.5, "dash": "dash"}, "textposition": "middle right"}
    zero = {"mode": "text", "hoverinfo": "skip", "textfont": {"size": 11}, "xaxis": "x2", "yaxis": "y2"}
    heads = {"orientation": "h", "xaxis": "x5", "yaxis": "y5", "marker": {"color": theme.BLUE}}
    figure.add_traces(
        [
            go.Heatmap(name="products", **_map("", PARTS["products"])),
            go.Heatmap(name="weighted", **_map("2", PARTS["weighted"])),
            go.Scatter(name="zero", **zero),
            go.Bar(name="weights", **heads, hovertemplate="head %{y}: w = %{x:.4g}<extra></extra>"),
            go.Bar(name="kept", marker={"color": theme.GREEN}, **score),
            go.Bar(name="dropped", **dropped, **score),
            go.Scatter(name="cut", **line, **cut),
            go.Bar(name="mass_kept", marker={"color": theme.GREEN}, **mass),
            go.Bar(name="mass_dropped", **dropped, **mass),
        ]
    )
    return figure


def _map(axis: str, domain: tuple[float, float]) -> dict:
    bar = {"thickness": 8, "x": WIDE + 0.004, "xpad": 0, "y": domain[0], "yanchor": "bottom", "ypad": 0}
    bar |= {"len": domain[1] - domain[0], "outlinewidth": 0, "nticks": 3, "tickfont": {"size": 10}}
    return {
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "colorscale": "Viridis",
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "%{text}, head %{y}: %{z:.4g}<extra></extra>",
        "colorbar": bar,
    }


def _layout() -> dict:
    axis, domains = theme.axis, list(PARTS.values())
    axes = {}
    for number_, domain in enumerate(domains, 1):
        name = "" if number_ == 1 else str(number_)
        shown = {"showticklabels": number_ == 4, "ticks": "", "showgrid": False}
        axes[f"xaxis{name}"] = axis("", domain=[0, WIDE], anchor=f"y{name}", **shown)
        axes[f"yaxis{name}"] = axis("head" if number_ < 3 else "", domain=domain, anchor=f"x{name}")
    for name in ("yaxis", "yaxis2"):
        axes[name] |= {"showgrid": False, "autorange": False}
    axes["yaxis4"] |= {"tickformat": ".0%"}
    axes["yaxis3"] |= {"nticks": 5}
    axes["xaxis5"] = axis("", domain=[WIDE + 0.06, 1], anchor="y5", nticks=3)
    axes["yaxis5"] = axis("", domain=PARTS["weighted"], anchor="x5", showgrid=False, showticklabels=False, ticks="")
    place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    heading = {"text": "", "font": {"size": 13}, **place}
    places = [(0, top) for _, top in domains] + [(WIDE + 0.06, PARTS["weighted"][1])]
    annotations = [{**heading, "x": x, "y": y} for x, y in places]
    annotations[-1] |= {"x": 1, "xanchor": "right"}
    return {
        **theme.layout(700),
        "barmode": "overlay",
        "bargap": 0.25,
        "margin": {"l": 58, "r": 20, "t": 30, "b": 84},
        **axes,
        "annotations": annotations,
    }


def indexer_properties(view: IndexerView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    hover = [_hover(view, key) for key in view.stretch()]
    traces = {**map_traces(view), **score_traces(view, hover), **mass_traces(view, hover)}
    layout = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, layout | axes(view)


def map_traces(view: IndexerView) -> dict[str, dict]:
    """Products of every head; what of them is added to the score, blank where ReLU makes it 0; the weights.

    Cells are columns of x, y and z: those travel as bytes, a matrix as JSON, which has no NaN.
    """
    scored, keys, heads = view.scored, np.array(view.stretch()), np.arange(len(view.scored.weights))
    products = scored.products[:, keys]
    weighted = np.where(products > 0, scored.weighted[:, keys], np.nan)
    place = {"x": np.tile(keys, len(heads)).astype(np.float32), "y": np.repeat(heads, len(keys)).astype(np.float32)}
    place["text"] = [_name(view, int(key)) for key in keys] * len(heads)
    few = len(keys) <= FEW and len(heads) <= FEW
    zeros = np.argwhere(products <= 0) if few else np.empty((0, 2), np.int64)
    return {
        "products": {**place, "z": products.ravel(), **dict(zip(("zmin", "zmax"), _ends(scored.products)))},
        "weighted": {**place, "z": weighted.ravel(), **dict(zip(("zmin", "zmax"), _ends(scored.weighted)))},
        "zero": {"x": keys[zeros[:, 1]], "y": zeros[:, 0], "text": ["0"] * len(zeros)},
        "weights": {"x": scored.weights, "y": heads},
    }


@functools.lru_cache(maxsize=4096)
def _escaped(token: str, limit: int) -> str:
    return escape(token, limit)


def _name(view: IndexerView, key: int, limit: int = 20) -> str:
    return _escaped(view.token_of(key), limit)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """From the least finite value, or 0, to the largest; of all keys, so colours keep their meaning along a text."""
    known = values[np.isfinite(values)]
    return (min(0.0, float(known.min())), max(float(known.max()), 1e-9)) if known.size else (0.0, 1.0)


def score_traces(view: IndexerView, hover: list[str]) -> dict[str, dict]:
    """The score of each key, kept or dropped, and the cut between them."""
    keys = np.array(view.stretch())
    score, ends = view.scored.score[keys], [keys[0] - 0.5, keys[-1] + 0.5]
    hover = [_hover(view, int(key)) for key in keys]
    known = not np.isnan(view.cut)
    return {
        **_two(view, ("kept", "dropped"), score, [f"{one:.3g}" for one in score], hover),
        "cut": {
            "x": ends * known,
            "y": np.full(2 * known, view.cut),
            "text": ["", f" cut: {view.cut:.3g}"] * known,
        },
    }


def _two(view: IndexerView, names: tuple[str, str], values: np.ndarray, texts: list[str], hover: list[str]) -> dict:
    """The same bars twice, each with the values of its own keys."""
    keys = np.array(view.stretch())
    kept, labelled = view.kept[keys], len(keys) <= FEW
    out = {}
    for name, mine in zip(names, (kept, ~kept & ~np.isnan(view.scored.score[keys]))):
        text = [text if labelled and here else "" for text, here in zip(texts, mine)]
        out[name] = {"x": keys, "y": np.where(mine, values, np.nan), "text": text, "customdata": hover}
    return out


def mass_traces(view: IndexerView, hover: list[str]) -> dict[str, dict]:
    """The share of its attention that the layer gives each key, on those that are kept and on the others."""
    if view.mass is None:
        nothing = {"x": [], "y": [], "text": [], "customdata": []}
        return {"mass_kept": nothing, "mass_dropped": nothing}
    keys = np.array(view.stretch())
    mass = view.mass[keys]
    texts = [f"{100 * one:.1f}" if one >= 0.0005 else "" for one in mass]
    return _two(view, ("mass_kept", "mass_dropped"), mass, texts, hover)


def _hover(view: IndexerView, key: int) -> str:
    if np.isnan(view.scored.score[key]):
        return ""
    rank = f"rank {view.rank[key] + 1:,} of {view.count:,}, {'kept' if view.kept[key] else 'dropped'}"
    mass = "" if view.mass is None else f"<br>attention: {percent(float(view.mass[key]))}"
    token = f"<b>{_name(view, key, 40)}</b>, position {key:,}"
    return f"{token}<br>score {number(float(view.scored.score[key]))}, {rank}{mass}"


def headings(view: IndexerView) -> list[str]:
    """What each part says above it."""
    green, grey = (f"<span style='color:{c}'>■</span>" for c in (theme.GREEN, theme.GREY))
    query = f"<b>{_name(view, view.position)}</b>"
    attention = "<b>Attention</b>: not known for this capture"
    if view.mass is not None:
        left = max(1 - view.captured, 0.0)
        attention = (
            f"<b>Attention of the layer</b> [% of its mass], {green} {100 * view.captured:.1f} % on the kept keys, "
            f"{grey} {100 * left:.1f} % lost"
        )
    return [
        f"<b>1 · Products</b> q<sub>j</sub>·k<sub>s</sub> of the query {query} with each key, head by head",
        "<b>2 · ReLU and weight</b>: w<sub>j</sub>·ReLU(q<sub>j</sub>·k<sub>s</sub>), 0 where the product is negative",
        f"<b>3 · Score</b>, the sum over heads, and top-k: {green} kept {view.size:,}, {grey} dropped "
        f"{view.count - view.size:,}",
        attention,
        "<b>Weights</b> w<sub>j</sub>",
    ]


def axes(view: IndexerView) -> dict:
    """Axis settings that follow query and keys, by path."""
    keys, heads = view.stretch(), len(view.scored.weights)
    ends, rows = [keys.start - 0.5, keys.stop - 0.5], [heads - 0.5, -0.5]
    labels = [_name(view, key, 14) for key in keys]
    labels = [f"<b>{text}</b>" if key == view.position else text for key, text in zip(keys, labels)]
    layout = {f"xaxis{name}.range": ends for name in ("", 2, 3, 4)}
    layout |= {"xaxis4.tickvals": list(keys), "xaxis4.ticktext": labels}
    few = len(keys) <= FEW
    layout |= {"xaxis4.tickangle": -60 if few else -90, "xaxis4.tickfont.size": 12 if few else 10}
    for name in ("", 2, 5):
        layout[f"yaxis{name}.range"] = rows
    for name in ("", 2):
        layout[f"yaxis{name}.dtick"] = 1 if heads <= 8 else None
    low, high = _ends(view.scored.score)
    layout["yaxis3.range"] = [1.15 * low, 1.2 * high]
    highest = 1.0 if view.mass is None else _ends(view.mass)[1]
    layout["yaxis4.range"] = [0, 1.25 * max(highest, 1e-3)]
    layout["xaxis5.range"] = [1.1 * end for end in _ends(view.scored.weights)]
    return layout
