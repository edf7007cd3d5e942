"""What every panel on rows of logits shares: its source, the text of a live model, the position, and the caption."""

from __future__ import annotations

import html
from pathlib import Path

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
import torch

from activations import capture_logits
from qp_kernels import backend as backends
from widgets.controls import GridSlider
from widgets.painting import Painter, Properties
from widgets.panels.base import Panel
from widgets.panels.row_controls import RowControls
from widgets.sources import CaptureRows, Rows, TextWindow, is_live, open_rows

DEFAULT_MODEL = "gemma-3-270m"


class RowPanel(Panel):
    """A panel on a live model, a capture, logits or a file. Subclasses give controls, `_draw(job)` and the figure.

    Args:
        source: What `open_rows` takes, or a live `LanguageModel`.
        figure: The empty figure. kinds: Of jobs, as `Panel` takes them; "capture" and "draw" are among them.
        position: Row shown first; negative counts from the end. backend: "auto", "triton" or "torch".
        text: First text of a live model. start: Start values of the subclass's own controls.

    Attributes:
        sliders: Controls that an exported file can have a slider over.
    """

    sliders: tuple[str, ...] = ()

    def __init__(self, source, figure: go.Figure, kinds: tuple[str, ...], *, position, backend, text, **start):
        self._model = source if is_live(source) else None
        if text is not None and self._model is None:
            raise ValueError("text needs a live model: pass the result of activations.load as source")
        self._rows: Rows | None = None if self._model else open_rows(source)
        self._first_position = whole_number("position", position)
        backends.resolve(self._model.device if self._model else self._rows.row(0), backend)
        self._view = None  # what is drawn, as the subclass describes it
        self._read: str | None = None  # the text that the rows belong to
        self._text = TextWindow()
        self._caption = ""
        self.computed_ms: list[float] = []  # how long each redraw took in the kernel, newest last
        super().__init__(figure, kinds)
        self._painter = Painter(self.figure)
        try:
            self._make_controls(backend=backend, text=text, **start)
            if self._rows is not None:
                self._use_rows(self._rows, self._first_position)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._capture() if self._model else self._redraw()

    def _new_controls(self, vocab: int, n_layers: int) -> RowControls:
        raise NotImplementedError

    def _draw(self, job) -> None:
        raise NotImplementedError

    def _make_controls(self, **start) -> None:
        """Make the controls and give the panel their names (`panel.k`, `panel.p`, …)."""
        known, live = self._rows or self._model, self._model is not None
        self._controls = self._new_controls(known.vocab_size, getattr(self._model, "n_layers", 0))
        self._controls.start(**start)
        for name, control in vars(self._controls).items():
            setattr(self, name, control)
        has_capture = live or isinstance(self._rows, CaptureRows)
        with_notes = live and self._model.name == DEFAULT_MODEL
        self.arrange(*self._controls.arrange(live=live, has_capture=has_capture, with_notes=with_notes))

    def _connect(self) -> None:
        for control in self._controls.redrawing:
            control.observe(self._on_control, "value")
            if isinstance(control, GridSlider):
                control.observe(self._on_refused, "error")
        self.strip.observe(self._pick, "picked")
        if self._model is not None:
            self.text.observe(lambda _: self._capture(), "value")
            self.layer.observe(lambda _: self._capture(), "value")
            self.run_button.on_click(lambda _: self._capture())

    def _on_control(self, _) -> None:
        if not self._worker.is_current:  # a job that sets a control draws by itself
            self.clear_status("control")
            self._redraw()

    def _on_refused(self, change) -> None:
        if change["new"]:
            self.show_status("control", change["new"])

    def _redraw(self) -> None:
        self.submit("draw", self._draw)

    def _capture(self) -> None:
        self.submit("capture", self._run_capture)

    def _pick(self, change) -> None:
        token = change["new"][0]
        if 0 <= token < len(self._text.rows) and self._text.rows[token] >= 0:
            self.position.value = self._text.rows[token]

    # Jobs: what stands from here to `caption` runs on the worker.

    def _ids_of(self, text: str):
        """What the model reads for a text: the text, or its ids where they are known."""
        return text

    def _run_capture(self, job) -> None:
        """Run the model on the text; show its last position, or for the same ids the position that was shown."""
        text, layer, what = self.text.value, self.layer.value, "the model reads the text"
        job.progress(0, 0, what)
        ids = self._ids_of(text)
        position, self._first_position = self._first_position, -1
        capture = capture_logits(self._model, ids, layer=layer, progress=job.progress)
        job.progress(0, 0, what)  # raises when another text was typed meanwhile
        known = self._model.loaded_from
        made = [
            "from activations import capture_logits, load",
            f"lm = load({known!r})" if known else "lm = ...  # the model of this panel",
            f"capture = capture_logits(lm, {text if ids is text else ids.tolist()!r}, layer={layer})",
        ]
        if isinstance(self._rows, CaptureRows) and torch.equal(self._rows.capture.ids, capture.ids):
            position = self.position.value
        self._use_rows(CaptureRows(capture, made), position)
        self._read = text
        self._draw(job)

    def _use_rows(self, rows: Rows, position: int) -> None:
        """Show other rows. Subclasses extend it."""
        if not -rows.count <= position < rows.count:
            raise ValueError(f"position must be from {-rows.count} to {rows.count - 1}, got {position}")
        self._rows = rows
        self.position.set_grid(list(range(rows.count)))
        self.position.value = position % rows.count

    def _show_text(self, position: int) -> None:
        """Show the text around a row."""
        self._text = shown = self._rows.text(position)
        with self.strip.hold_sync():
            self.strip.tokens, self.strip.here = shown.tokens, shown.here
            self.strip.readable = [token for token, row in enumerate(shown.rows) if row >= 0]

    def _show_caption(self, row: torch.Tensor, *more: str, backend: str | None = None) -> None:
        """Say where the row is from; `backend` names the one that was used where that is not the chosen one."""
        used = backend or backends.resolve(row, self.backend.value).name
        known = self._rows.describe(self.logits_dtype.value)
        self._caption = " · ".join([known, f"{used} back-end", *more])
        self._caption_view.value = f"<div class='qp-caption'>{html.escape(self._caption)}</div>"

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

    def _need_view(self):
        if self._view is None:
            raise RuntimeError("nothing is drawn yet; call wait() first")
        return self._view

    def release(self) -> None:
        self._rows = self._model = self._view = None


def whole_number(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return int(value)
