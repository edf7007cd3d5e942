"""SearchExplorer: how a pivot search finds the cut of one row, step by step, and which of equal entries it keeps."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace

from qp_kernels.qrita.trace import SearchStep
from widgets.controls import k_grid
from widgets.painting import Properties
from widgets.panels.facts import FactsPanel
from widgets.panels.search_controls import SearchControls
from widgets.search_figure import search_figure, search_properties
from widgets.search_view import SearchView, sentence, trace_both
from widgets.sources import Rows

TRACES_AT_HAND = 16


class SearchExplorer(FactsPanel):
    """See the quaternary pivot search find the cut of top-k and top-p on one row, beside the binary one.

    Above, one step: how many entries (for p, how much mass) stand at or above each logit of the interval, the pivots,
    what is asked for, and where the search goes on. Below, the entries equal to the cut in index order: which stay and
    which go. Right, both searches: what each step still has to search, and the bytes that were read.

    Args:
        source: A live `LanguageModel` (then the panel has a text box), a `LogitCapture`, logits [V] or [R, V] as tensor
            or array, or the path of a `.safetensors`, `.npy` or `.npz` file.
        k: Tokens kept; 0, or V and more, is off. p: Probability mass kept of those, 1 is off.
        position: Row shown first; negative counts from the end.
        search: "quaternary" or "binary", whose steps are seen. space: "value" or "bits", what pivots divide evenly.
        step: Step seen first, from 1. logits_dtype: "float32", or "model" for the type of the model's own head.
        backend: As in the other panels; the steps are always traced in plain torch.
        text: First text of a live model.
    Raises:
        TypeError, ValueError: a source or number that can't be used, and what is accepted.

    Drive it by code: `panel.step.value = 2; panel.wait(); panel.to_frame()`. Controls: k, p, step, search, space,
    position, logits_dtype, and on a live model text and layer.
    """

    sliders = ("step", "k", "p")

    def __init__(
        self,
        source,
        *,
        k=50,
        p=0.9,
        position=-1,
        search="quaternary",
        space="value",
        step=1,
        logits_dtype="float32",
        backend="auto",
        text=None,
    ):
        self._traces: OrderedDict[tuple, dict[str, list[SearchStep]]] = OrderedDict()
        self._position = 0  # of the view
        for name, value, known in (
            ("search", search, ("quaternary", "binary")),
            ("space", space, ("value", "bits")),
            ("logits_dtype", logits_dtype, ("float32", "model")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            raise ValueError(f"step must be a whole number from 1, got {step!r}")
        self._first_step = step
        more = {"k": k, "p": p, "search": search, "space": space, "logits_dtype": logits_dtype}
        kinds = ("capture", "draw", "warm")
        super().__init__(source, search_figure(), kinds, position=position, backend=backend, text=text, **more)

    def _new_controls(self, vocab: int, n_layers: int) -> SearchControls:
        return SearchControls(vocab, n_layers)

    def _connect(self) -> None:
        super()._connect()
        self.back_button.on_click(lambda _: self._go(-1))
        self.next_button.on_click(lambda _: self._go(1))

    def _go(self, steps: int) -> None:
        self.step.value = min(max(self.step.value + steps, 1), self.step.grid[-1])

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _use_rows(self, rows: Rows, position: int) -> None:
        super()._use_rows(rows, position)
        self._traces.clear()
        self.k.set_grid(k_grid(rows.vocab_size))

    def _draw(self, job) -> None:
        if self._rows is None:
            return
        start = time.perf_counter()
        position = self.position.value
        view = self._look(position, self.k.value, self.p.value)
        first, self._first_step = self._first_step, None
        self.step.set_grid(list(range(1, len(view.steps) + 1)))
        if first is not None:
            self.step.value = min(first, len(view.steps))
        view = replace(view, step=self.step.value)
        self._view, self._position = view, position
        with self._lock:
            self._painter.paint(search_properties(view, self._rows.label))
        self._show_text(position)
        self.summary = sentence(view)
        self._show_caption(view.facts.row, "steps traced for teaching", backend="torch")
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        self._submit_warm()

    def _look(self, position: int, k: int, p: float) -> SearchView:
        # Once each: a control may change while the job runs, and what it makes is kept under these names.
        row_key, space = self._key(position), self.space.value
        facts, key, dtype = self._facts_at(row_key), (*row_key, k, p, space), row_key[1]
        if key not in self._traces:
            row = facts.row.to(self._rows.dtype(dtype))  # exact: these were its values
            self._traces[key] = trace_both(row, k, p, space)
            while len(self._traces) > TRACES_AT_HAND:
                self._traces.popitem(last=False)
        return SearchView(facts, k, p, space, self.search.value, self._traces[key], 1, dtype)

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        view = self._need_view()
        if name == "step":
            views = [replace(view, step=step) for step in values]
        else:
            limits = [{"k": view.k, "p": view.p, name: value} for value in values]
            views = [self._look(self._position, **limit) for limit in limits]
            views = [replace(now, step=min(view.step, len(now.steps))) for now in views]
        return [(search_properties(view, self._rows.label), sentence(view)) for view in views]

    def _slider_grid(self, name: str) -> list:
        grid = super()._slider_grid(name)
        if name == "k" and self.p.value == 1:
            return [k for k in grid if 0 < k < self._rows.vocab_size]  # both off is no search
        return [p for p in grid if p < 1] if name == "p" and self.k.value == 0 else grid

    def to_frame(self):
        """A pandas frame with every step of both searches, as `trace_search` lists them."""
        import pandas as pd

        view = self._need_view()
        return pd.DataFrame(
            [{"search": search, **step._asdict()} for search, steps in view.traces.items() for step in steps]
        )

    def code(self) -> str:
        view = self._need_view()
        dtype = self._rows.dtype(view.dtype)
        narrow = f".to({dtype})" if dtype.itemsize == 2 else ""
        limits = f"k={view.k or None}, p={view.p if view.p < 1 else None}"
        return "\n".join(
            [
                *(["import torch"] if narrow else []),
                "from qp_kernels.qrita import trace_search",
                *self._rows.code(self._position, view.dtype),
                f"steps = trace_search(logits{narrow}, {limits}, search={view.search!r}, space={view.space!r})",
            ]
        )

    def release(self) -> None:
        super().release()
        self._traces.clear()
