"""The line of cases in `TimingExplorer`'s figure: time and memory over a swept quantity, as pure functions."""

from __future__ import annotations

import numpy as np

from widgets.figures import spread
from widgets.painting import Properties
from widgets.timing_marks import hover_of, logits_bytes, nice, segments, symbol_of, ticks, time_range
from widgets.timing_records import FLOORS, quantity
from widgets.timing_view import OVER, TimingView, axis_name, duration, name_of, size, times

TIME_HEIGHT = 400
TIME = "<b>Time per call</b>, shaded below the floor"
MEMORY = "<b>Memory</b> a call adds"


def place(over: str, spot) -> float:
    """Where a case stands on the swept axis: the number itself, and -log10(1 - p)."""
    value = getattr(spot, over)
    if over == "p":
        return -np.log10(1 - value) if value is not None and value < 1 else np.nan
    return float(spot.vocab) if over == "k" and value is None else quantity(over, value)


def _places(view: TimingView) -> dict:
    """Case -> its place; p off stands half a decade beyond the last."""
    where = {spot: place(view.over, spot) for spot in view.spots}
    last = max((x for x in where.values() if np.isfinite(x)), default=0.0)
    return {spot: x if np.isfinite(x) else last + 0.5 for spot, x in where.items()}


def _curve(view: TimingView, name: str, field: str, where: dict) -> tuple[list, list, list[dict]]:
    pairs = [
        (where[spot], r[field], r)
        for spot in view.spots
        if (r := view.record(name, spot)) is not None and r.get(field) is not None
    ]
    x, y, records = zip(*pairs, strict=True) if pairs else ((), (), ())
    return list(x), list(y), list(records)


def time_line(view: TimingView) -> Properties:
    where = _places(view)
    low, high = time_range(view)
    out = {}
    for name in view.present:
        x, y, records = _curve(view, name, "median_us", where)
        wrong = [symbol_of(view, r) for r in records]
        hover = [hover_of(view, r) for r in records]
        out[name] = {"x": x, "y": y, "customdata": hover, "mode": "lines+markers", "marker.symbol": wrong}
    for floor in FLOORS:
        x, y, _ = _curve(view, floor, "median_us", where)
        out[floor] = {"x": x, "y": y, "text": []} if floor in _floors(view) else {"x": [], "y": [], "text": []}
    x, y, _ = _curve(view, view.floor, "median_us", where)
    out["beyond"] = {"x": [*x, *x[-1:], *x[:1]], "y": [*y, low, low] if y else []}
    low20, high80 = (_curve(view, view.floor, name, where)[1] for name in ("p20_us", "p80_us"))
    out["floor_spread"] = {"x": [*x, *x[::-1]], "y": [*low20, *high80[::-1]]}
    out["distance"] = {"x": [], "y": []}
    out["target"] = {"x": [], "y": []}
    bars = [(where[s], r) for name in view.present for s in view.spots if (r := view.record(name, s)) is not None]
    flat = segments([(r["p20_us"], r["p80_us"]) for _, r in bars], [x for x, _ in bars])
    out["spread"] = {"x": flat["y"], "y": flat["x"]}
    out["label"] = _end_labels(view, where, low, high)
    layout = {
        **_swept_axis("xaxis", view, where),
        "xaxis.domain": [0, 0.54 if view.has_memory else 0.84],
        "yaxis.type": "log",
        "yaxis.title.text": "",
        "yaxis.range": [np.log10(low), np.log10(high)],
        **ticks("yaxis", low, high, duration),
        "annotations[0].text": TIME,
    }
    return out, layout


def _floors(view: TimingView) -> list[str]:
    """The floors known along the whole line."""
    return [floor for floor in FLOORS if len(view.line(floor)) == len(view.spots)]


def _end_labels(view: TimingView, where: dict, low: float, high: float) -> dict:
    """The name of each curve beside its end, and how far from the floor it ends."""
    ends = []
    for name in (*view.present, *_floors(view)):
        x, y, records = _curve(view, name, "median_us", where)
        if records:
            ratio = view.times_floor(records[-1]) if name not in FLOORS else None
            ends.append((x[-1], y[-1], f"  {name_of(name)}" + (f" {times(ratio)}" if ratio is not None else "")))
    if not ends:
        return {"x": [], "y": [], "text": [], "textposition": "middle right"}
    gap = 16 / TIME_HEIGHT * np.log10(high / low)
    y = 10 ** spread(np.log10([y for _, y, _ in ends]), gap)
    x = [max(x for x, _, _ in ends)] * len(ends)
    return {"x": x, "y": y, "text": [text for _, _, text in ends], "textposition": "middle right"}


def _swept_axis(axis: str, view: TimingView, where: dict, apart: float = 0.09) -> dict:
    x, log = np.array(list(where.values())), view.over != "p"
    ends = np.log10([x.min(), x.max()]) if log else np.array([x.min(), x.max()])
    room = 0.04 * (ends[1] - ends[0]) or 0.5
    shown, last = [], -np.inf
    for spot, at in where.items():
        at = np.log10(at) if log else at
        if at - last >= apart * (ends[1] - ends[0]) or not shown:
            shown, last = [*shown, spot], at
    return {
        f"{axis}.type": "log" if log else "linear",
        f"{axis}.tickangle": 0,
        f"{axis}.title.text": OVER[view.over],
        f"{axis}.range": [ends[0] - room, ends[1] + room],
        f"{axis}.tickvals": [where[spot] for spot in shown],
        f"{axis}.ticktext": [axis_name(view.over, getattr(spot, view.over)) for spot in shown],
    }


def memory_line(view: TimingView) -> Properties:
    where, out = _places(view), {}
    for name in view.present:
        x, y, records = _curve(view, name, "peak_bytes", where)
        hover = [hover_of(view, r) for r in records]
        out[f"{name}_memory"] = {"x": x, "y": np.maximum(y, 1.0), "customdata": hover, "mode": "lines+markers"}
    logits = [logits_bytes(spot) for spot in view.spots]
    out["logits_bytes"] = {"x": list(where.values()), "y": logits, "text": []}
    out["stems"] = {"x": [], "y": []}
    out["memory_label"] = {"x": [], "y": [], "text": [], "textposition": "middle right"}
    peaks = [y for trace in out.values() for y in trace["y"]]
    low, high = nice(max(min(peaks) / 1.15, 1.0), up=False), nice(max(peaks) * 1.15, up=True)
    layout = {
        **_swept_axis("xaxis2", view, where, 0.2),
        "xaxis2.title.text": "dashed: the logits",
        "xaxis2.visible": True,
        "xaxis2.domain": [0.78, 1],
        "yaxis2.type": "log",
        "yaxis2.visible": True,
        "yaxis2.title.text": "",
        "yaxis2.range": [np.log10(low), np.log10(high)],
        **ticks("yaxis2", low, high, size),
        "annotations[1].text": MEMORY,
    }
    return out, layout
