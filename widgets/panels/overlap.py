"""OverlapExplorer: do neighbouring queries of an indexer want the same keys?"""

from __future__ import annotations

import functools
import time

from qp_kernels import backend as backends
from widgets import overlap_view
from widgets.index_source import Layer, open_layers
from widgets.overlap_figure import overlap_figure, overlap_properties
from widgets.overlap_measures import Chosen
from widgets.overlap_view import LayerNumbers, OverlapView, Setting, sentence
from widgets.painting import Properties
from widgets.panels.controlled import ControlledPanel
from widgets.panels.overlap_controls import OverlapControls, usual_k
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.panels.rows import whole_number
from widgets.ranked_windows import Key, RankedWindows

INLINE_ENTRIES = 1 << 22  # ranks of other layers that are compared within a redraw
REPAINT_S = 0.3  # while other layers are read
TABLES = ("queries", "distance", "groups", "layers")


class OverlapExplorer(ControlledPanel):
    """See whether neighbouring queries want the same keys, which is what lets a group of g share one scan.

    Above, the keys that each two queries of a window share, as a map with the groups of g as squares; overlap against
    distance, beside what chance alone would share; the keys that a group wants together (union) and that all its
    members want (joint) over g, both in k. Several layers stand side by side in one more part. Below, where the keys of
    one query are, and which of them its neighbour wants too; with tokens also marked in the text.

    A window is 64 queries: those of the block that holds the open query. It is ranked once; k and g need no scan.

    Args:
        source: An `IndexCapture`, a list or dict of them (layers), a `.safetensors` capture, an `.npz` file with q, k
            and w, or tensors (q [T, H, D], k [N, D], w [T, H]), whose queries are the last of the keys.
        k: Keys a query, at least 1; N and more is all. None: N / 16, at most 2,048.
        g: Queries a group, 1 to 64. query: The open one; negative counts from the end.
        layer: Name of the open layer; None is the first. A list names its layers by meta["layer"].
        backend: "auto", "triton" or "torch": what makes the scores.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.k.value = 512; panel.wait(); panel.to_frame()`. Controls: k, g, query, place, layer,
    backend.
    """

    sliders = ("k", "g", "query")

    def __init__(self, source, *, k=None, g=4, query=-1, layer=None, backend="auto"):
        self._layers: dict[str, Layer] = {one.name: one for one in open_layers(source)}
        name = next(iter(self._layers)) if layer is None else str(layer)
        if name not in self._layers:
            raise ValueError(f"layer must be one of {', '.join(map(repr, self._layers))}, got {layer!r}")
        count, query = len(self._layers[name].capture), whole_number("query", query)
        if not -count <= query < count:
            raise ValueError(f"query must be from {-count} to {count - 1}, got {query}")
        for one in self._layers.values():
            backends.resolve(one.capture.q, backend)
        self._ranked = RankedWindows(self._layers)
        self._numbers: dict[tuple, LayerNumbers] = {}  # by key, k and g
        self._chosen: Chosen | None = None  # of the open window, at the last k
        self._stopped = False  # Cancel holds until another layer or window is opened
        self._opened: Key | None = None
        self._shown: Setting | None = None  # what is drawn
        self._placed = False  # the text starts where the first query has most of its keys
        super().__init__(overlap_figure(list(self._layers)), ("draw", "scan"))
        try:
            self._start(name, k, g, query % count, backend)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._redraw()

    def _start(self, name: str, k, g, query: int, backend: str) -> None:
        layers = list(self._layers.values())
        self._adopt(OverlapControls(layers))
        most = self.k.grid[-1]
        self.k.value = usual_k(len(self._layers[name].capture.k)) if k is None else min(k, most) if _whole(k) else k
        self.g.value, self.layer.value, self.backend.value = g, name, backend
        self._fit_to(self._layers[name])
        self.query.value = query
        self.arrange(*self._controls.arrange(several=len(layers) > 1))
        *above, caption = self.children
        below = self._controls.below(with_text=any(layer.has_text for layer in layers))
        self.children = [*above, *below, caption]

    def _connect(self) -> None:
        super()._connect()
        self.strip.observe(self._pick, "picked")
        self.scan_button.on_click(lambda _: self._scan_on())
        for trace in self.figure.data:
            if trace.name in ("map", "shared", "new", "layers"):
                trace.on_click(self._on_click)

    def _on_click(self, trace, points, state) -> None:
        if not points.xs:
            return
        if trace.name == "map":
            self.query.value = int(points.xs[0])
        elif trace.name == "layers":
            self.layer.value = list(self._layers)[int(points.ys[0])]
        else:
            self.place.value = int(points.xs[0])

    def _pick(self, change) -> None:
        view, token = self._view, change["new"][0]
        if view is not None and token >= 0:
            rows = (view.layer.capture.positions == view.stretch()[token]).nonzero()
            if len(rows):
                self.query.value = int(rows[0])

    def _scan_on(self) -> None:
        self._stopped = False
        self.submit("scan", self._scan)

    def cancel(self) -> None:
        self._stopped = True
        super().cancel()

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _fit_to(self, layer: Layer) -> None:
        """Bound query and place by what the layer has."""
        for control, count in ((self.query, len(layer.capture)), (self.place, len(layer.capture.k))):
            if len(control.grid) != count:
                control.set_grid(list(range(count)))

    def _setting(self) -> Setting:
        """What is asked for now; a query beyond those of the layer is its last one."""
        layer = self.layer.value
        count, n_keys = len(self._layers[layer].capture), len(self._layers[layer].capture.k)
        query, place = min(self.query.value, count - 1), min(self.place.value, n_keys - 1)
        return Setting(layer, query, self.k.value, self.g.value, place, self.backend.value)

    def _key(self, at: Setting, layer: str | None = None) -> Key:
        """The window that is open, or the one of another layer beside it."""
        return self._ranked.key(layer or at.layer, at.query, at.backend)

    def _draw(self, job) -> None:
        start = time.perf_counter()
        self._fit_to(self._layers[self.layer.value])
        at = self._setting()
        key = self._key(at)
        if key != self._opened:
            self._opened, self._stopped = key, False
        if key in self._ranked:
            self._paint(at)
            self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        if self._missing(at) and "scan" not in self._busy:
            self.submit("scan", self._scan)

    def _missing(self, at: Setting) -> list[str]:
        """Layers whose numbers are not known at this k and g, the open one first."""
        unread = [at.layer] if self._key(at) not in self._ranked else []
        if self._stopped:
            return unread
        others = [name for name in self._layers if name != at.layer]
        return unread + [name for name in others if (self._key(at, name), at.k, at.g) not in self._numbers]

    def _scan(self, job):
        """Rank what is not ranked, and compare layers; what is known so far is painted now and then."""
        painted, total = time.monotonic(), len(self._layers)
        while missing := self._missing(at := self._setting()):
            name, key = missing[0], self._key(at, missing[0])
            job.progress(total - len(missing), total, "reading layers" if total > 1 else "scoring keys")
            if key not in self._ranked:
                yield from self._ranked.rank(key, job, functools.partial(self._is_wanted, key))
            if key in self._ranked:  # else another window was asked for meanwhile
                self._number(key, at)
            at = self._setting()
            if self._key(at) in self._ranked and (name == at.layer or time.monotonic() > painted + REPAINT_S):
                self._paint(at)
                painted = time.monotonic()
            yield
        if self._key(at) in self._ranked:
            self._paint(at)
        job.progress(total, total, "reading layers")  # raises when the rest was cancelled

    def _is_wanted(self, key: Key) -> bool:
        return self._key(self._setting(), key.layer) == key

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
        return OverlapView(self._layers[at.layer], chosen, at.g, at.query, at.place, self._side_by_side(at))

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

    def _paint(self, at: Setting) -> None:
        if not self._placed:
            key, self._placed = self._key(at), True
            place = overlap_view.busiest(self._choose(key, at).keys(at.query - key.first), self.place.limit + 1)
            self.place.value, at = place, at._replace(place=place)
        self._view, self._shown = self._look(at), at
        view = self._view
        with self._lock:
            self._painter.paint(overlap_properties(view))
        self._show_text(view)
        self.summary = sentence(view)
        capture = view.layer.capture
        used = backends.resolve(capture.q, at.backend).name
        window = f"queries {view.rows[0]:,} to {view.rows[-1]:,} of {len(capture):,}"
        self._say_caption(f"{view.layer.caption} · {window} · {len(capture.k):,} keys · {used} back-end")
        self.scan_button.layout.display = SHOWN if self._stopped and len(self._layers) > 1 else HIDDEN

    def _show_text(self, view: OverlapView) -> None:
        """Mark the keys of the open query in the text around `place`."""
        if not view.layer.has_text:
            self.strip.tokens, self.legend.value = [], ""
            return
        capture, shown = view.layer.capture, view.stretch()
        places = (*view.keys(), view.chosen.ranked.positions)
        kept, new, queries = ((p[(p >= shown.start) & (p < shown.stop)] - shown.start).tolist() for p in places)
        self.legend.value = overlap_view.legend(view)
        with self.strip.hold_sync():
            self.strip.tokens = capture.tokens[shown.start : shown.stop]
            self.strip.here = view.position - shown.start if view.position in shown else -1
            self.strip.readable, self.strip.kept, self.strip.new = queries, kept, new

    def _slider_grid(self, name: str) -> list:
        return list(self._need_view().rows) if name == "query" else super()._slider_grid(name)

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
        rows, whole = view.rows, len(view.rows) == len(view.layer.capture)
        part = "" if whole else f"[{rows.start}:{rows.stop}]"
        bounds = f"lo=lo{part}, hi=hi{part}, backend={self._shown.backend!r}"
        return "\n".join(
            [
                "from qp_kernels import index_metrics",
                "from qp_kernels.pivot import dense_topk",
                *view.layer.code,
                f"indices = dense_topk(q{part}, k, w{part}, {view.chosen.k}, {bounds})",
                "adjacent = index_metrics.overlap(indices[:-1], indices[1:]).mean()",
                f"joint, union = (part.mean() for part in index_metrics.joint_and_union(indices, {view.g}))",
            ]
        )

    def release(self) -> None:
        super().release()
        self._layers = {}
        self._ranked.clear()
        self._numbers.clear()
        self._chosen = None


def _whole(k) -> bool:
    return isinstance(k, int) and not isinstance(k, bool)
