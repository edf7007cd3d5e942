"""LogitExplorer: which tokens survive k, p and T, seen on the distribution of a real model's logits."""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
import torch

from activations import capture_logits
from activations.texts import OPENERS
from qp_kernels import backend as backends
from qp_kernels.qrita import sample
from widgets import figures
from widgets.controls import GridSlider, button, choice, k_grid, linear_grid, p_grid, switch
from widgets.logit_view import LogitView, RowFacts, look
from widgets.panels.base import Panel, write_html
from widgets.sources import CaptureRows, Rows, is_live, open_rows
from widgets.strip import TokenStrip

ROWS_AT_HAND = 24  # rows kept sorted: all of a short text, the neighbours in a long one


class LogitExplorer(Panel):
    """See the cut that top-k, top-p and temperature make in one row of logits.

    Left: the next tokens before and after the cut. Right: the histogram of all V logits against a normal curve, with the
    cut and the threshold t of the σ-truncation, and a QQ view. min-p and top-nσ can be drawn for comparison.

    Args:
        source: A live `LanguageModel` (then the panel has a text box), a `LogitCapture`, logits [V] or [R, V] as tensor or
            array, or the path of a `.safetensors`, `.npy` or `.npz` file.
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
        self._caption = ""
        self.computed_ms: list[float] = []  # how long each redraw took in the kernel, newest last
        super().__init__(figures.logit_figure())
        try:
            self._make_controls(k, p, temperature, backend, text)
            if self._rows is not None:
                self._use_rows(self._rows, position)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._first_position = position
        self._capture() if self._model else self._redraw()

    def _make_controls(self, k, p, temperature, backend, text) -> None:
        vocab = self._rows.vocab_size if self._rows else self._model.vocab_size
        self.k = GridSlider("k", "k  tokens kept", k_grid(vocab), k if k is not None else 0, off=0, tooltip="top-k")
        self.p = GridSlider(
            "p", "p  mass kept", p_grid(), p if p is not None else 1.0, off=1, tooltip="top-p (nucleus)"
        )
        self.temperature = GridSlider(
            "T", "T  temperature", linear_grid(0, 3, 0.05), temperature, tooltip="0 is greedy"
        )
        self.position = GridSlider("position", "position", [0], 0, tooltip="token whose successor is predicted")
        self.min_p = GridSlider(
            "min-p", "min-p", linear_grid(0, 1, 0.01), 0.0, off=0, tooltip="keep p ≥ min-p · largest p"
        )
        self.n_sigma = GridSlider(
            "top-nσ", "top-nσ  n", linear_grid(0, 8, 0.1), 0.0, off=0, tooltip="keep logits ≥ max − n·σ"
        )
        self.margin = GridSlider(
            "margin", "margin of t", linear_grid(0, 1, 0.05), 0.2, tooltip="safety margin of the truncation"
        )
        self.order = choice(
            "k and p", [("k, then p of those", "k_then_p"), ("joint: the shorter", "joint")], "k_then_p"
        )
        self.logits_dtype = choice("logits", [("float32", "float32"), ("the model's own type", "model")], "float32")
        self.scale = choice("axis", [("linear", "linear"), ("logarithmic", "log")], "linear")
        self.backend = choice("back-end", ["auto", "torch", "triton"], backend)
        self.skip_unused = switch(
            "leave <unused…> tokens out of μ, σ and QQ", tooltip="the kernel's own t always sees them"
        )
        self.sample_button = button("Sample", "draw one token from the kept set", "random")
        self.append_button = button("Append", "add the drawn token (or a fresh draw) to the text", "plus")
        self.strip = TokenStrip()
        start = text if text is not None else OPENERS[0][0]
        self.text = w.Text(
            value=start,
            description="text",
            continuous_update=False,
            placeholder="type a sentence and press Enter",
            style={"description_width": "40px"},
            layout=w.Layout(flex="1 1 auto", width="auto"),
        )
        last = self._model.n_layers if self._model else 0
        names = [(f"{i} of {last}" + (" (final)" if i == last else ""), i) for i in range(last, 0, -1)] or [
            ("final", 0)
        ]
        self.layer = choice("layer", names, last, "an earlier layer, read through the final norm and head")
        self._place()

    def _place(self) -> None:
        live = self._model is not None
        known = live or isinstance(self._rows, CaptureRows)
        self.append_button.layout.display = "" if live else "none"
        self.logits_dtype.layout.display = "" if live or self._rows.has_model_dtype else "none"
        self.layer.layout.display = "" if live else "none"
        openers = w.Dropdown(
            options=[("openers …", None), *[(f"{opener}  ({note})", opener) for opener, note in OPENERS]],
            layout=w.Layout(width="130px", flex="0 0 auto"),
            tooltip="sentences to start from",
        )
        openers.observe(lambda change: change["new"] and setattr(self.text, "value", change["new"]), "value")
        line = w.HBox([self.text, openers] if live else [], layout=w.Layout(width="100%"))
        main = w.VBox([self.position, self.k, self.p, self.temperature])
        more = w.VBox([self.margin, self.min_p, self.n_sigma])
        grid = w.GridBox(
            [main, more],
            layout=w.Layout(grid_template_columns="repeat(auto-fit, minmax(min(100%, 400px), 1fr))", grid_gap="0 18px"),
        )
        rest = [self.order, self.logits_dtype, self.layer, self.scale, self.backend]
        choices = w.HBox(rest, layout=w.Layout(flex_flow="row wrap", width="100%"))
        buttons = w.HBox(
            [self.sample_button, self.append_button, self.skip_unused], layout=w.Layout(flex_flow="row wrap")
        )
        self.skip_unused.layout.display = "" if known else "none"
        self.arrange(line, self.strip, grid, choices, buttons)

    def _connect(self) -> None:
        sliders = [self.k, self.p, self.temperature, self.position, self.min_p, self.n_sigma, self.margin]
        others = [self.order, self.logits_dtype, self.scale, self.backend, self.skip_unused]
        for control in [*sliders, *others]:
            control.observe(lambda _: self._redraw(), "value")
        for slider in sliders:
            slider.observe(lambda change: change["new"] and self.show_error(change["new"]), "error")
        self.text.observe(lambda _: self._capture(), "value")
        self.layer.observe(lambda _: self._capture(), "value")
        self.strip.observe(self._pick, "picked")
        self.sample_button.on_click(lambda _: self._ask_sample())
        self.append_button.on_click(lambda _: self.submit("capture", self._append))

    # --- jobs: everything below _redraw and _capture runs on the worker -------------------------------------------------

    def _redraw(self) -> None:
        self.submit("draw", self._draw)

    def _capture(self) -> None:
        self.submit("capture", self._run_capture)

    def _ask_sample(self) -> None:
        with self._lock:
            self._draws_asked += 1
        self._redraw()

    def _pick(self, change) -> None:
        row = self._rows.row_of_token(self.position.value, change["new"][0]) if self._rows else None
        if row is not None:
            self.position.value = row

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
            self._facts[key] = RowFacts(row.cpu(), unused, mantissa_bits(row))
            while len(self._facts) > ROWS_AT_HAND:
                self._facts.popitem(last=False)
        self._facts.move_to_end(key)
        return self._facts[key]

    def submit_warm(self) -> None:
        """Ask for the neighbours of the shown row, nearest first, one a job, so that a slider never waits for more than one."""
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
        self.summary = self._sentence(view)
        self._caption_view.value = f"<div class='qp-caption'>{figures.html.escape(self._caption)}</div>"
        if fresh:
            self._show_text(position)

    def _show_text(self, position: int) -> None:
        tokens, here, _ = self._rows.text(position)
        rows = [self._rows.row_of_token(position, t) for t in range(len(tokens))]
        with self.strip.hold_sync():
            self.strip.tokens, self.strip.here = tokens, here
            self.strip.readable = [t for t, row in enumerate(rows) if row is not None]

    def _sentence(self, view: LogitView) -> str:
        greedy = view.temperature == 0
        k = "k off" if view.k in (0,) else f"k = {view.k:,}"
        p = "p off" if view.p >= 1 else f"p = {view.p:g}"
        rule = "T = 0 (greedy)" if greedy else f"{k}, {p}, T = {view.temperature:g}"
        seen = (
            f"{rule}: {view.kept:,} of {self._rows.vocab_size:,} tokens kept, {figures.percent(view.mass)} of the mass"
        )
        caught = "hit" if view.hit else "miss"
        seen += f" · threshold t lets {view.candidates:,} candidates through ({caught})"
        if self._last_token is not None:
            seen += f" · drawn: {self._rows.label([self._last_token])[0]!r}"
        *_, true_id = self._rows.text(self.position.value)
        if true_id >= 0:
            rank = int(np.flatnonzero(view.facts.order == true_id)[0]) + 1 if true_id in view.facts.order else None
            fate = "not eligible" if rank is None else f"rank {rank:,}, {'kept' if rank <= view.kept else 'dropped'}"
            seen += f" · the text goes on with {self._rows.label([true_id])[0]!r} ({fate})"
        return seen

    def _describe(self) -> str:
        choice_made = backends.resolve(self._view.facts.row, self.backend.value)
        return f"{self._rows.caption} · {choice_made.name} back-end ({choice_made.reason})"

    # --- what a user takes away ----------------------------------------------------------------------------------------

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


def mantissa_bits(row: torch.Tensor) -> int:
    """23, 10 or 7: the coarsest float type that holds every value of the row."""
    for dtype, bits in ((torch.bfloat16, 7), (torch.float16, 10)):
        if torch.equal(torch.nan_to_num(row.to(dtype).float()), torch.nan_to_num(row)):
            return bits
    return 23


def paint(figure: go.Figure, view: LogitView, drawn: dict[int, int], log: bool, fresh: bool) -> None:
    """Write a view into a figure; the parts that only a new row changes only when `fresh`."""
    bars, ticks = figures.bar_traces(view, drawn, log)
    changed = {**figures.cut_traces(view), **bars}
    if fresh:
        changed |= figures.histogram_traces(view.facts)
    with figure.batch_update():
        for trace in figure.data:
            if trace.name in changed:
                trace.update(changed[trace.name])
        figure.layout.yaxis.update(ticks)
        for note, text in zip(figure.layout.annotations, figures.headings(view), strict=True):
            note.text = text
        for path, value in figures.logit_axes(view, log).items():
            figure.layout[path] = value


def add_slider(figure: go.Figure, names: list[str], views: list[LogitView], log: bool) -> None:
    """Give a plain figure a slider over `views`: each step restyles the traces."""
    order = [trace.name for trace in figure.data]
    steps = []
    for name, view in zip(names, views, strict=True):
        bars, ticks = figures.bar_traces(view, {}, log)
        changed = {**figures.cut_traces(view), **bars}
        traces = [i for i, trace in enumerate(order) if trace in changed]
        keys = sorted({key for trace in changed.values() for key in trace})
        restyle = {
            key: [changed[order[i]].get(key, figure.data[i][key] if key in figure.data[i] else None) for i in traces]
            for key in keys
        }
        relayout = {f"yaxis.{key}": value for key, value in ticks.items()}
        steps.append({"method": "update", "label": name, "args": [restyle, relayout, traces]})
    figure.update_layout(sliders=[{"active": 0, "steps": steps, "pad": {"t": 60}, "currentvalue": {"prefix": ""}}])
