"""OverlapExplorer: do neighbouring queries of an indexer want the same keys?"""

from __future__ import annotations

from collections.abc import Iterator

from widgets import overlap_view
from widgets.overlap_figure import overlap_figure, overlap_properties
from widgets.overlap_measures import Chosen
from widgets.overlap_view import LayerNumbers, OverlapView, Setting, sentence
from widgets.painting import Properties
from widgets.panels.index_controls import IndexControls
from widgets.panels.index_panel import IndexPanel, rows_code
from widgets.ranked_windows import Key

INLINE_ENTRIES = 1 << 22  # ranks of other layers that are compared within a redraw
TABLES = ("queries", "distance", "groups", "layers")


class OverlapExplorer(IndexPanel):
    """See whether neighbouring queries want the same keys, which is what lets a group of g share one scan.

    Above, the keys that each two queries of a window share, as a map with the groups of g as squares; overlap against
    distance, beside what chance alone would share; the keys that a group wants together (union) and that all its
    members want (joint) over g, both in k. Several layers stand side by side in one more part. Below, where the keys of
    one query are, and which of them its neighbour wants too; with tokens also marked in the text.

    A window is 64 queries: those of the block that holds the open query. It is ranked once; k and g need no scan.

    Args:
        source: A live `LanguageModel` (then the panel has a text box, and shows up to eight layers, see `LiveIndex`),
            an `IndexCapture`, a list or dict of them (layers), a `.safetensors` capture, an `.npz` file with q, k and
            w, or tensors (q [T, H, D], k [N, D], w [T, H]), whose queries are the last of the keys.
        k: Keys a query, at least 1; N and more is all. None: N / 16, at most 2,048.
        g: Queries a group, 1 to 64. query: The open one; negative counts from the end.
        layer: Name of the open layer; None is the first. A list names its layers by meta["layer"].
        backend: "auto", "triton" or "torch": what makes the scores. text: First text of a live model.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.k.value = 512; panel.wait(); panel.to_frame()`. Controls: k, g, query, place, layer,
    backend, and on a live model text.
    """

    sliders = ("k", "g", "query")
    clickable = {"map": "query", "layers": "layer", "shared": "place", "new": "place"}

    def __init__(self, source, *, k=None, g=4, query=-1, layer=None, backend="auto", text=None):
        self._numbers: dict[tuple, LayerNumbers] = {}  # by key, k and g
        self._chosen: Chosen | None = None  # of the open window, at the last k
        super().__init__(source, k=k, g=g, query=query, layer=layer, backend=backend, text=text)

    def _empty_figure(self, names: list[str]):
        return overlap_figure(names)

    def _new_controls(self, names: list[str]) -> IndexControls:
        return IndexControls(names)

    def _forget(self) -> None:
        super()._forget()
        self._numbers.clear()
        self._chosen = None

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _setting(self) -> Setting:
        return Setting(**self._common())

    def _missing(self, at: Setting) -> list[str]:
        """Layers whose numbers are not known at this k and g, the open one first."""
        unread = [at.layer] if self._key(at) not in self._ranked else []
        if self._stopped:
            return unread
        others = [name for name in self._layers if name != at.layer]
        return unread + [name for name in others if (self._key(at, name), at.k, at.g) not in self._numbers]

    def _fill(self, task: str, at: Setting, job) -> Iterator[None]:
        """Rank a layer's window, and take its numbers."""
        key = self._key(at, task)
        if key not in self._ranked:
            yield from self._rank(key, job)
        if key in self._ranked:  # else another window was asked for meanwhile
            self._number(key, at)

    def _tell(self, job, left: int) -> None:
        total = len(self._layers)
        job.progress(total - left, total, "reading layers" if total > 1 or not left else "scoring keys")

    def _number(self, key: Key, at: Setting) -> LayerNumbers:
        """The numbers of a ranked window at the k and g of a setting."""
        if (known := self._numbers.get((key, at.k, at.g))) is None:
            if len(self._numbers) > 100_000:
                self._numbers.clear()
            self._numbers[key, at.k, at.g] = known = LayerNumbers.of(self._choose(key, at), at.g)
        return known

    def _choose(self, key: Key, at: Setting) -> Chosen:
        """The window's selections; those of the open one are kept, since g and query move without them."""
        ranked = self._ranked[key]
        if self._chosen is not None and self._chosen.ranked is ranked and self._chosen.k == at.k:
            return self._chosen
        chosen = Chosen.at(ranked, at.k)
        if key == self._key(at):
            self._chosen = chosen
        return chosen

    def _look(self, at: Setting) -> OverlapView:
        chosen = self._choose(self._key(at), at)
        layer = self._layers[at.layer]
        return OverlapView(layer, at.query, at.place, chosen, at.g, self._side_by_side(at))

    def _side_by_side(self, at: Setting) -> dict[str, LayerNumbers]:
        """The numbers of every layer, as far as they are known or come quickly."""
        left, out = INLINE_ENTRIES, {}
        for name in self._layers:
            key = self._key(at, name)
            if (key, at.k, at.g) not in self._numbers and key in self._ranked:
                left -= self._ranked[key].rank.size
                if left >= 0 or name == at.layer:
                    self._number(key, at)
            out[name] = self._numbers.get((key, at.k, at.g), LayerNumbers())
        return out

    def _paint_view(self, view: OverlapView) -> None:
        with self._lock:
            self._painter.paint(overlap_properties(view))
        kept, new = view.keys()
        self._mark_text(view, overlap_view.legend(view) if view.layer.has_text else "", kept=kept, new=new)
        self.summary = sentence(view)

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        self._need_view()
        views = [self._look(self._shown._replace(**{name: value})) for value in values]
        return [(overlap_properties(one), sentence(one)) for one in views]

    def to_frame(self, table: str = "queries"):
        """A pandas frame of what is seen.

        Args:
            table: "queries" (the window's, with their overlap with the one before and with the open one), "distance"
                (overlap over distance), "groups" (union and joint over g) or "layers" (each layer's numbers).
        """
        import pandas as pd

        if table not in TABLES:
            raise ValueError(f"table must be one of {', '.join(map(repr, TABLES))}, got {table!r}")
        return pd.DataFrame(overlap_view.frames(self._need_view())[table])

    def code(self) -> str:
        view = self._need_view()
        part = rows_code(view)
        bounds = f"lo=lo{part}, hi=hi{part}, backend={self._shown.backend!r}"
        return "\n".join(
            [
                "from qp_kernels import index_metrics",
                "from qp_kernels.pivot import dense_topk",
                *view.layer.code,
                f"indices = dense_topk(q{part}, k, w{part}, {view.chosen.k}, {bounds})",
                *overlap_view.comparing(view),
            ]
        )
