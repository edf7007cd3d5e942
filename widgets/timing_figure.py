"""The figure of `TimingExplorer` as pure functions: time per call beside what memory allows, and the memory it takes.

One case: a row for each way, its time as a dot on a logarithmic axis, the floors as lines from top to bottom. A line of
cases: a curve for each way over the swept quantity, the floors as curves. Both use the same traces.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from widgets import theme
from widgets.painting import Properties
from widgets.timing_marks import hover_of, logits_bytes, nice, segments, style_of, symbol_of, ticks, time_range
from widgets.timing_records import FLOORS, OURS
from widgets.timing_sweep import MEMORY, TIME, TIME_HEIGHT, memory_line, time_line
from widgets.timing_view import TimingView, bandwidth, duration, name_of, name_wrong, size, times

FEWEST_ROWS, LIFT_PX, TOP = 3, 7, -0.62
LABEL_TURN = 0.58  # share of the axis beyond which a text stands left of its dot
FLOOR_DASH = {"floor_read": "dash", "floor_read_write": "solid"}


def timing_figure(every: tuple[str, ...]) -> go.Figure:
    """The empty figure of these ways: `<way>` and `<way>_memory` are traces, beside floors, spread and labels."""
    figure = go.Figure(layout=_layout())
    left, right = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    text = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "cliponaxis": False}
    grey = {"color": theme.GREY, "width": 1.5}
    dots = {"type": "scatter", "mode": "markers", "hovertemplate": "%{customdata}<extra></extra>"}
    beyond = {"fill": "toself", "fillcolor": "rgba(128, 128, 128, 0.14)", "line": {"width": 0}}
    band = {"fill": "toself", "fillcolor": "rgba(0, 114, 178, 0.25)", "line": {"width": 0}}
    traces = [{**line, **beyond, "name": "beyond", **left}, {**line, **band, "name": "floor_spread", **left}]
    for floor in FLOORS:
        drawn = {"color": theme.BLUE, "width": 2, "dash": FLOOR_DASH[floor]}
        traces.append({**line, "name": floor, "mode": "lines+text", "line": drawn, "cliponaxis": False, **left})
    traces.append({**line, "name": "distance", "line": grey, **left})
    traces.append({**line, "name": "spread", "line": {"color": theme.GREY, "width": 7}, "opacity": 0.6, **left})
    traces += [{**dots, "name": name, **_marks(name, every), **left} for name in every]
    aim = {"symbol": "line-ns-open", "size": 22, "color": theme.BLUE, "line": {"width": 3}}
    traces.append({**dots, "name": "target", "mode": "markers+text", "marker": aim, "cliponaxis": False, **left})
    traces.append({**text, "name": "label", **left})
    size_line = {"color": theme.BLUE, "width": 2, "dash": "dash"}
    traces.append(
        {**line, "name": "logits_bytes", "mode": "lines+text", "line": size_line, "cliponaxis": False, **right}
    )
    traces.append({**line, "name": "stems", "line": {"color": theme.GREY, "width": 4}, "opacity": 0.6, **right})
    traces += [{**dots, "name": f"{name}_memory", **_marks(name, every), **right} for name in every]
    traces.append({**text, "name": "memory_label", **right})
    figure.add_traces([go.Scatter(trace) for trace in traces])
    return figure


def _marks(name: str, every: tuple[str, ...]) -> dict:
    colour, symbol = style_of(name, every)
    return {"marker": {"color": colour, "symbol": symbol, "size": 13}, "line": {"color": colour, "width": 2}}


def _layout() -> dict:
    def heading(x: float, side: str) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": side, "yanchor": "bottom", "x": x, "y": 1.0}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    return {
        **theme.layout(TIME_HEIGHT + 74),
        "margin": {"l": 124, "r": 28, "t": 30, "b": 44},
        "xaxis": theme.axis("", anchor="y"),
        "yaxis": theme.axis("", anchor="x"),
        "xaxis2": theme.axis("", anchor="y2"),
        "yaxis2": theme.axis("", anchor="x2"),
        "annotations": [heading(0, "left"), heading(1, "right")],
    }


def timing_properties(view: TimingView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    empty = {name: {"x": [], "y": []} for name in view.every}
    empty |= {f"{name}_memory": {"x": [], "y": []} for name in view.every}
    time, memory = (time_line, memory_line) if view.over else (_time_case, _memory_case)
    traces, layout = time(view)
    more, right = memory(view) if view.has_memory else _no_memory()
    return {**empty, **traces, **more}, {**layout, **right}


# One case


def _time_case(view: TimingView) -> Properties:
    names, rows = view.present, len(view.present)
    records = [view.record(name) for name in names]
    low, high = time_range(view)
    turn = low * (high / low) ** LABEL_TURN
    bottom, lift = max(rows, FEWEST_ROWS) - 0.4, _lift(rows)
    out = {
        name: {
            "x": [record["median_us"]],
            "y": [i],
            "customdata": [hover_of(view, record)],
            "mode": "markers",
            "marker.symbol": symbol_of(view, record),
        }
        for i, (name, record) in enumerate(zip(names, records, strict=True))
    }
    out |= _floor_lines(view, low, bottom)
    edge = out["beyond"]["x"][1:2]
    out["distance"] = segments([(x, r["median_us"]) for r in records for x in edge], range(rows))
    out["spread"] = segments([(r["p20_us"], r["p80_us"]) for r in records], range(rows))
    out["target"] = _target(view, names)
    out["label"] = {
        "x": [r["median_us"] for r in records],
        "y": [row - lift for row in range(rows)],
        "text": [_label(view, record) for record in records],
        "textposition": ["top right" if r["median_us"] < turn else "top left" for r in records],
    }
    layout = {
        "xaxis.type": "log",
        "xaxis.title.text": "median; grey: p20 to p80",
        "xaxis.range": [np.log10(low), np.log10(high)],
        **ticks("xaxis", low, high, duration),
        "xaxis.domain": [0, 0.66 if view.has_memory else 1],
        "yaxis.type": "linear",
        "yaxis.title.text": "",
        "yaxis.range": [bottom, -1.0],
        "yaxis.tickvals": list(range(rows)),
        "yaxis.ticktext": [name_of(name, record) for name, record in zip(names, records, strict=True)],
        "annotations[0].text": TIME,
    }
    return out, layout


def _floor_lines(view: TimingView, low: float, bottom: float) -> dict[str, dict]:
    """The floors from top to bottom, named above; of the one that bounds the operation the spread, and a shade."""
    out = {floor: {"x": [], "y": [], "text": []} for floor in FLOORS}
    known = sorted((f for f in FLOORS if view.record(f)), key=lambda f: view.record(f)["median_us"])
    sides = ("top left", "top right") if len(known) > 1 else ("top center",)
    for floor, side in zip(known, sides, strict=False):
        at = view.record(floor)["median_us"]
        label = f" {name_of(floor)} {duration(at)} "
        out[floor] = {"x": [at, at], "y": [TOP, bottom], "text": [label, ""], "textposition": side}
    edge, up = out[view.floor]["x"], [TOP, TOP, bottom, bottom]
    bound = view.record(view.floor)
    out["beyond"] = {"x": [low, *edge, low] if edge else [], "y": up if edge else []}
    ends = [bound["p20_us"], bound["p80_us"]] if bound else []
    return out | {"floor_spread": {"x": [*ends, *ends[::-1]], "y": up if ends else []}}


def _lift(rows: int) -> float:
    """How far above its row the text of a dot stands, clear of the dot."""
    return LIFT_PX * (max(rows, FEWEST_ROWS) + 0.6) / TIME_HEIGHT


def _label(view: TimingView, record: dict) -> str:
    ratio = view.times_floor(record)
    parts = [
        duration(record["median_us"]),
        *([f"<b>{times(ratio)}</b> floor"] if ratio is not None else []),
        *([bandwidth(record["gbps"])] if record.get("gbps") else []),
        *([f"<b>{wrong}</b>"] if (wrong := name_wrong(record)) else []),
    ]
    return " · ".join(parts)


def _target(view: TimingView, names: list[str]) -> dict:
    """Where the project's aim lies, on the row of its own kernels."""
    out = {"x": [], "y": [], "text": [], "customdata": [], "textposition": "bottom right"}
    for row, name in enumerate(names):
        record, aim = view.record(name) if name == OURS else {}, None
        if record.get("target_us") is not None:
            aim, words = record["target_us"], duration(record["target_us"])
        elif record.get("target_times_floor") is not None and (bound := view.record(view.floor)):
            aim, words = record["target_times_floor"] * bound["median_us"], times(record["target_times_floor"])
        if aim is not None:
            out["x"].append(aim)
            out["y"].append(row)
            out["text"].append(f"aim {words}")
            out["customdata"].append(f"aim of this project: {words}")
    return out


