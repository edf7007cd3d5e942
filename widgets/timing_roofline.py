"""Time against bytes: where a call is bound by its start, and where by memory. One figure as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from widgets import theme
from widgets.figures import spread
from widgets.text import escape
from widgets.timing_marks import nice, ticks
from widgets.timing_view import bandwidth, duration, size

COLOURS = (theme.BLUE, theme.GREY, theme.VERMILLION, theme.ORANGE, theme.GREEN, theme.PURPLE)
SYMBOLS = ("circle", "x", "square", "diamond", "triangle-up", "star")
HEIGHT = 420


def roofline_figure(bytes_moved: Sequence[float], times_us: Mapping[str, Sequence[float]]) -> go.Figure:
    """Curves of time over the bytes that must move at least, and the line of the best bandwidth of the first curve.

    Args:
        bytes_moved: [N] increasing. times_us: Name -> [N] times; the first is the plainest way, a copy.
    Raises:
        ValueError: curves of another length, none, or more than there are colours.
    """
    x = np.asarray(bytes_moved, dtype=float)
    curves = {name: np.asarray(times, dtype=float) for name, times in times_us.items()}
    if not curves or len(curves) > len(COLOURS) or any(len(times) != len(x) for times in curves.values()):
        raise ValueError(
            f"1 to {len(COLOURS)} curves of {len(x)} times are drawn, got {[len(t) for t in curves.values()]}"
        )
    gbps = float((x / next(iter(curves.values()))).max()) / 1e3
    limit = x / gbps / 1e3
    low = nice(min(limit.min(), *(times.min() for times in curves.values())) / 1.15, up=False)
    high = nice(max(times.max() for times in curves.values()) * 1.15, up=True)
    figure = go.Figure(layout=_layout(x, low, high))
    line = {"color": theme.BLUE, "width": 2, "dash": "dash"}
    below = {"fill": "toself", "fillcolor": "rgba(128, 128, 128, 0.14)", "line": {"width": 0}}
    figure.add_scatter(
        x=[*x, x[-1], x[0]], y=[*limit, low, low], name="beyond", mode="lines", hoverinfo="skip", **below
    )
    figure.add_scatter(x=x, y=limit, name="limit", mode="lines", line=line, hoverinfo="skip")
    for (name, times), colour, symbol in zip(curves.items(), COLOURS, SYMBOLS, strict=False):
        figure.add_scatter(
            x=x,
            y=times,
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"color": colour, "symbol": symbol, "size": 10},
            customdata=[
                f"{escape(name)}: {duration(t)} for {size(n)}, {bandwidth(n / t / 1e3)}"
                for n, t in zip(x, times, strict=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    ends = {f"bytes / {bandwidth(gbps)}": limit[-1]} | {escape(name, 30): times[-1] for name, times in curves.items()}
    heights = spread(np.log10(list(ends.values())), 17 / (HEIGHT - 74) * np.log10(high / low))
    for words, y in zip(ends, heights, strict=True):
        figure.add_annotation(x=np.log10(x[-1]), y=y, text=words, xanchor="left", xshift=9, showarrow=False)
    return figure


def _layout(x: np.ndarray, low: float, high: float) -> dict:
    room = 0.04 * np.log10(x[-1] / x[0])
    across = [np.log10(x[0]) - room, np.log10(x[-1]) + room]
    marks = {"tickvals": list(x), "ticktext": [size(n) for n in x]}
    up = {path.removeprefix("yaxis."): value for path, value in ticks("yaxis", low, high, duration).items()}
    return {
        **theme.layout(HEIGHT),
        "margin": {"l": 70, "r": 190, "t": 30, "b": 44},
        "xaxis": theme.axis("bytes that must move at least", type="log", range=across, **marks),
        "yaxis": theme.axis("time per call", type="log", range=[np.log10(low), np.log10(high)], **up),
    }
