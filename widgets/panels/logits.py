"""LogitExplorer: which tokens survive k, p and T, seen on the distribution of a real model's logits."""

from __future__ import annotations

import html
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

from activations import capture_logits
from qp_kernels import backend as backends
from qp_kernels.qrita import sample
from widgets import figures
from widgets.controls import GridSlider, k_grid
from widgets.jobs import one_thread
from widgets.logit_view import LogitView, RowFacts, fate, look, mantissa_bits, sentence
from widgets.painting import add_slider, paint
from widgets.panels.base import Panel, write_html
from widgets.panels.logit_controls import LogitControls
from widgets.sources import CaptureRows, Rows, TextWindow, is_live, open_rows

ROWS_AT_HAND = 24  # rows kept sorted: all of a short text, the neighbours in a long one


class LogitExplorer(Panel):
    """See the cut that top-k, top-p and temperature make in one row of logits.

    Left: the next tokens before and after the cut. Right: the histogram of all V logits against a normal curve, with
    the cut and the threshold t of the σ-truncation, and a QQ view. min-p and top-nσ can be drawn for comparison.

    Args:
        source: A live `LanguageModel` (then the panel has a text box), a `LogitCapture`, logits [V] or [R, V] as tensor
            or array, or the path of a `.safetensors`, `.npy` or `.npz` file.
        k: Tokens kept, 0 is off. p: Probability mass kept, 1 is off. temperature: 0 is greedy.
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
        backends.resolve(torch.device("cpu"), backend)
        self._undrawable: set[int] = set()
        self._shown: tuple | None = None
        self._drawn: dict[int, int] = {}
        self._drawn_for: tuple | None = None
        self._draws_asked = 0
        self._last_token: int | None = None
        self._view: LogitView | None = None
        self._text = TextWindow()
        self._caption = ""
        self.computed_ms: list[float] = []  # how long each redraw took in the kernel, newest last
        super().__init__(figures.logit_figure())
        try:
            self._make_controls(k=k, p=p, temperature=temperature, backend=backend, text=text)
            if self._rows is not None:
                self._use_rows(self._rows, position)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._first_position = position
        self._capture() if self._model else self._redraw()

    def _make_controls(self, **start) -> None:
        """Make the controls and give the panel their names (`panel.k`, `panel.p`, …)."""
        known = self._rows or self._model
        self._controls = LogitControls(known.vocab_size, getattr(self._model, "n_layers", 0), **start)
        for name, control in vars(self._controls).items():
            setattr(self, name, control)
        has_capture = self._model is not None or isinstance(self._rows, CaptureRows)
        self.arrange(*self._controls.arrange(live=self._model is not None, has_capture=has_capture))

    def _connect(self) -> None:
        for control in self._controls.redrawing:
            control.observe(lambda _: self._redraw(), "value")
            if isinstance(control, GridSlider):
                control.observe(lambda change: change["new"] and self.show_error(change["new"]), "error")
        self.text.observe(lambda _: self._capture(), "value")
        self.layer.observe(lambda _: self._capture(), "value")
        self.strip.observe(self._pick, "picked")
        self.sample_button.on_click(lambda _: self._ask_sample())
        self.append_button.on_click(lambda _: self.submit("capture", self._append))

    # Jobs: everything from here to the next such line runs on the worker.

    def _redraw(self) -> None:
        self.submit("draw", self._draw)

    def _capture(self) -> None:
        self.submit("capture", self._run_capture)

    def _ask_sample(self) -> None:
        with self._lock:
            self._draws_asked += 1
        self._redraw()

    def _pick(self, change) -> None:
        token = change["new"][0]
        if 0 <= token < len(self._text.rows) and self._text.rows[token] >= 0:
            self.position.value = self._text.rows[token]

    def _run_capture(self, job) -> None:
        """Run the model on the text and show its last position (the first time: the one asked for)."""
        text = self.text.value
        job.progress(0, 0, "the model reads the text")
        made = [
            "from activations import capture_logits, load",
            f"lm = load({self._model.name!r})",
            f"capture = capture_logits(lm, {text!r}, layer={self.layer.value})",
        ]
        capture = capture_logits(self._model, text, layer=self.layer.value, progress=job.progress)
        self._use_rows(CaptureRows(capture, made), self._first_position)
        self._first_position = -1
        self._draw(job)

    def _append(self, job) -> None:
        """Add the last drawn token to the text; without one, draw first."""
        if self._rows is None:
            return
        if self._last_token is None:
            with self._lock:
                self._draws_asked += 1
            self._draw(job)
        addition = self._rows.label([self._last_token])[0]
        self.text.value += addition

    def _use_rows(self, rows: Rows, position: int) -> None:
        position = operator_index(position)
        if not -rows.count <= position < rows.count:
            raise ValueError(f"position must be from {-rows.count} to {rows.count - 1}, got {position}")
        self._facts.clear()
        self._undrawable.clear()
        self._shown, self._rows = None, rows
        self.k.set_grid(k_grid(rows.vocab_size))
        self.position.set_grid(list(range(rows.count)))
        self.position.value = position % rows.count
        self.skip_unused.disabled = rows.unused is None or not bool(rows.unused.any())

    def _draw(self, job) -> None:
        start = time.perf_counter()
        if self._rows is None:
            return
        position = self.position.value
        facts = self._facts_of(position)
        view = self._look(facts)
        self._sample_if_asked(view, position)
        self._show(view, position)
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        self.submit_warm()

    def _key(self, position: int) -> tuple:
        return position, self.logits_dtype.value, self.skip_unused.value

    def _facts_of(self, position: int) -> RowFacts:
        key = self._key(position)
        if key not in self._facts:
            row = self._rows.row(position, key[1])
            unused = self._rows.unused if key[2] else None
            with one_thread():
                self._facts[key] = RowFacts(row.cpu(), unused, mantissa_bits(row))
            while len(self._facts) > ROWS_AT_HAND:
                self._facts.popitem(last=False)
        self._facts.move_to_end(key)
        return self._facts[key]

    def submit_warm(self) -> None:
        """Ask for the nearest row that is not at hand; one a job, so that a slider never waits for more than one."""
        here = self.position.value
        near = sorted(range(self._rows.count), key=lambda r: (abs(r - here), -r))[: ROWS_AT_HAND - 2]
        missing = next((r for r in near if self._key(r) not in self._facts and r not in self._undrawable), None)
        if missing is not None:
            self.submit("warm", lambda job: self._warm(missing))

    def _warm(self, position: int) -> None:
        try:
            self._facts_of(position)
        except ValueError:
            self._undrawable.add(position)  # told when somebody opens it
        self.submit_warm()

    def _look(self, facts: RowFacts) -> LogitView:
        with one_thread():
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

    def _sample_if_asked(self, view: LogitView, position: int) -> None:
        """Draw the tokens that were asked for; draws are counted until a setting that changes the odds changes."""
        setting = (*self._key(position)[:2], view.k, view.p, view.temperature, view.order, id(self._rows))
        if setting != self._drawn_for:
            self._drawn, self._drawn_for, self._last_token = {}, setting, None
        with self._lock:
            asked, self._draws_asked = self._draws_asked, 0
        for _ in range(asked):
            # Sampling from the kept prefix, which also serves order="joint".
            kept = torch.from_numpy(view.facts.order[: view.kept].copy())
            logits = view.facts.row[kept]
            token = int(kept[int(sample(logits, temperature=view.temperature, backend=self.backend.value))])
            self._drawn[token] = self._drawn.get(token, 0) + 1
            self._last_token = token

    def _show(self, view: LogitView, position: int) -> None:
        key = (*self._key(position), id(self._rows))
        fresh = key != self._shown
        self._view = view
        self._caption = self._describe()
        log = self.scale.value == "log"
        with self._lock:
            paint(self.figure, view, self._drawn, log, fresh)
        self._shown = key
        if fresh:
            self._show_text(position)
        self.summary = self._summarise(view)
        self._caption_view.value = f"<div class='qp-caption'>{html.escape(self._caption)}</div>"

    def _show_text(self, position: int) -> None:
        self._text = shown = self._rows.text(position)
        with self.strip.hold_sync():
            self.strip.tokens, self.strip.here = shown.tokens, shown.here
            self.strip.readable = [token for token, row in enumerate(shown.rows) if row >= 0]

    def _summarise(self, view: LogitView) -> str:
        parts = [sentence(view)]
        if self._last_token is not None:
            parts.append(f"drawn: {self._rows.label([self._last_token])[0]!r}")
        follows = self._text.next_id
        if follows >= 0:
            parts.append(f"the text goes on with {self._rows.label([follows])[0]!r} ({fate(view, follows)})")
        return " · ".join(parts)

    def _describe(self) -> str:
        used = backends.resolve(self._view.facts.row, self.backend.value)
        return f"{self._rows.describe(self.logits_dtype.value)} · {used.name} back-end"

    # What a user takes away.

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
        greedy = view.temperature == 0
        k, p = (1, None) if greedy else (view.k or None, view.p if view.p < 1 else None)
        scaled = "logits" if view.temperature in (0, 1) else f"logits / {view.temperature:g}"
        more = ("" if view.order == "k_then_p" else f", order={view.order!r}") + f", backend={self.backend.value!r}"
        lines = self._rows.code(self.position.value)
        if self.logits_dtype.value == "model":
            lines = [line.replace(f"capture.logits({self.position.value})", self._model_dtype_call()) for line in lines]
        imports = "from qp_kernels.qrita import top_k_top_p"
        return "\n".join([imports, *lines, f"kept = top_k_top_p({scaled}, k={k}, p={p}{more})"])

    def _model_dtype_call(self) -> str:
        return f'capture.logits({self.position.value}, logits_dtype="model").float()'

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

    def _slider_views(self, name: str, steps: int) -> tuple[list[str], list[LogitView]]:
        view, control = self._need_view(), getattr(self, name)
        grid = [x for x in control.grid if name != "temperature" or x > 0]
        picked = sorted({round(i * (len(grid) - 1) / (steps - 1)) for i in range(steps)})
        setting = {"k": view.k, "p": view.p, "temperature": view.temperature}
        rest = {
            "order": view.order,
            "margin": self.margin.value,
            "min_p": self.min_p.value,
            "n_sigma": self.n_sigma.value,
        }
        label = self._rows.label
        views = [
            look(view.facts, label, **{**setting, name: grid[i]}, **rest, backend=self.backend.value) for i in picked
        ]
        return [f"{control.symbol} = {grid[i]:g}" for i in picked], views

    def _need_view(self) -> LogitView:
        if self._view is None:
            raise RuntimeError("nothing is drawn yet; call wait() first")
        return self._view

    def release(self) -> None:
        self._facts.clear()
        self._rows = self._model = self._view = None


def operator_index(position) -> int:
    if isinstance(position, bool) or not isinstance(position, (int, np.integer)):
        raise TypeError(f"position must be a whole number, got {position!r}")
    return int(position)
