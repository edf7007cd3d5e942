"""What the figures of `TimingExplorer` share: colours and symbols, ranges and ticks, the text of a hover."""

from __future__ import annotations

import numpy as np

from widgets import theme
from widgets.timing_records import FLOORS, Spot
from widgets.timing_view import TimingView, axis_name, bandwidth, duration, name_of, name_wrong, size, times

SKY = "#56B4E9"  # ways that have no colour of their own
STYLES = {
    "qp_kernels": (theme.VERMILLION, "circle"),
    "vllm": (theme.ORANGE, "square"),
    "flashinfer": (theme.PURPLE, "diamond"),
    "torch_topk": (theme.GREEN, "triangle-up"),
    "torch_sort": (theme.GREY, "x"),
}
SPARE_SYMBOLS = ("star", "cross", "hexagon", "pentagon", "bowtie", "hourglass")
NICE = (1.0, 2.0, 5.0)


def style_of(provider: str, every: tuple[str, ...]) -> tuple[str, str]:
    """Colour and symbol of a way; they stay when others are hidden."""
    if provider in STYLES:
        return STYLES[provider]
    rest = [name for name in every if name not in STYLES]
    return SKY, SPARE_SYMBOLS[rest.index(provider) % len(SPARE_SYMBOLS)]


def hover_of(view: TimingView, record: dict) -> str:
    case = ", ".join(f"{name} {axis_name(name, record[name])}" for name in ("batch", "vocab", "k", "p"))
    ratio = view.times_floor(record)
    parts = [
        f"<b>{name_of(record['provider'], record)}</b> {duration(record['median_us'])}",
        f"p20 {duration(record['p20_us'])}, p80 {duration(record['p80_us'])} of {record['repetitions']} calls",
        *([f"{times(ratio)} the floor"] if ratio is not None else []),
        *([bandwidth(record["gbps"])] if record.get("gbps") else []),
        *(
            [f"{size(record['peak_bytes'])} of memory beyond input and result"]
            if record.get("peak_bytes") is not None
            else []
        ),
        f"timed as {record['mode']}"
        + (", in place" if record.get("in_place") else "")
        + (f"; the host was late {record['late']} times" if record.get("late") else ""),
        *([f"<b>{wrong}</b>"] if (wrong := name_wrong(record)) else []),
        case,
    ]
    return "<br>".join(parts)


def symbol_of(view: TimingView, record: dict) -> str:
    symbol = style_of(record["provider"], view.every)[1]
    return f"{symbol}-open" if record.get("correct") is False else symbol


def segments(pairs, at) -> dict[str, np.ndarray]:
    """Horizontal lines between pairs, one a row."""
    x, y = [], []
    for (first, last), row in zip(pairs, at, strict=False):
        x += [first, last, np.nan]
        y += [row, row, np.nan]
    return {"x": np.array(x, float), "y": np.array(y, float)}


def time_range(view: TimingView) -> tuple[float, float]:
    """Bounds of the time axis, on 1, 2 or 5 times a power of ten, so that they rest while a case changes a little."""
    every = [r for name in (*FLOORS, *view.present) for r in view.line(name)]
    low = min((min(r["median_us"], r["p20_us"]) for r in every), default=1.0)
    high = max((max(r["median_us"], r["p80_us"]) for r in every), default=100.0)
    return nice(low / 1.15, up=False), nice(high * 1.15, up=True)


def nice(value: float, up: bool) -> float:
    power = 10.0 ** np.floor(np.log10(value))
    grid = [m * power for m in (*NICE, 10.0)]
    return float(min(g for g in grid if g >= value) if up else max(g for g in grid if g <= value))


def ticks(axis: str, low: float, high: float, words) -> dict:
    """Tick marks of a logarithmic axis in words: powers of ten, and 2 and 5 where there is room."""
    factors = NICE if high / low < 300 else (1.0,)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    values = [m * 10.0**n for n in powers for m in factors]
    values = [v for v in values if low * 0.999 <= v <= high * 1.001]
    return {f"{axis}.tickvals": values, f"{axis}.ticktext": [words(v) for v in values]}


def logits_bytes(spot: Spot) -> int:
    return spot.batch * spot.vocab * (4 if spot.dtype == "float32" else 2)
