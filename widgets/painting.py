"""Writing views into figures: at once into a live one, or as the steps of a slider into a file."""

from __future__ import annotations

import plotly.graph_objects as go

from widgets import figures
from widgets.logit_view import LogitView


def paint(figure: go.Figure, view: LogitView, drawn: dict[int, int], log: bool, fresh: bool) -> None:
    """Write a view into a figure; the parts that only a new row changes only when `fresh`."""
    bars, ticks = figures.bar_traces(view, drawn, log)
    changed = {**figures.cut_traces(view), **bars}
    if fresh:
        changed |= figures.histogram_traces(view.facts)
    with figure.batch_update():
        for trace in figure.data:
            if trace.name in changed:
                trace.update(changed[trace.name])
        figure.layout.yaxis.update(ticks)
        for note, text in zip(figure.layout.annotations, figures.headings(view), strict=True):
            note.text = text
        for path, value in figures.logit_axes(view, log).items():
            figure.layout[path] = value


def add_slider(figure: go.Figure, names: list[str], views: list[LogitView], log: bool) -> None:
    """Give a plain figure a slider over `views`: each step restyles the traces."""
    order = [trace.name for trace in figure.data]
    steps = []
    for name, view in zip(names, views, strict=True):
        bars, ticks = figures.bar_traces(view, {}, log)
        changed = {**figures.cut_traces(view), **bars}
        traces = [i for i, trace in enumerate(order) if trace in changed]
        keys = sorted({key for trace in changed.values() for key in trace})
        restyle = {
            key: [changed[order[i]].get(key, figure.data[i][key] if key in figure.data[i] else None) for i in traces]
            for key in keys
        }
        relayout = {f"yaxis.{key}": value for key, value in ticks.items()}
        steps.append({"method": "update", "label": name, "args": [restyle, relayout, traces]})
    figure.update_layout(sliders=[{"active": 0, "steps": steps, "pad": {"t": 60}, "currentvalue": {"prefix": ""}}])
