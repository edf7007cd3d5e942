"""The figure of `SearchExplorer` as pure functions: one step, the ties at the cut, and both searches side by side."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from widgets import theme
from widgets.painting import Properties
from widgets.search_view import MOST_SHOWN_TIES, SEARCHES, SearchView, curve, lefts, name_target
from widgets.text import DECADES, escape, number, percent

SPLIT = 0.6  # where the left half of the figure ends
STYLES = {
    "quaternary": {"marker": {"symbol": "circle", "size": 8, "color": theme.GREEN}, "line": {"color": theme.GREEN}},
    "binary": {
        "marker": {"symbol": "square", "size": 7, "color": theme.ORANGE},
        "line": {"color": theme.ORANGE, "dash": "dot"},
    },
}
DECADES_ONLY = {"type": "log", "tickvals": list(DECADES), "ticktext": list(DECADES.values())}
SIGNS = {"quaternary": "●", "binary": "■"}


def search_figure() -> go.Figure:
    """The empty figure: the step that is seen, below it the ties; on the right what is left and what was read."""
    figure = go.Figure(layout=_layout())
    step, ties, left, read = ({"xaxis": f"x{i}", "yaxis": f"y{i}"} for i in ("", 2, 3, 4))
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    dots = {"type": "scatter", "mode": "markers+text", "hovertemplate": "%{customdata}<extra></extra>"}
    above = {**dots, "textposition": "top right", "cliponaxis": False}
    kept = {"symbol": "circle", "size": 11, "color": theme.GREEN}
    gone = {"symbol": "x", "size": 10, "color": theme.VERMILLION}
    both = {"type": "scatter", "mode": "lines+markers", "hovertemplate": "%{customdata}<extra></extra>"}
    now = {**line, "line": {"color": theme.GREY, "width": 1.5}}
    traces = [
        {
            **line,
            "name": "next",
            "fill": "toself",
            "fillcolor": "rgba(0, 158, 115, 0.16)",
            "line": {"width": 0},
            **step,
        },
        {**line, "name": "interval", "line": {"color": theme.GREY, "width": 2}, **step},
        {**line, "name": "amount", "line": {"color": theme.BLUE, "width": 2, "shape": "vh"}, **step},
        {
            **line,
            "name": "target",
            "mode": "lines+text",
            "textposition": "top left",
            "line": {"color": theme.VERMILLION, "width": 2, "dash": "dash"},
            **step,
        },
        {**line, "name": "pivots", "line": {"color": theme.GREY, "width": 1, "dash": "dot"}, **step},
        {**above, "name": "enough", "marker": kept, **step},
        {**above, "name": "too_few", "marker": gone, **step},
        {
            **above,
            "name": "min_above",
            "marker": {"symbol": "diamond", "size": 11, "color": theme.PURPLE},
            **step,
        },
        {**dots, "name": "stays", "marker": kept, "textposition": "top center", "cliponaxis": False, **ties},
        {**dots, "name": "goes", "marker": gone, "textposition": "top center", "cliponaxis": False, **ties},
        {**line, "name": "tie_cut", "line": {"color": theme.VERMILLION, "width": 2}, **ties},
        *({**both, "name": f"left_{search}", **STYLES[search], **left} for search in SEARCHES),
        {**now, "name": "now_left", **left},
        *({**both, "name": f"bytes_{search}", **STYLES[search], **read} for search in SEARCHES),
        {**now, "name": "now_bytes", **read},
    ]
    figure.add_traces([go.Scatter(trace) for trace in traces])
    return figure


def _layout() -> dict:
    def heading(x: float, y: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": y}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    left, right = [0, SPLIT], [SPLIT + 0.09, 1]
    return {
        **theme.layout(540),
        "margin": {"l": 84, "r": 20, "t": 30, "b": 44},
        "xaxis": theme.axis("logit", domain=left, anchor="y"),
        "yaxis": theme.axis("", domain=[0.42, 1], anchor="x"),
        "xaxis2": theme.axis("entries equal to the cut, in index order", domain=left, anchor="y2", showgrid=False),
        "yaxis2": theme.axis("", domain=[0, 0.2], anchor="x2", range=[0, 1], visible=False),
        "xaxis3": theme.axis("", domain=right, anchor="y3", dtick=1, showticklabels=False, showgrid=False),
        "yaxis3": theme.axis("entries left", domain=[0.56, 1], anchor="x3", **DECADES_ONLY),
        "xaxis4": theme.axis("step", domain=right, anchor="y4", showgrid=False),
        "yaxis4": theme.axis("bytes read [kB]", domain=[0, 0.42], anchor="x4"),
        "annotations": [heading(0, 1.0), heading(0, 0.2), heading(right[0], 1.0), heading(right[0], 0.42)],
    }


def search_properties(view: SearchView, label) -> Properties:
    """Everything a view sets. `label` gives the names of vocabulary entries."""
    low, high = zoom(view)
    traces = {**step_traces(view, low, high), **tie_traces(view, label), **both_traces(view)}
    texts = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, {**texts, **axes(view, low, high)}


def zoom(view: SearchView) -> tuple[float, float]:
    """The stretch of logits that is drawn: the interval, with a little room on either side."""
    facts = view.facts
    finite = facts.sorted[facts.infinite :]
    ends = [float(finite[-1]), float(finite[0])] if len(finite) else [0.0, 1.0]
    low, high = (float(np.clip(end, *ends)) for end in (view.seen.lo, view.seen.hi))
    room = 0.06 * (high - low) or 0.01 * max(1.0, abs(low))
    return low - room, high + room


def step_traces(view: SearchView, low: float, high: float) -> dict[str, dict]:
    """The amount at or above each logit, the pivots on it, the target, and where the search goes on."""
    step, seen, amounts = view.now, view.seen, view.amounts
    x, y = curve(view, low, high)
    bottom, top = _span(view, y)
    after = np.clip(view.next_logits, low, high)
    enough = np.array(view.enough, dtype=bool)
    pivots, drawn = np.asarray(seen.pivots), np.maximum(amounts, bottom)
    gaps = np.full(len(pivots), np.nan)
    texts = [f" {amount:,}" if step.stage == "k" else f" {percent(amount)}" for amount in amounts]
    hover = [f"pivot {number(p)}: {text.strip()} at or above" for p, text in zip(pivots, texts, strict=True)]
    ends = np.clip([seen.lo, seen.lo, np.nan, seen.hi, seen.hi], low, high)
    out = {
        "next": {"x": after[[0, 1, 1, 0]], "y": np.array([bottom, bottom, top, top])},
        "interval": {"x": ends, "y": np.array([bottom, top, np.nan, bottom, top])},
        "amount": {"x": x, "y": np.maximum(y, bottom)},
        "target": {"x": [low, ends[-1], high], "y": [view.target] * 3, "text": ["", f"{name_target(view)} ", ""]},
        "pivots": {
            "x": np.stack([pivots, pivots, gaps], 1).ravel(),
            "y": np.stack([np.full(len(pivots), bottom), drawn, gaps], 1).ravel(),
        },
    }
    for name, which in (("enough", enough), ("too_few", ~enough)):
        place = np.flatnonzero(which)
        out[name] = {
            "x": pivots[place],
            "y": drawn[place],
            "text": [texts[i] for i in place],
            "customdata": [hover[i] for i in place],
        }
    name = "cut" if step.stop else "next entry"
    many = f" × {step.multiplicity:,}" if step.multiplicity > 1 else ""
    inside = low <= seen.min_above <= high
    out["min_above"] = {  # on the axis, where no other label stands
        "x": [seen.min_above] * inside,
        "y": [at_share(0.01, bottom, top, step.stage)] * inside,  # on the very edge it may be hidden
        "text": [f" {name} {number(seen.min_above)}{many} "] * inside,
        "textposition": "top left" if seen.min_above > (low + high) / 2 else "top right",
        "customdata": [f"{name}: {seen.min_above:.6g}, {step.multiplicity:,} times"] * inside,
    }
    return out


def at_share(share: float, bottom: float, top: float, stage: str) -> float:
    """The amount at a share of the height of the axis."""
    if stage == "k":
        return bottom * (top / bottom) ** share
    return bottom + share * (top - bottom)


def _span(view: SearchView, amounts: np.ndarray) -> tuple[float, float]:
    """Lowest and highest amount on the axis, so that target and curve are on it."""
    least, most = float(min(amounts.min(), view.target)), float(max(amounts.max(), view.target))
    if view.now.stage == "k":
        return max(0.7, least / 1.5), most * 1.5
    room = 0.08 * (most - least) or 0.01
    return least - room, most + 2 * room


def tie_traces(view: SearchView, label) -> dict[str, dict]:
    """The entries equal to the cut as slots in index order; where there are many, those around the last that stays."""
    ids, stays = view.tied, view.cut.ties
    first = max(0, min(stays - MOST_SHOWN_TIES // 2, len(ids) - MOST_SHOWN_TIES))
    shown = ids[first : first + MOST_SHOWN_TIES]
    names = label(shown)
    places = np.arange(first, first + len(shown)) + 1
    height = np.where(np.arange(len(shown)) % 2, 0.5, 0.16)  # neighbours' names stand at two heights
    out = {}
    for name, which in (("stays", places <= stays), ("goes", places > stays)):
        at = np.flatnonzero(which)
        out[name] = {
            "x": places[at],
            "y": height[at],
            "text": [escape(names[i], 12) for i in at],
            "customdata": [f"<b>{escape(names[i], 60)}</b><br>index {int(shown[i]):,}: {name}" for i in at],
        }
    cut = [stays + 0.5] * 2 if first < stays < first + len(shown) else []
    out["tie_cut"] = {"x": cut, "y": [0, 1][: len(cut)]}
    return out


def both_traces(view: SearchView) -> dict[str, dict]:
    """What is left in the interval, and what was read, in every step of both searches."""
    out = {}
    for search, steps in view.traces.items():
        x, left = list(range(1, len(steps) + 1)), lefts(view, search)
        out[f"left_{search}"] = {
            "x": x,
            "y": np.maximum(left, 0.7),
            "customdata": [f"{search}, step {i}: {n:,} entries left" for i, n in zip(x, left, strict=True)],
        }
        out[f"bytes_{search}"] = {
            "x": x,
            "y": [step.bytes_read / 1e3 for step in steps],
            "customdata": [f"{search}, step {i}: {step.bytes_read:,} bytes read" for i, step in enumerate(steps, 1)],
        }
    out["now_left"] = {"x": [view.step] * 2, "y": [0.5, 2 * len(view.facts.row)]}
    out["now_bytes"] = {
        "x": [view.step] * 2,
        "y": [0, 2 * max(steps[-1].bytes_read for steps in view.traces.values()) / 1e3],
    }
    return out


def headings(view: SearchView) -> list[str]:
    """What each part says above it."""
    step = view.now
    what = "entries" if step.stage == "k" else "mass"
    stage = f" in stage {step.stage}" if {s.stage for s in view.steps} == {"k", "p"} else ""
    outcome = "stops here" if step.stop else f"goes on in <span style='color:{theme.GREEN}'>■</span>"
    tied, stay = len(view.tied), view.cut.ties
    ties = f"{tied:,} entries equal it, {stay:,} stay, {tied - stay:,} go" if tied > 1 else "no other entry equals it"
    ties += f" ({MOST_SHOWN_TIES} shown)" if tied > MOST_SHOWN_TIES else ""
    both = "  ".join(
        f"<span style='color:{STYLES[name]['line']['color']}'>{SIGNS[name]}</span> {name}: {len(steps)} steps"
        for name, steps in view.traces.items()
    )
    last = {name: steps[-1].bytes_read for name, steps in view.traces.items()}
    return [
        f"<b>Step {view.step} of {len(view.steps)}</b>{stage}: {what} at or above each logit; {outcome}",
        f"<b>Cut {number(view.cut.min_above)}</b>: {ties}",
        both,
        f"bytes in all: {last['quaternary']:,} and {last['binary']:,}",
    ]


def axes(view: SearchView, low: float, high: float) -> dict:
    """Axis settings that follow the step, by path."""
    bottom, top = _span(view, curve(view, low, high)[1])
    by_count = view.now.stage == "k"
    ticks = decades(bottom, top) if by_count and top > 30 * bottom else even_ticks(bottom, top, by_count)
    digits = int(np.clip(np.ceil(-np.log10(top - bottom)) - 1, 0, 9))
    longest = max(len(steps) for steps in view.traces.values())
    most = max(steps[-1].bytes_read for steps in view.traces.values())
    ids, stays = view.tied, view.cut.ties
    first = max(0, min(stays - MOST_SHOWN_TIES // 2, len(ids) - MOST_SHOWN_TIES))
    return {
        "xaxis.range": [low, high],
        "yaxis.type": "log" if by_count else "linear",
        "yaxis.range": [np.log10(bottom), np.log10(top)] if by_count else [bottom, top],
        "yaxis.tickvals": ticks,
        "yaxis.ticktext": [f"{tick:,.0f}" if by_count else f"{tick:.{digits}%}" for tick in ticks],
        "yaxis.title.text": "entries at or above" if by_count else "mass at or above",
        "xaxis2.range": [first + 0.4, first + max(3, min(len(ids), MOST_SHOWN_TIES)) + 0.6],
        "xaxis2.dtick": 1,
        "xaxis3.range": [0.5, longest + 0.5],
        "xaxis4.range": [0.5, longest + 0.5],
        "xaxis4.dtick": max(1, -(-longest // 10)),
        "yaxis3.range": [np.log10(0.5), np.log10(2 * max(view.now.entries, 2))],
        "yaxis4.range": [0, 1.1 * most / 1e3],
    }


def decades(low: float, high: float) -> list[float]:
    return [10.0**i for i in range(int(np.ceil(np.log10(low))), int(np.floor(np.log10(high))) + 1)]


def even_ticks(low: float, high: float, whole: bool) -> list[float]:
    """About five round numbers between two."""
    rough = (high - low) / 5
    unit = 10.0 ** np.floor(np.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    step = max(1.0, step) if whole else step
    return [i * step for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
