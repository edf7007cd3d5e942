"""The painter tells a browser what changed, and all of it as long as none has drawn the figure."""

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.basedatatypes import Undefined

from widgets.painting import Painter
from widgets.panels.base import Panel, live


@pytest.fixture
def figure():
    figure = go.Figure([go.Bar(name="kept", marker_color="#009E73"), go.Scatter(name="line")])
    figure = live(figure)
    yield figure
    figure.close()


def sent(figure, name):
    return next(trace for trace in figure._widget_data if trace["name"] == name)


def test_a_view_that_is_made_later_gets_all(figure):
    painter = Painter(figure)
    painter.paint(({"kept": {"y": [1, 2]}, "line": {"x": [3]}}, {"xaxis.range": [0, 5]}))
    assert sent(figure, "kept")["y"] == [1, 2] and sent(figure, "kept")["marker"] == {"color": "#009E73"}
    assert sent(figure, "line")["x"] == [3] and figure._widget_layout["xaxis"]["range"] == [0, 5]


def test_a_view_that_is_there_gets_what_changed(figure):
    painter = Painter(figure)
    painter.paint(({"kept": {"y": [1, 2]}}, {}))
    figure._js2py_traceDeltas = {"trace_deltas": [], "trace_edit_id": -1}
    painter.paint(({"kept": {"y": [5, 6]}}, {}))
    assert figure.data[0].y == (5, 6) and sent(figure, "kept")["y"] == [1, 2]


def test_a_panel_that_is_shown_again_sends_all(figure):
    panel = Panel(figure, ("draw", "warm"))
    try:
        panel.arrange()
        painter = Painter(panel.figure)
        panel.figure._js2py_traceDeltas = {"trace_deltas": [], "trace_edit_id": -1}
        painter.paint(({"kept": {"y": [5, 6]}}, {}))
        assert "y" not in sent(panel.figure, "kept")
        panel._repr_mimebundle_()
        assert sent(panel.figure, "kept")["y"] == [5, 6]
    finally:
        panel.close()


def test_what_json_and_buffers_do_not_hold_is_made_plain(figure):
    painter = Painter(figure)
    every_other = np.arange(8.0)[::2]
    painter.paint(
        ({"kept": {"y": every_other}, "line": {"x": [np.int64(3), None]}}, {"xaxis.range": [np.float64(0), 5]})
    )
    assert figure.data[0].y.flags.c_contiguous and figure.data[0].y.tolist() == [0, 2, 4, 6]
    assert type(figure.data[1].x[0]) is int and type(figure.layout.xaxis.range[0]) is float


def test_only_what_changed_is_told_and_once(figure, monkeypatch):
    painter, told = Painter(figure), []
    monkeypatch.setattr(figure, "_send_update_msg", lambda *_, **data: told.append(data))
    painter.paint(({"kept": {"y": [1, 2], "x": [0, 1]}, "line": {"x": [3]}}, {"xaxis.range": [0, 5]}))
    painter.paint(({"kept": {"y": [1, 2], "x": [0, 4]}, "line": {"x": [3]}}, {"xaxis.range": [0, 5]}))
    painter.paint(({"kept": {"y": [1, 2], "x": [0, 4]}, "line": {"x": [3]}}, {"xaxis.range": [0, 6]}))
    first, second, third = told
    assert first["trace_indexes"] == [0, 1] and first["restyle_data"]["x"] == [[0, 1], [3]]
    assert first["restyle_data"]["y"][0] == [1, 2] and first["relayout_data"] == {"xaxis.range": [0, 5]}
    assert second == {"restyle_data": {"x": [[0, 4]]}, "relayout_data": {}, "trace_indexes": [0]}
    assert third == {"restyle_data": {}, "relayout_data": {"xaxis.range": [0, 6]}, "trace_indexes": []}


def test_a_property_that_is_not_there_is_refused(figure):
    with pytest.raises(ValueError, match="Invalid property path 'why'"):
        Painter(figure).paint(({"kept": {"why": [1]}}, {}))


def test_what_a_trace_has_is_not_told_as_undefined(figure, monkeypatch):
    """A view that is just made would lose it: colours always, long arrays while no browser has drawn them."""
    painter, told = Painter(figure), []
    long = list(range(20))
    painter.paint(({"kept": {"y": long}, "line": {"marker.color": "#0072B2"}}, {}))
    monkeypatch.setattr(figure, "_send_update_msg", lambda *_, **data: told.append(data["restyle_data"]))
    painter.paint(({"kept": {"marker.color": "#D55E00"}, "line": {"y": [1]}}, {}))
    painter._is_seen = True
    painter.paint(({"kept": {"marker.color": "#E69F00"}, "line": {"y": [2]}}, {}))
    early, seen = told
    assert early["marker.color"] == ["#D55E00", "#0072B2"] and list(early["y"][0]) == long
    assert seen["marker.color"] == ["#E69F00", "#0072B2"] and seen["y"] == [Undefined, [2]]
