"""What every panel on rows of logits shares: its source, the text of a live model, the position, and the caption."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import torch

from activations import capture_logits
from qp_kernels import backend as backends
from widgets.panels.controlled import ControlledPanel
from widgets.panels.row_controls import RowControls
from widgets.sources import CaptureRows, Rows, TextWindow, is_live, open_rows

DEFAULT_MODEL = "gemma-3-270m"


class RowPanel(ControlledPanel):
    """A panel on a live model, a capture, logits or a file. Subclasses give controls, `_draw(job)` and the figure.

    Args:
        source: What `open_rows` takes, or a live `LanguageModel`.
        figure: The empty figure. kinds: Of jobs, as `Panel` takes them; "capture" and "draw" are among them.
        position: Row shown first; negative counts from the end. backend: "auto", "triton" or "torch".
        text: First text of a live model. start: Start values of the subclass's own controls.
    """

    def __init__(self, source, figure: go.Figure, kinds: tuple[str, ...], *, position, backend, text, **start):
        self._model = source if is_live(source) else None
        if text is not None and self._model is None:
            raise ValueError("text needs a live model: pass the result of activations.load as source")
        self._rows: Rows | None = None if self._model else open_rows(source)
        self._first_position = whole_number("position", position)
        backends.resolve(self._model.device if self._model else self._rows.row(0), backend)
        self._read: str | None = None  # the text that the rows belong to
        self._text = TextWindow()
        super().__init__(figure, kinds)
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

    def _make_controls(self, **start) -> None:
        """Make the controls and give the panel their names (`panel.k`, `panel.p`, …)."""
        known, live = self._rows or self._model, self._model is not None
        self._adopt(self._new_controls(known.vocab_size, getattr(self._model, "n_layers", 0)))
        self._controls.start(**start)
        has_capture = live or isinstance(self._rows, CaptureRows)
        with_notes = live and self._model.name == DEFAULT_MODEL
        self.arrange(*self._controls.arrange(live=live, has_capture=has_capture, with_notes=with_notes))

    def _connect(self) -> None:
        super()._connect()
        self.strip.observe(self._pick, "picked")
        if self._model is not None:
            self.text.observe(lambda _: self._capture(), "value")
            self.layer.observe(lambda _: self._capture(), "value")
            self.run_button.on_click(lambda _: self._capture())

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
        self._say_caption(" · ".join([known, f"{used} back-end", *more]))

    def release(self) -> None:
        super().release()
        self._rows = self._model = None


def whole_number(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return int(value)
