"""The painter tells a browser what changed, and all of it as long as none has drawn the figure."""

import plotly.graph_objects as go
import pytest

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
