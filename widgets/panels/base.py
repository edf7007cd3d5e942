"""What every panel shares: a live figure, a summary line, a status line, a worker, export, and a clean end."""

from __future__ import annotations

import html
import threading
from pathlib import Path

import ipywidgets as w
import pandas  # noqa: F401 - plotly looks for it while a worker draws; a cell may be half-way through importing it
import plotly.graph_objects as go
import traitlets

from widgets import theme
from widgets.controls import button, close_widget
from widgets.jobs import CLOSED, Worker
from widgets.painting import add_slider, send_whole
from widgets.strip import TokenStrip

_shown_by_cell: dict[str, tuple[str, list[w.Widget]]] = {}


class Panel(w.VBox):
    """An ipywidgets.VBox with one live figure. Subclasses give controls and the jobs that fill the figure.

    Attributes:
        figure: The live FigureWidget; its traces keep their names.
        summary: One line of what is seen. status: Progress or the last error; "" when there is none.
        updates_per_s: Highest rate of redraws while a slider moves.
    """

    summary = traitlets.Unicode("")
    status = traitlets.Unicode("")
    updates_per_s = traitlets.Float(10.0, min=0.1)
    _view = None  # what is drawn, as the subclass describes it
    _worker: Worker | None = None  # a panel refused for its arguments has none, and is still closed by its destructor

    def __init__(self, figure: go.Figure, kinds: tuple[str, ...]):
        """`kinds` name the jobs, urgent first; "draw" is limited in rate, and nobody waits for "warm"."""
        replace_earlier_run(self)
        self._lock = threading.Lock()
        self._status_of = ""
        self._busy: set[str] = set()  # kinds of work that have told progress and run on
        self.figure = live(figure)
        self._summary_view = w.HTML(layout=w.Layout(margin="0"))
        self._summary_view.add_class("qp-summary")
        self._status_view = w.HTML(layout=w.Layout(margin="0", display="none"))
        self._caption_view = w.HTML(layout=w.Layout(margin="0"))
        self._cancel_button = button("Cancel", "stop the running work", "stop")
        self._cancel_button.layout.display = "none"
        self._cancel_button.on_click(lambda _: self.cancel())
        rate = self.updates_per_s
        self._worker = Worker(kinds, self._on_state, "draw", "warm", updates_per_s=rate, on_end=self.release)
        super().__init__(layout=w.Layout(width="100%"))
        self.add_class("qp-panel")

    def arrange(self, *controls: w.Widget) -> None:
        """Put the controls above the figure, and the lines of text around it."""
        state = w.HBox([self._status_view, self._cancel_button], layout=w.Layout(align_items="center"))
        self.children = [w.HTML(theme.STYLE), *controls, self._summary_view, state, self.figure, self._caption_view]

    def _repr_mimebundle_(self, **options):
        if self._worker is not None and self._worker.alive:
            with self._lock:
                send_whole(self.figure)
        return super()._repr_mimebundle_(**options)

    def submit(self, kind: str, fn, delay_s: float = 0.0) -> None:
        """Hand `fn(job)` to the worker; the newest request of a kind wins."""
        self._worker.submit(kind, fn, delay_s)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Block until the figure holds the newest data. Raises TimeoutError, or re-raises the error of a last job."""
        self._need_open()
        self._worker.wait(timeout_s)

    def cancel(self) -> None:
        """Stop running work; what is shown stays."""
        self._worker.cancel()

    def close(self) -> None:
        """End the worker and free figure and capture; the panel can't be used afterwards."""
        if self._worker is None:
            return  # refused for its arguments: there is nothing to free
        self._worker.close()
        self.release()
        for widget in [*_descendants(self), *self.owned()]:
            close_widget(widget)
        close_widget(self)
        _forget(self)

    def owned(self) -> list[w.Widget]:
        """Widgets of this panel that may not stand in its tree. Subclasses extend it."""
        return [self.figure, self._summary_view, self._status_view, self._caption_view, self._cancel_button]

    def release(self) -> None:
        """Drop what holds memory; called by `close`, and again when the last job has ended. Subclasses extend it."""

    def snapshot(self) -> go.Figure:
        """The figure as it is now, as a plain plotly figure that no longer changes."""
        with self._lock:
            figure = go.Figure(self.figure.data, self.figure.layout)
        figure.update_layout(height=figure.layout.height + 60, margin_b=figure.layout.margin.b + 60)
        place = {"x": 0, "y": 0, "xref": "paper", "yref": "paper", "xanchor": "left", "align": "left"}
        for text, shift in ((self.summary, -70), (self.caption, -88)):
            figure.add_annotation(text=html.escape(text), yshift=shift, showarrow=False, **place)
        return figure

    def _export(self, path: str | Path, slider: str | None, steps: int) -> Path:
        """The figure as a file, with a slider over one of `sliders` where a subclass can show that."""
        if slider not in (None, *self.sliders):
            raise ValueError(f"slider must be None, {', '.join(map(repr, self.sliders))}, got {slider!r}")
        if not 2 <= steps <= 50:
            raise ValueError(f"steps must be from 2 to 50, got {steps}")
        figure = self.snapshot()
        if slider is not None:
            add_slider(figure, *self._slider_views(slider, steps))
        return write_html(figure, path)

    def _need_open(self) -> None:
        if self._worker is None or self._worker.closed:
            raise RuntimeError(CLOSED)

    def _need_view(self):
        self._need_open()
        if self._view is None:
            raise RuntimeError("nothing is drawn yet; call wait() first")
        return self._view

    @property
    def caption(self) -> str:
        """Model, layer, dtype, back-end and device, as the line under the figure says it."""
        raise NotImplementedError

    def code(self) -> str:
        """Python that computes what is seen, without the panel."""
        raise NotImplementedError

    @traitlets.observe("summary")
    def _show_summary(self, change):
        self._summary_view.value = html.escape(change["new"])

    @traitlets.observe("status")
    def _show_status(self, change):
        self._status_view.value = html.escape(change["new"])
        self._status_view.layout.display = "" if change["new"] else "none"

    @traitlets.observe("updates_per_s")
    def _set_rate(self, change):
        self._worker.updates_per_s = change["new"]

    def show_status(self, owner: str, text: str, style: str = "qp-error") -> None:
        """Show an error or progress; it stays until its owner clears it or there is something newer to say."""
        self._status_of = owner
        self._status_view._dom_classes = (style,)
        self.status = text

    def clear_status(self, owner: str) -> None:
        """Take away what `owner` said, if it still stands there."""
        if self._status_of == owner:
            self._status_of, self.status = "", ""

    def _on_state(self, kind: str, state: str, text: str) -> None:
        (self._busy.add if state == "busy" else self._busy.discard)(kind)
        self._cancel_button.layout.display = "" if self._busy else "none"
        if state == "error":
            self.show_status(kind, text)
        elif state == "busy":
            self.show_status(kind, f"{text} …", "qp-busy")
        elif state == "cancelled":
            self.show_status(kind, f"cancelled: {text}", "qp-busy")
        else:
            self.clear_status(kind)