def _memory_case(view: TimingView) -> Properties:
    records = {name: r for name in view.present if (r := view.record(name)) and r.get("peak_bytes") is not None}
    rows = {name: view.present.index(name) for name in records}
    logits = logits_bytes(view.spot)
    most = max([r["peak_bytes"] for r in records.values()] + [logits])
    out = {
        f"{name}_memory": {
            "x": [r["peak_bytes"]],
            "y": [rows[name]],
            "customdata": [hover_of(view, r)],
            "mode": "markers",
        }
        for name, r in records.items()
    }
    bottom = max(len(view.present), FEWEST_ROWS) - 0.4
    out["stems"] = segments([(0, r["peak_bytes"]) for r in records.values()], rows.values())
    side = "top right" if logits < 0.5 * most else "top left"
    label = f" the logits {size(logits)} "
    out["logits_bytes"] = {"x": [logits] * 2, "y": [TOP, bottom], "text": [label, ""], "textposition": side}
    peaks = [r["peak_bytes"] for r in records.values()]
    out["memory_label"] = {
        "x": peaks,
        "y": [row - _lift(len(view.present)) for row in rows.values()],
        "text": [f"{size(peak)} · <b>{times(peak / logits)}</b>" for peak in peaks],
        "textposition": ["top right" if peak < 0.5 * most else "top left" for peak in peaks],
    }
    steps = np.linspace(0, nice(most, up=True), 3)
    layout = {
        "xaxis2.type": "linear",
        "xaxis2.visible": True,
        "xaxis2.title.text": "bytes beyond input and result",
        "xaxis2.tickangle": 0,
        "xaxis2.domain": [0.74, 1],
        "xaxis2.range": [0, 1.1 * most],
        "xaxis2.tickvals": [step for step in steps if step <= 1.1 * most],
        "xaxis2.ticktext": [size(step) for step in steps if step <= 1.1 * most],
        "yaxis2.type": "linear",
        "yaxis2.visible": True,
        "yaxis2.title.text": "",
        "yaxis2.range": [bottom, -1.0],
        "yaxis2.tickvals": list(rows.values()),
        "yaxis2.ticktext": [""] * len(rows),
        "annotations[1].text": MEMORY,
    }
    return out, layout


def _no_memory() -> Properties:
    gone = {name: {"x": [], "y": [], "text": []} for name in ("logits_bytes", "memory_label")}
    layout = {"xaxis2.visible": False, "yaxis2.visible": False, "annotations[1].text": ""}
    return {**gone, "stems": {"x": [], "y": []}}, layout
