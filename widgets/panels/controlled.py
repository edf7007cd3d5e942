"""What panels share whose picture follows from their controls: redraws, refused entries, export with a slider."""

from __future__ import annotations

import html
from pathlib import Path

import ipywidgets as w
import plotly.graph_objects as go

from widgets.controls import GridSlider
from widgets.painting import Painter, Properties
from widgets.panels.base import Panel


class ControlledPanel(Panel):
    """A panel whose `_controls` hold its controls under the panel's own names. Subclasses give `_draw(job)`.

    Attributes:
        sliders: Controls that an exported file can have a slider over.
        computed_ms: How long each redraw took in the kernel, newest last.
    """

    sliders: tuple[str, ...] = ()

    def __init__(self, figure: go.Figure, kinds: tuple[str, ...]):
        self._caption = ""
        self.computed_ms: list[float] = []
        super().__init__(figure, kinds)
        self._painter = Painter(self.figure)

    def _adopt(self, controls) -> None:
        """Take the controls, and give the panel their names (`panel.k`, `panel.g`, …)."""
        self._controls = controls
        for name, control in vars(controls).items():
            setattr(self, name, control)

    def _connect(self) -> None:
        for control in self._controls.redrawing:
            control.observe(self._on_control, "value")
            if isinstance(control, GridSlider):
                control.observe(self._on_refused, "error")

    def _on_control(self, _) -> None:
        if not self._worker.is_current:  # a job that sets a control draws by itself
            self.clear_status("control")
            self._redraw()

    def _on_refused(self, change) -> None:
        if change["new"]:
            self.show_status("control", change["new"])

    def _redraw(self) -> None:
        self.submit("draw", self._draw)

    def _draw(self, job) -> None:
        raise NotImplementedError

    def _say_caption(self, text: str) -> None:
        self._caption = text
        self._caption_view.value = f"<div class='qp-caption'>{html.escape(text)}</div>"

    @property
    def caption(self) -> str:
        return self._caption

    def export_html(self, path: str | Path, slider: str | None = None, steps: int = 40) -> Path:
        """Write what is seen as one HTML file that works offline.

        Args:
            path: File to write. slider: None, or one of `sliders`: a slider in the file over that quantity.
            steps: Positions of that slider, at most 50.
        """
        return self._export(path, slider, steps)

    def _slider_grid(self, name: str) -> list:
        """The values that a slider in a file can take. Subclasses may leave some out."""
        return getattr(self, name).grid

    def _slider_views(self, name: str, steps: int) -> tuple[list[str], list[Properties], int]:
        """Names and properties of a slider's steps, and which of them is the one that is seen."""
        control, grid = getattr(self, name), self._slider_grid(name)
        picked = sorted({round(i * (len(grid) - 1) / (steps - 1)) for i in range(steps)})
        nearest = min(picked, key=lambda i: abs(grid[i] - control.value))
        values = [control.value if i == nearest else grid[i] for i in picked]
        # The line under an exported figure is the first annotation that `snapshot` adds.
        line = f"annotations[{len(self.figure.layout.annotations)}].text"
        views = [
            (traces, layout | {line: html.escape(text)}) for (traces, layout), text in self._views_over(name, values)
        ]
        return [f"{control.symbol} = {value:g}" for value in values], views, picked.index(nearest)

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        """What the figure is for each value of a control, and the line that says it."""
        raise NotImplementedError

    def owned(self) -> list[w.Widget]:
        controls = list(vars(self._controls).values()) if hasattr(self, "_controls") else []
        return [*super().owned(), *controls, *(part for c in controls for part in getattr(c, "children", ()))]

    def release(self) -> None:
        self._view = None
