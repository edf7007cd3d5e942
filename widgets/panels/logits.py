"""LogitExplorer: which tokens survive k, p and T, seen on the distribution of a real model's logits."""

from __future__ import annotations

import time

import numpy as np
import torch

from widgets import figures
from widgets.controls import k_grid
from widgets.draws import Draws
from widgets.logit_view import LogitView, RowFacts, fate, look, sentence
from widgets.painting import Properties
from widgets.panels.facts import FactsPanel
from widgets.panels.logit_controls import LogitControls
from widgets.sources import Rows


class LogitExplorer(FactsPanel):
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

    sliders = ("k", "p", "temperature")

    def __init__(self, source, *, k=50, p=0.9, temperature=1.0, position=-1, backend="auto", text=None):
        self._draws = Draws()
        self._draws_asked = 0
        self._written: tuple[str, torch.Tensor] | None = None  # a text that Append made, and its ids
        self._position = 0  # of the view
        kinds = ("capture", "append", "draw", "warm")
        more = {"k": k, "p": p, "temperature": temperature}
        super().__init__(source, figures.logit_figure(), kinds, position=position, backend=backend, text=text, **more)

    def _new_controls(self, vocab: int, n_layers: int) -> LogitControls:
        return LogitControls(vocab, n_layers)

    def _connect(self) -> None:
        super()._connect()
        self.sample_button.on_click(lambda _: self._ask_sample())
        if self._model is not None:
            self.append_button.on_click(lambda _: self.submit("append", self._append))

    def _ask_sample(self) -> None:
        if self._view is not None:
            with self._lock:
                self._draws_asked += 1
            self._redraw()

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _ids_of(self, text: str):
        return self._written[1] if self._written and self._written[0] == text else text

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
        super()._use_rows(rows, position)
        with self._lock:
            self._draws_asked = 0
        self._draws = Draws()
        self.k.set_grid(k_grid(rows.vocab_size))
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
        self._submit_warm()

    def _leaves_unused_out(self) -> bool:
        return self.skip_unused.value

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
        self._view, self._position = view, position
        with self._lock:
            self._painter.paint(self._properties(view, self._draws.counts))
        self._show_text(position)
        self.summary = self._summarise(view)
        self._show_caption(view.facts.row)

    def _properties(self, view: LogitView, drawn: dict[int, int]) -> Properties:
        return figures.logit_properties(view, drawn, self.scale.value == "log")

    def _summarise(self, view: LogitView) -> str:
        parts = [sentence(view)]
        if self._draws.last is not None:
            parts.append(f"drawn: {self._rows.label([self._draws.last])[0]!r}")
        follows = self._text.next_id
        if follows >= 0:
            parts.append(f"the text goes on with {self._rows.label([follows])[0]!r} ({fate(view, follows)})")
        return " · ".join(parts)

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

    def _slider_grid(self, name: str) -> list:
        return [x for x in super()._slider_grid(name) if name != "temperature" or x > 0]

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        view = self._need_view()
        setting = {"k": view.k, "p": view.p, "temperature": view.temperature, "order": view.order}
        setting |= {"margin": self.margin.value, "min_p": self.min_p.value, "n_sigma": self.n_sigma.value}
        setting["backend"] = self.backend.value
        views = [look(view.facts, self._rows.label, **{**setting, name: value}) for value in values]
        return [(self._properties(view, {}), sentence(view)) for view in views]