class Still(w.VBox):
    """A figure that does not change; it follows the theme and the width of the page."""

    def __init__(self, figure: go.Figure):
        replace_earlier_run(self)
        self.figure = live(figure)
        super().__init__([w.HTML(theme.STYLE), TokenStrip(), self.figure], layout=w.Layout(width="100%"))
        self.add_class("qp-panel")

    def close(self) -> None:
        """Free the figure."""
        for widget in list(_descendants(self)):
            close_widget(widget)
        close_widget(self)
        _forget(self)


def show(figure: go.Figure) -> Still:
    """Show a plain figure as the last expression of a cell."""
    return Still(figure)


def live(figure: go.Figure) -> go.FigureWidget:
    """The figure as a widget that fits its box."""
    widget = go.FigureWidget(figure)
    widget._config = theme.FIGURE_CONFIG
    return widget


def replace_earlier_run(widget: w.Widget) -> None:
    """Close what this cell showed when it ran before: each would leave a figure, a panel also a thread behind."""
    cell = _running_cell()
    if cell is None:
        return
    name, run = cell
    last_run, shown = _shown_by_cell.get(name, (run, []))
    if last_run != run:
        for earlier in shown:
            earlier.close()
        shown = []
    _shown_by_cell[name] = (run, [*shown, widget])


def _running_cell() -> tuple[str, str] | None:
    """(cell id, execution id) of the notebook cell that runs now, or None outside of JupyterLab."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    parent = shell.kernel.get_parent()
    cell = parent.get("metadata", {}).get("cellId")
    return (cell, parent["header"]["msg_id"]) if cell else None


def _forget(widget: w.Widget) -> None:
    for name, (run, shown) in list(_shown_by_cell.items()):
        if any(other is widget for other in shown):
            _shown_by_cell[name] = (run, [other for other in shown if other is not widget])


def _descendants(widget: w.Widget):
    for child in getattr(widget, "children", ()):
        yield from _descendants(child)
        yield child


def write_html(figure: go.Figure, path: str | Path) -> Path:
    """Write a figure as one HTML file that needs no network; complete or not at all."""
    path = Path(path)
    text = figure.to_html(include_plotlyjs=True, full_html=True, config=theme.FIGURE_CONFIG)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
