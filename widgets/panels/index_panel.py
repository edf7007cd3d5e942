"""What every panel on an indexer shares: layers, their ranked windows, the scan that fills in, the text, clicks."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go

from qp_kernels import backend as backends
from widgets import index_view
from widgets.controls import k_grid
from widgets.index_live import LiveIndex
from widgets.index_source import Layer, open_layers
from widgets.index_view import IndexView
from widgets.panels.controlled import ControlledPanel
from widgets.panels.index_controls import IndexControls, usual_k
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.panels.rows import whole_number
from widgets.ranked_windows import Key, RankedWindows
from widgets.sources import is_live

REPAINT_S = 0.3  # while a scan fills in what is not seen first
REST_S = 0.15  # between a paint and the next one that only fills in: a browser draws the first one meanwhile


class IndexPanel(ControlledPanel):
    """A panel on the queries and keys of one or more layers.

    Subclasses give figure, controls, `_setting`, `_look`, `_paint_view`, and what a scan does: `_missing` lists what
    is left at a setting, most urgent first, and `_fill` does one of it in steps.

    Args:
        source: What `open_layers` takes, or a live `LanguageModel`, whose text is read by a job.
        query: The open one; negative counts from the end. layer: Name of the open layer; None is the first.
        backend: "auto", "triton" or "torch". text: First text of a live model; None is an example.
        start: Start values of the subclass's own controls, for `_start`.
    """

    kinds: tuple[str, ...] = ("draw", "scan")
    clickable: dict[str, str] = {}  # trace name -> the control that a click on it sets
    with_mass = False  # whether a live model is asked for the attention's mass

    def __init__(self, source, *, query, layer, backend, text=None, **start):
        self._live = LiveIndex(source, layer) if is_live(source) else None
        if text is not None and self._live is None:
            raise ValueError("text needs a live model: pass the result of activations.load as source")
        opened = self._live.unread() if self._live else open_layers(source)
        self._is_read = self._live is None  # whether the layers are those of a text
        self._first_query, self._k_follows = whole_number("query", query), start.get("k") is None
        self._layers: dict[str, Layer] = {}
        self._ranked = RankedWindows(self._layers)
        self._stopped = False  # Cancel holds until another layer or window is opened
        self._scanning, self._scan_began, self._painted = False, 0.0, 0.0
        self._opened: Key | None = None
        self._shown = None  # the setting that is drawn
        self._placed = False  # the text starts where the first query has most of its keys
        names = [one.name for one in opened]
        super().__init__(self._empty_figure(names), ("capture", *self.kinds))
        self.add_class("qp-wide")  # parts side by side: where they have no room the figure scrolls
        try:
            self._adopt(self._new_controls(names))
            self._use_layers(opened, layer=layer, query=-1 if self._live else query)
            for one in opened:
                backends.resolve(one.capture.q, backend)
            self._start(**start)
            self.backend.value = backend
            if self._live:
                self.text.value = self._controls.examples()[0][1] if text is None else text
            self._place_controls()
        except BaseException:
            self.close()
            raise
        self._connect()
        self._read() if self._live else self._redraw()

    def _empty_figure(self, names: list[str]) -> go.Figure:
        raise NotImplementedError

    def _new_controls(self, names: list[str]) -> IndexControls:
        raise NotImplementedError

    def _start(self, *, k, **more) -> None:
        """Set the start values; None is the usual k. Subclasses extend it."""
        usual = self._usual_k()
        whole = isinstance(k, int) and not isinstance(k, bool)
        self.k.value = usual if k is None else min(k, self.k.grid[-1]) if whole else k
        for name, value in more.items():
            getattr(self, name).value = value

    def _usual_k(self) -> int:
        return usual_k(len(self._layers[self.layer.value].capture.k))

    def _follow(self, with_k: bool) -> None:
        """Set what nobody chose to what is usual for another text. Subclasses extend it."""
        if with_k:
            self.k.value = self._usual_k()

    def _use_layers(self, opened: list[Layer], *, layer=None, query=None) -> None:
        """Show these layers, at first or instead of others of the same names; a worker's job may call it.

        Args:
            layer: Name of the one that is opened; None is the one that is open. query: None is the last one.
        """
        name = self.layer.value if layer is None else str(layer)
        layers = {one.name: one for one in opened}
        if name not in layers:
            raise ValueError(f"layer must be one of {', '.join(map(repr, layers))}, got {layer!r}")
        count, query = len(layers[name].capture), -1 if query is None else whole_number("query", query)
        if not -count <= query < count:
            raise ValueError(f"query must be from {-count} to {count - 1}, got {query}")
        self._forget()
        self._layers, self._ranked, self._opened, self._placed = layers, RankedWindows(layers), None, False
        self.k.set_grid(k_grid(max(len(one.capture.k) for one in opened), off=False))
        self.layer.value = name
        self._fit_to(layers[name])
        self.query.value = query % count

    def _forget(self) -> None:
        """Drop what was computed of the layers. Subclasses extend it."""
        self._ranked.clear()

    def _place_controls(self) -> None:
        box = [self._controls.text_box()] if self._live else []
        self.arrange(*box, *self._controls.arrange(several=len(self._layers) > 1))
        *above, caption = self.children
        below = self._controls.below(with_text=any(layer.has_text for layer in self._layers.values()))
        self.children = [*above, *below, caption]

    def _connect(self) -> None:
        super()._connect()
        self.strip.observe(self._pick, "picked")
        self.scan_button.on_click(lambda _: self._scan_on())
        if self._live:
            self.text.observe(lambda _: self._read(), "value")
            self.run_button.on_click(lambda _: self._read())
        for trace in self.figure.data:
            if trace.name in self.clickable:
                trace.on_click(self._on_click)

    def _on_click(self, trace, points, state) -> None:
        if not points.xs:
            return
        name = self.clickable[trace.name]
        value = list(self._layers)[int(points.ys[0])] if name == "layer" else int(points.xs[0])
        getattr(self, name).value = value

    def _pick(self, change) -> None:
        view, token = self._view, change["new"][0]
        if view is not None and token >= 0:
            rows = (view.layer.capture.positions == view.stretch()[token]).nonzero()
            if len(rows):
                self.query.value = int(rows[0])

    def _read(self) -> None:
        self.submit("capture", self._run_capture)

    def _scan_on(self) -> None:
        self._stopped = False
        self.submit("scan", self._scan)

    def cancel(self) -> None:
        self._stopped = True
        super().cancel()

    # Jobs: what stands from here on runs on the worker.

    def _run_capture(self, job) -> None:
        """Run the model on the text; show its last query, or for the same text the one that was shown."""
        what = "the model reads the text"
        job.progress(0, 0, what)
        query, self._first_query = self._first_query, -1
        opened = self._live.read(self.text.value, self.with_mass, job.progress)
        job.progress(0, 0, what)  # raises when another text was typed meanwhile
        if self._is_read and opened[0].capture.ids.equal(next(iter(self._layers.values())).capture.ids):
            query = self.query.value
        follows = self._k_follows and self.k.value == self._usual_k()
        self._use_layers(opened, query=query)
        self._is_read = True
        self._follow(follows)
        self._draw(job)

    def _fit_to(self, layer: Layer) -> None:
        """Bound query and place by what the layer has."""
        for control, count in ((self.query, len(layer.capture)), (self.place, len(layer.capture.k))):
            if len(control.grid) != count:
                control.set_grid(list(range(count)))

    def _common(self) -> dict:
        """What every setting holds; a query beyond those of the layer is its last one."""
        layer = self.layer.value
        count, n_keys = len(self._layers[layer].capture), len(self._layers[layer].capture.k)
        open_ = {"layer": layer, "query": min(self.query.value, count - 1), "place": min(self.place.value, n_keys - 1)}
        return open_ | {"k": self.k.value, "g": self.g.value, "backend": self.backend.value}

    def _setting(self):
        """What is asked for now, as a named tuple with the fields of `_common` and more."""
        raise NotImplementedError

    def _key(self, at, layer: str | None = None) -> Key:
        """The window that is open, or the one of another layer beside it."""
        return self._ranked.key(layer or at.layer, at.query, at.backend)

    def _is_ready(self, at) -> bool:
        """Whether a setting can be drawn without a scan. Subclasses may want more."""
        return self._key(at) in self._ranked

    def _draw(self, job) -> None:
        start = time.perf_counter()
        if not self._is_read:
            return
        self._fit_to(self._layers[self.layer.value])
        at = self._setting()
        key = self._key(at)
        if key != self._opened:
            self._opened, self._stopped = key, False
        if self._is_ready(at):
            self._paint(at)
            self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        if not self._scanning and self._missing(at):
            self.submit("scan", self._scan, REST_S if self._is_ready(at) else 0.0)

    def _missing(self, at) -> list:
        """What a scan would still do at a setting, most urgent first; after Cancel only what the picture needs."""
        raise NotImplementedError

    def _fill(self, task, at, job) -> Iterator[None]:
        """Do one of `_missing` in steps: each yield lets sliders pass."""
        raise NotImplementedError

    def _tell(self, job, left: int) -> None:
        """Say how far a scan is."""
        raise NotImplementedError

    def _scan(self, job):
        """Do what is missing at the setting of the moment; what is known so far is painted now and then.

        A figure that a step has just changed is left to the browser for a while: a second change would keep it from
        showing the first, and the next step of a slider that moves makes it idle.
        """
        self._scanning, self._scan_began = True, time.monotonic()
        try:
            while missing := self._missing(at := self._setting()):
                self._tell(job, len(missing))
                was_ready = self._is_ready(at)
                yield from self._fill(missing[0], at, job)
                at = self._setting()
                if self._is_ready(at) and (not was_ready or time.monotonic() > self._painted + REPAINT_S):
                    self._paint(at)
                yield
            if (early_s := self._painted + REST_S - time.monotonic()) > 0 and not self._stopped:
                self.submit("scan", self._scan, early_s)  # nothing is missing by then, and the rest is painted
                return
            if self._is_ready(at):
                self._paint(at)
            self._tell(job, 0)  # raises when the rest was cancelled
        finally:
            self._scanning = False

    def _rank(self, key: Key, job) -> Iterator[None]:
        """Rank a window while it is the one that is wanted."""
        yield from self._ranked.rank(key, job, functools.partial(self._is_wanted, key))

    def _is_wanted(self, key: Key) -> bool:
        return self._key(self._setting(), key.layer) == key

    def _look(self, at) -> IndexView:
        """What a setting shows."""
        raise NotImplementedError

    def _paint(self, at) -> None:
        if not self._placed:
            key, self._placed = self._key(at), True
            chosen = np.flatnonzero(self._ranked[key].rank[at.query - key.first] < at.k)
            place = index_view.busiest(chosen, self.place.limit + 1)
            self.place.value, at = place, at._replace(place=place)
        self._view, self._shown = self._look(at), at
        self._paint_view(self._view)
        self._painted = time.monotonic()
        capture, rows = self._view.layer.capture, self._view.rows
        used = backends.resolve(capture.q, at.backend).name
        window = f"queries {rows[0]:,} to {rows[-1]:,} of {len(capture):,}"
        self._say_caption(f"{self._view.layer.caption} · {window} · {len(capture.k):,} keys · {used} back-end")
        self.scan_button.layout.display = SHOWN if self._stopped and self._has_more() else HIDDEN

    def _has_more(self) -> bool:
        """Whether a scan that was cancelled may have left something out."""
        return len(self._layers) > 1

    def _paint_view(self, view) -> None:
        """Draw a view, mark the text, and say its sentence."""
        raise NotImplementedError

    def _mark_text(self, view: IndexView, legend: str, **marks: np.ndarray) -> None:
        """Show the text around `place`, with the open query, what can be clicked, and marked positions by trait."""
        if not view.layer.has_text:
            self.strip.tokens, self.legend.value = [], ""
            return
        shown = view.stretch()
        self.legend.value = legend
        with self.strip.hold_sync():
            if (tokens := view.layer.capture.tokens[shown.start : shown.stop]) != self.strip.tokens:
                self.strip.tokens = tokens  # each one is checked, so only where the text moves
            self.strip.here = view.position - shown.start if view.position in shown else -1
            self.strip.readable = index_view.inside(view.ranked.positions, shown)
            for name, keys in marks.items():
                setattr(self.strip, name, index_view.inside(keys, shown))

    def _slider_grid(self, name: str) -> list:
        if name != "query":
            return super()._slider_grid(name)
        # The last window of a layer may begin in the one before it, where some of its queries have another window.
        key = self._key(self._shown)
        return [row for row in self._need_view().rows if self._key(self._shown._replace(query=row)) == key]

    def release(self) -> None:
        super().release()
        self._forget()
        self._layers, self._live = {}, None


def rows_code(view: IndexView) -> str:
    """The slice of q, w, lo and hi that a view's window is, for code; empty where it is all of them."""
    rows = view.rows
    return "" if len(rows) == len(view.layer.capture) else f"[{rows.start}:{rows.stop}]"
