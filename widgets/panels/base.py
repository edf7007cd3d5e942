"""What every panel shares: a live figure, a summary line, a status line, a worker, export, and a clean end."""

from __future__ import annotations

import html
import threading
from pathlib import Path

import ipywidgets as w
import plotly.graph_objects as go
import traitlets

from widgets import theme
from widgets.controls import button
from widgets.jobs import Worker
from widgets.strip import TokenStrip

_open_panels: dict[str, tuple[str, list[Panel]]] = {}


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


class Panel(w.VBox):
    """An ipywidgets.VBox with one live figure. Subclasses give controls and the jobs that fill the figure.

    Attributes:
        figure: The live FigureWidget; its traces keep their names.
        summary: One line of what is seen. status: Progress or the last error; "" when there is none.
        updates_per_s: Highest rate of redraws while a slider moves.
    """

    summary = traitlets.Unicode("")
    status = traitlets.Unicode("")
    updates_per_s = traitlets.Float(10.0)
    _worker: Worker | None = None  # a panel refused for its arguments has none, and is still closed by its destructor

    def __init__(self, figure: go.Figure, kinds: tuple[str, ...] = ("capture", "draw", "warm")):
        self._close_earlier_run()
        self._lock = threading.Lock()
        self.figure = go.FigureWidget(figure)
        self.figure._config = theme.FIGURE_CONFIG
        self._summary_view = w.HTML(layout=w.Layout(margin="0"))
        self._summary_view.add_class("qp-summary")
        self._status_view = w.HTML(layout=w.Layout(margin="0", display="none"))
        self._caption_view = w.HTML(layout=w.Layout(margin="0"))
        self._cancel_button = button("Cancel", "stop the running work", "stop")
        self._cancel_button.layout.display = "none"
        self._cancel_button.on_click(lambda _: self.cancel())
        self._worker = Worker(kinds, self._on_state, limited="draw", updates_per_s=self.updates_per_s)
        super().__init__(layout=w.Layout(width="100%"))
        self.add_class("qp-panel")

    def arrange(self, *controls: w.Widget) -> None:
        """Put the controls above the figure, and the lines of text around it."""
        state = w.HBox([self._status_view, self._cancel_button], layout=w.Layout(align_items="center"))
        self.children = [w.HTML(theme.STYLE), *controls, self._summary_view, state, self.figure, self._caption_view]

    def submit(self, kind: str, fn) -> None:
        """Hand `fn(job)` to the worker; the newest request of a kind wins."""
        self._worker.submit(kind, fn)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Block until the figure holds the newest data. Raises TimeoutError, or re-raises the error of the last job."""
        self._worker.wait(timeout_s)

    def cancel(self) -> None:
        """Stop running work; what is shown stays."""
        self._worker.cancel()

    def close(self) -> None:
        """End the worker and free the figure; the panel can't be used afterwards."""
        if self._worker is not None:
            self._worker.close()
        self.release()
        for child in _descendants(self):
            child.close()
        super().close()

    def release(self) -> None:
        """Drop what holds memory. Subclasses extend it."""

    def snapshot(self) -> go.Figure:
        """The figure as it is now, as a plain plotly figure that no longer changes."""
        with self._lock:
            figure = go.Figure(self.figure.data, self.figure.layout)
        caption = f"{html.escape(self.summary)}<br>{html.escape(self.caption)}"
        figure.update_layout(height=figure.layout.height + 60, margin_b=figure.layout.margin.b + 60)
        figure.add_annotation(
            text=caption,
            x=0,
            y=0,
            xref="paper",
            yref="paper",
            yshift=-84,
            xanchor="left",
            align="left",
            showarrow=False,
        )
        return figure

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

    def show_error(self, text: str) -> None:
        """Show an error in the panel; what was drawn stays."""
        self._mark_status("qp-error")
        self.status = text

    def _mark_status(self, name: str) -> None:
        self._status_view._dom_classes = (name,)

    def _on_state(self, kind: str, state: str, text: str) -> None:
        self._cancel_button.layout.display = "" if state == "busy" else "none"
        if state == "error":
            self.show_error(text)
        elif state == "busy":
            self._mark_status("qp-busy")
            self.status = f"{text} …"
        elif state == "cancelled":
            self._mark_status("qp-busy")
            self.status = f"cancelled: {text}"
        elif kind != "warm":
            self.status = ""

    def _close_earlier_run(self) -> None:
        """Close the panels of this cell's earlier run, each of which would leave a thread and a figure behind."""
        cell = _running_cell()
        if cell is None:
            return
        name, run = cell
        last_run, panels = _open_panels.get(name, (run, []))
        if last_run != run:
            for panel in panels:
                panel.close()
            panels = []
        _open_panels[name] = (run, [*panels, self])


def show(figure: go.Figure) -> w.VBox:
    """A figure that does not change, as the last expression of a cell; it follows theme and width of the page."""
    live = go.FigureWidget(figure)
    live._config = theme.FIGURE_CONFIG
    box = w.VBox([w.HTML(theme.STYLE), TokenStrip(), live], layout=w.Layout(width="100%"))
    box.add_class("qp-panel")
    return box


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
