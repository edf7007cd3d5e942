"""IndexerExplorer: how does one query choose its keys?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from widgets.index_source import Layer
from widgets.indexer_figure import indexer_figure, indexer_properties
from widgets.indexer_view import IndexerView, Scored, Setting, frame, legend, sentence
from widgets.painting import Properties
from widgets.panels.index_panel import IndexPanel
from widgets.panels.indexer_controls import IndexerControls
from widgets.panels.rows import whole_number
from widgets.ranked_windows import Key

SCORED_AT_HAND = 64  # queries whose products are kept


class IndexerExplorer(IndexPanel):
    """See how a lightning indexer chooses the keys of one query: products, ReLU, weights, their sum, top-k, attention.

    Four parts with one column a key: the product of the query with the key, for every head; what ReLU and the head's
    weight leave of it; the sum over heads, which is the key's score, with the k best kept; and what the layer's own
    attention gives each key, hence what is lost where it sees the kept ones alone.

    Args:
        source: A live `LanguageModel` (then the panel has a text box, and shows up to eight layers, see `LiveIndex`),
            an `IndexCapture`, a list or dict of them (layers), a `.safetensors` capture, an `.npz` file with q, k and
            w, or tensors (q [T, H, D], k [N, D], w [T, H]), whose queries are the last of the keys.
        k: Keys selected, at least 1; N and more is all.
        query: The open one; negative counts from the end. layer: Name of the open layer; None is the middle one.
        text: First text of a live model. backend: "auto", "triton" or "torch": what orders the keys.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.k.value = 8; panel.wait(); panel.to_frame()`. Controls: k, query, place, layer, backend,
    and on a live model text.
    """

    sliders = ("k", "query")
    with_mass = True

    def __init__(self, source, *, k=4, query=-1, layer=None, text=None, backend="auto"):
        self._scored: OrderedDict[tuple[Key, int], Scored] = OrderedDict()
        if (k := whole_number("k", k)) < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        super().__init__(source, query=query, layer=layer, backend=backend, text=text, k=k)

    def _empty_figure(self, names: list[str]):
        return indexer_figure()

    def _new_controls(self, names: list[str]) -> IndexerControls:
        return IndexerControls(names)

    def _use_layers(self, opened: list[Layer], *, layer=None, query=None) -> None:
        if layer is None and not self._layers:
            layer = opened[len(opened) // 2].name
        super()._use_layers(opened, layer=layer, query=query)
        capture = self._layers[self.layer.value].capture
        self.place.value, self._placed = int(capture.positions[self.query.value]), True
        self._controls.fit(len(capture.k))

    def _forget(self) -> None:
        super()._forget()
        self._scored.clear()

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _setting(self) -> Setting:
        common = self._common()
        return Setting(**{name: common[name] for name in Setting._fields})

    def _missing(self, at: Setting) -> list[Key]:
        key = self._key(at)
        return [] if key in self._ranked else [key]

    def _fill(self, task: Key, at: Setting, job) -> Iterator[None]:
        yield from self._rank(task, job)

    def _tell(self, job, left: int) -> None:
        job.progress(0, 0, "scoring keys")

    def _has_more(self) -> bool:
        return False

    def _look(self, at: Setting) -> IndexerView:
        layer, window = self._layers[at.layer], self._key(at)
        ranked, key = self._ranked[window], (window, at.query)
        if key not in self._scored:
            self._scored[key] = Scored.of(layer.capture, at.query, ranked.scores[at.query - window.first])
            while len(self._scored) > SCORED_AT_HAND:
                self._scored.popitem(last=False)
        return IndexerView(layer, at.query, at.place, ranked, self._scored[key], at.k)

    def _paint_view(self, view: IndexerView) -> None:
        with self._lock:
            self._painter.paint(indexer_properties(view))
        self._mark_text(view, legend(view) if view.layer.has_text else "", kept=view.kept.nonzero()[0])
        self.summary = sentence(view)

    def _slider_grid(self, name: str) -> list:
        grid = super()._slider_grid(name)
        return [k for k in grid if k <= self._need_view().count] or grid[:1] if name == "k" else grid

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        self._need_view()
        views = [self._look(self._shown._replace(**{name: value})) for value in values]
        return [(indexer_properties(one), sentence(one)) for one in views]

    def to_frame(self):
        """A pandas frame with a row for each key that the query may select: products, score, rank, kept, attention."""
        import pandas as pd

        return pd.DataFrame(frame(self._need_view()))

    def code(self) -> str:
        view, part = self._need_view(), f"{self._shown.query}:{self._shown.query + 1}"
        bounds = f"lo=lo[{part}], hi=hi[{part}], backend={self._shown.backend!r}"
        return "\n".join(
            [
                "from qp_kernels.pivot import dense_topk",
                *view.layer.code,
                f"products = q[{view.query}].float() @ k.float().T  # [H, N]",
                f"scores = w[{view.query}].float() @ products.relu()  # [N]",
                f"indices = dense_topk(q[{part}], k, w[{part}], {view.k}, {bounds})",
            ]
        )
