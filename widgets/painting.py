"""Writing views into figures: what changed into a live one, or the steps of a slider into a file."""

from __future__ import annotations

import copy

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import Undefined

SHORT = 8  # values that are cheap to tell again
Properties = tuple[dict[str, dict], dict]  # of traces by trace name, and of the layout by path


class Painter:
    """Draws into one figure and sends only what differs from what was drawn before.

    Every property that plotly is told costs a fraction of a millisecond in Python and again in the browser.
    """

    def __init__(self, figure: go.Figure):
        self.figure = figure
        self._is_seen = not isinstance(figure, go.FigureWidget)  # a browser has told that it drew the figure
        if not self._is_seen:
            figure.observe(self._on_seen, "_js2py_traceDeltas")
        self._numbers = {trace.name: i for i, trace in enumerate(figure.data)}
        self._sent: dict[tuple[str, str], object] = {}

    def paint(self, properties: Properties) -> None:
        """Set properties of traces and layout; those that are not named stay.

        They are told at once, as a batch of assignments would be, which checks and copies every value twice first.
        """
        traces, layout = properties
        wanted = {(name, key): value for name, trace in traces.items() for key, value in trace.items()}
        wanted |= {("", path): value for path, value in layout.items()}
        changed = {place: value for place, value in wanted.items() if not _same(self._sent.get(place), value)}
        numbers = sorted({self._numbers[name] for name, _ in changed if name})
        columns = {number: i for i, number in enumerate(numbers)}
        restyle = {
            key: [self._own(number, key) for number in numbers] for key in {key for name, key in changed if name}
        }
        for (name, key), value in changed.items():
            if name:
                restyle[key][columns[self._numbers[name]]] = _plain(value)
        relayout = {path: _plain(value) for (name, path), value in changed.items() if not name}
        self.figure.plotly_update(restyle, relayout, numbers)
        self._sent |= changed
        if not self._is_seen:
            send_whole(self.figure)

    def _own(self, number: int, key: str):
        """What a trace has of a property that others get anew: told again, for a view that is not drawn yet.

        Long arrays are left as they are once a browser has drawn them: `Undefined`.
        """
        trace = self.figure.data[number]
        value = trace[key] if key in trace else None
        is_long = isinstance(value, np.ndarray | list | tuple) and len(value) > SHORT
        return Undefined if value is None or (is_long and self._is_seen) else _plain(value)

    def _on_seen(self, change) -> None:
        self._is_seen = self._is_seen or bool(change["new"])


def send_whole(figure: go.FigureWidget) -> None:
    """Tell the browser all of a figure, for a view that it will make.

    A batch of changes names every property for every trace of it, and some as undefined (`Painter._own`). A view that
    is drawn leaves those alone; the model of one that is not drawn yet, or is drawn a second time, forgets colours and
    places of labels by them.
    """
    figure._widget_layout = copy.deepcopy(figure._layout_obj._props)
    figure._widget_data = copy.deepcopy(figure._data)


def _plain(value):
    """A value as the browser takes it: no scalar of numpy in a list, which is not JSON, and no array with gaps."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _same(old, new) -> bool:
    if old is new:
        return True
    if isinstance(new, np.ndarray) or isinstance(old, np.ndarray):
        nan = getattr(new, "dtype", np.dtype(object)).kind == "f"  # a gap in a line is no change
        return old is not None and np.array_equal(old, new, equal_nan=nan)
    return old == new


def add_slider(figure: go.Figure, names: list[str], views: list[Properties], active: int) -> None:
    """Give a plain figure a slider over `views`, on the one that is drawn: each step redraws traces and layout."""
    order = {trace.name: i for i, trace in enumerate(figure.data)}
    steps = []
    for name, (traces, layout) in zip(names, views, strict=True):
        keys = sorted({key for trace in traces.values() for key in trace})
        now = {i: figure.data[i] for i in (order[trace] for trace in traces)}
        restyle = {
            key: [
                trace.get(key, now[order[name]][key] if key in now[order[name]] else None)
                for name, trace in traces.items()
            ]
            for key in keys
        }
        steps.append({"method": "update", "label": name, "args": [restyle, layout, list(now)]})
    slider = {"active": active, "steps": steps, "pad": {"t": 96}, "currentvalue": {"prefix": ""}}
    figure.update_layout(sliders=[slider], height=figure.layout.height + 110, margin_b=figure.layout.margin.b + 110)
