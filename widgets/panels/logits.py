"""LogitExplorer: which tokens survive k, p and T, seen on the distribution of a real model's logits."""

from __future__ import annotations

import html
import time
from collections import OrderedDict
from pathlib import Path

import ipywidgets as w
import numpy as np
import torch

from activations import capture_logits
from qp_kernels import backend as backends
from widgets import figures
from widgets.controls import GridSlider, k_grid
from widgets.draws import Draws
from widgets.logit_view import LogitView, RowFacts, fate, look, mantissa_bits, sentence
from widgets.painting import Painter, add_slider
from widgets.panels.base import Panel, write_html
from widgets.panels.logit_controls import LogitControls
from widgets.sources import CaptureRows, Rows, TextWindow, is_live, open_rows

DEFAULT_MODEL = "gemma-3-270m"
WARM_AFTER_S = 0.4  # sliders rest so long before neighbouring rows are prepared
ROWS_AT_HAND = 24  # rows kept sorted: all of a short text, the neighbours in a long one


class LogitExplorer(Panel):
    """See the cut that top-k, top-p and temperature make in one row of logits.

    Left: the next tokens before and after the cut. Right: the histogram of all V logits against a normal curve, with
    the cut and the threshold t of the σ-truncation, and a QQ view. min-p and top-nσ can be drawn for comparison.

    Args:
        source: A live `LanguageModel` (then the panel has a text box), a `LogitCapture`, logits [V] or [R, V] as tensor
            or array, or the path of a `.safetensors`, `.npy` or `.npz` file.
        k: Tokens kept; 0, or V and more, is off. p: Probability mass kept, 1 is off. temperature: 0 is greedy.
        position: Row shown first; negative counts from the end.
        backend: "auto", "triton" or "torch", as in `qp_kernels`.
        text: First text of a live model.
    Raises:
        TypeError, ValueError: a source or number that can't be used, and what is accepted.

    Drive it by code: `panel.k.value = 20; panel.wait(); panel.figure`. Controls: k, p, temperature, position, min_p,
    n_sigma, margin, order, logits_dtype, skip_unused, scale, backend, and on a live model text and layer.
    """

    def __init__(self, source, *, k=50, p=0.9, temperature=1.0, position=-1, backend="auto", text=None):
        self._facts: OrderedDict[tuple, RowFacts] = OrderedDict()
        self._model = source if is_live(source) else None
        if text is not None and self._model is None:
            raise ValueError("text needs a live model: pass the result of activations.load as source")
        self._rows: Rows | None = None if self._model else open_rows(source)
        self._first_position = whole_number("position", position)
        backends.resolve(self._model.device if self._model else self._rows.row(0), backend)
        self._undrawable: set[int] = set()
        self._draws = Draws()
        self._draws_asked = 0
        self._written: tuple[str, torch.Tensor] | None = None  # a text that Append made, and its ids
        self._read: str | None = None  # the text that the rows belong to
        self._view: LogitView | None = None
        self._position = 0  # of the view
        self._text = TextWindow()
        self._caption = ""
        self.computed_ms: list[float] = []  # how long each redraw took in the kernel, newest last
        super().__init__(figures.logit_figure(), kinds=("capture", "append", "draw", "warm"))
        self._painter = Painter(self.figure)
        try:
            self._make_controls(k=k, p=p, temperature=temperature, backend=backend, text=text)
            if self._rows is not None:
                self._use_rows(self._rows, self._first_position)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._capture() if self._model else self._redraw()

    def _make_controls(self, **start) -> None:
        """Make the controls and give the panel their names (`panel.k`, `panel.p`, …)."""
        known, live = self._rows or self._model, self._model is not None
        self._controls = LogitControls(known.vocab_size, getattr(self._model, "n_layers", 0))
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
        self.sample_button.on_click(lambda _: self._ask_sample())
        if self._model is not None:
            self.text.observe(lambda _: self._capture(), "value")
            self.layer.observe(lambda _: self._capture(), "value")
            self.run_button.on_click(lambda _: self._capture())
            self.append_button.on_click(lambda _: self.submit("append", self._append))

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

    def _ask_sample(self) -> None:
        if self._view is not None:
            with self._lock:
                self._draws_asked += 1
            self._redraw()

    def _pick(self, change) -> None:
        token = change["new"][0]
        if 0 <= token < len(self._text.rows) and self._text.rows[token] >= 0:
            self.position.value = self._text.rows[token]

    # Jobs: what stands from here to `caption` runs on the worker.

    def _run_capture(self, job) -> None:
        """Run the model on the text; show its last position, or for the same ids the position that was shown."""
        text, layer, what = self.text.value, self.layer.value, "the model reads the text"
        job.progress(0, 0, what)
        ids = self._written[1] if self._written and self._written[0] == text else text
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

    def _append(self, job) -> None:
        """Write the drawn token behind the text; where none was drawn from its last row, draw one."""
        text = self.text.value
        if self._rows is None or self._read != text:
            return  # a newer text is on its way
        if self.position.value != self._rows.count - 1 or self._draws.last is None:
            self.position.value = self._rows.count - 1
            with self._lock:
                self._draws_asked += 1
            self._draw(job)
        token, ids = self._draws.last, self._rows.capture.ids
        longer = torch.cat([ids, ids.new_tensor([token])])
        before, after = self._model.decode(ids), self._model.decode(longer)
        addition = after[len(before) :] if after.startswith(before) else self._rows.label([token])[0]
        if not addition:
            raise ValueError(f"{self._rows.label([token])[0]} ends the text: nothing can be written behind it")
        if self.text.value == text:
            self._written = (text + addition, longer)
            self.text.value = text + addition

    def _use_rows(self, rows: Rows, position: int) -> None:
        if not -rows.count <= position < rows.count:
            raise ValueError(f"position must be from {-rows.count} to {rows.count - 1}, got {position}")
        self._facts.clear()
        self._undrawable.clear()
        with self._lock:
            self._draws_asked = 0
        self._draws = Draws()
        self._rows = rows
        self.k.set_grid(k_grid(rows.vocab_size))
        self.position.set_grid(list(range(rows.count)))
        self.position.value = position % rows.count
        self.skip_unused.disabled = rows.unused is None or not bool(rows.unused.any())

    def _draw(self, job) -> None:
        start = time.perf_counter()
        if self._rows is None:
            return
        position = self.position.value
        view = self._look(self._facts_of(position))
        self._draw_samples(view, position)
        self._show(view, position)
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        self._submit_warm(WARM_AFTER_S)

    def _key(self, position: int) -> tuple:
        return position, self.logits_dtype.value, self.skip_unused.value

    def _facts_of(self, position: int) -> RowFacts:
        key = self._key(position)
        if key not in self._facts:
            row = self._rows.row(position, key[1])
            unused = self._rows.unused if key[2] else None
            self._facts[key] = RowFacts(row, unused, mantissa_bits(row))
            while len(self._facts) > ROWS_AT_HAND:
                self._facts.popitem(last=False)
        self._facts.move_to_end(key)
        return self._facts[key]

    def _submit_warm(self, delay_s: float) -> None:
        """Ask for the nearest row that is not at hand, one a job, once the sliders rest."""
        here, count = self.position.value, self._rows.count
        near = [r for step in range(1, ROWS_AT_HAND // 2) for r in (here + step, here - step) if 0 <= r < count]
        missing = next((r for r in near if self._key(r) not in self._facts and r not in self._undrawable), None)
        if missing is not None:
            self.submit("warm", lambda job: self._warm(missing), delay_s)

    def _warm(self, position: int) -> None:
        try:
            self._facts_of(position)
        except ValueError:
            self._undrawable.add(position)  # told when somebody opens it
        self._submit_warm(0.0)

    def _look(self, facts: RowFacts) -> LogitView:
        return look(
            facts,
            self._rows.label,
            k=self.k.value,
            p=self.p.value,
            temperature=self.temperature.value,
            order=self.order.value,
            margin=self.margin.value,
            min_p=self.min_p.value,
            n_sigma=self.n_sigma.value,
            backend=self.backend.value,
        )

    def _draw_samples(self, view: LogitView, position: int) -> None:
        """Draw the tokens that were asked for; they are counted until a setting that changes the odds changes."""
        self._draws.use((*self._key(position)[:2], view.k, view.p, view.temperature, view.order))
        with self._lock:
            asked, self._draws_asked = self._draws_asked, 0
        for _ in range(asked):
            self._draws.draw(view, self.backend.value)

    def _show(self, view: LogitView, position: int) -> None:
        self._text = shown = self._rows.text(position)
        self._view, self._position, self._caption = view, position, self._describe(view)
        with self._lock:
            self._painter.paint(view, self._draws.counts, self.scale.value == "log")
        with self.strip.hold_sync():
            self.strip.tokens, self.strip.here = shown.tokens, shown.here
            self.strip.readable = [token for token, row in enumerate(shown.rows) if row >= 0]
        self.summary = self._summarise(view)
        self._caption_view.value = f"<div class='qp-caption'>{html.escape(self._caption)}</div>"

    def _summarise(self, view: LogitView) -> str:
        parts = [sentence(view)]
        if self._draws.last is not None:
            parts.append(f"drawn: {self._rows.label([self._draws.last])[0]!r}")
        follows = self._text.next_id
        if follows >= 0:
            parts.append(f"the text goes on with {self._rows.label([follows])[0]!r} ({fate(view, follows)})")
        return " · ".join(parts)

    def _describe(self, view: LogitView) -> str:
        used = backends.resolve(view.facts.row, self.backend.value)
        return f"{self._rows.describe(self.logits_dtype.value)} · {used.name} back-end"

    @property
    def caption(self) -> str:
        return self._caption

    def to_frame(self, limit: int = 1000):
        """The kept tokens in row order, at most `limit`: a pandas frame of rank, id, token, logit, probabilities."""
        import pandas as pd

        view = self._need_view()
        n = min(view.kept, limit)
        ids = view.facts.order[:n]
        each, running = view.facts.masses(view.temperature)
        return pd.DataFrame(
            {
                "rank": np.arange(1, n + 1),
                "id": ids,
                "token": self._rows.label(ids),
                "logit": view.facts.sorted[:n],
                "probability": each[:n],
                "probability_after": each[:n] / running[view.kept - 1],
            }
        )

    def code(self) -> str:
        view = self._need_view()
        k, p = (1, None) if view.temperature == 0 else (view.k or None, view.p if view.p < 1 else None)
        scaled = "logits" if view.temperature in (0, 1) else f"logits / {view.temperature!r}"
        more = ("" if view.order == "k_then_p" else f", order={view.order!r}") + f", backend={self.backend.value!r}"
        lines = self._rows.code(self._position, self.logits_dtype.value)
        imports = "from qp_kernels.qrita import top_k_top_p"
        return "\n".join([imports, *lines, f"kept = top_k_top_p({scaled}, k={k}, p={p}{more})"])

    def export_html(self, path: str | Path, slider: str | None = None, steps: int = 40) -> Path:
        """Write what is seen as one HTML file that works offline.

        Args:
            path: File to write. slider: None, "k", "p" or "temperature": a slider in the file over that quantity.
            steps: Positions of that slider, at most 50.
        """
        if slider not in (None, "k", "p", "temperature"):
            raise ValueError(f'slider must be None, "k", "p" or "temperature", got {slider!r}')
        if not 2 <= steps <= 50:
            raise ValueError(f"steps must be from 2 to 50, got {steps}")
        figure = self.snapshot()
        if slider is not None:
            add_slider(figure, *self._slider_views(slider, steps), self.scale.value == "log")
        return write_html(figure, path)

    def _slider_views(self, name: str, steps: int) -> tuple[list[str], list[LogitView], int]:
        """Names and views of a slider's steps, and which of them is the one that is seen."""
        view, control = self._need_view(), getattr(self, name)
        grid = [x for x in control.grid if name != "temperature" or x > 0]
        picked = sorted({round(i * (len(grid) - 1) / (steps - 1)) for i in range(steps)})
        nearest = min(picked, key=lambda i: abs(grid[i] - control.value))
        values = [control.value if i == nearest else grid[i] for i in picked]
        setting = {"k": view.k, "p": view.p, "temperature": view.temperature, "order": view.order}
        setting |= {"margin": self.margin.value, "min_p": self.min_p.value, "n_sigma": self.n_sigma.value}
        setting["backend"] = self.backend.value
        views = [look(view.facts, self._rows.label, **{**setting, name: value}) for value in values]
        return [f"{control.symbol} = {value:g}" for value in values], views, picked.index(nearest)

    def _need_view(self) -> LogitView:
        if self._view is None:
            raise RuntimeError("nothing is drawn yet; call wait() first")
        return self._view

    def owned(self) -> list[w.Widget]:
        controls = list(vars(self._controls).values()) if hasattr(self, "_controls") else []
        return [*super().owned(), *controls, *(part for c in controls for part in getattr(c, "children", ()))]

    def release(self) -> None:
        self._facts.clear()
        self._rows = self._model = self._view = None


def whole_number(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return int(value)
