"""PivotExplorer: what does a group of queries lose when it searches once, and what does it save?"""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterator

from qp_kernels import timing
from qp_kernels.pivot import index_cache_layers
from widgets import pivot_calls, pivot_words
from widgets.index_source import Layer
from widgets.painting import Properties
from widgets.panels.index_panel import IndexPanel, rows_code
from widgets.panels.pivot_controls import PivotControls
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.pivot_figure import pivot_properties
from widgets.pivot_findings import Findings
from widgets.pivot_lanes import SEARCHING, Search
from widgets.pivot_parts import pivot_figure
from widgets.pivot_view import OF_LAYERS, PivotView, Setting
from widgets.ranked_windows import Key

QUIET_S = 0.3  # a scan that is over sooner says nothing
REPETITIONS = 10
TABLES = ("queries", "members", "g", "c", "systems", "keys")


class PivotExplorer(IndexPanel):
    """See what a group of g queries loses when it searches once, and what it saves.

    Above, the share of its own keys that a query finds with Refine and with Reuse, over g at the open c and over c at
    the open g, beside the attention that is kept where the capture has it; and every system with what it saves. In the
    middle, the open query's scores in order with k and c, and what each member of a group loses. Below, which keys
    the open query keeps, loses and gets instead; with tokens also marked in the text. A table counts multiply-adds and
    bytes, with the cost model, and on a GPU the measured time.

    A window is 64 queries: those of the block that holds the open query; their groups start with it. It is ranked once,
    and a proxy's search is kept: k and c need no scan. A budget or window below what is legal is raised, and said.

    Args:
        source: A live `LanguageModel` (then the panel has a text box, and shows up to eight layers, see `LiveIndex`),
            an `IndexCapture`, a list or dict of them (layers), a `.safetensors` capture, an `.npz` file with q, k and
            w, or tensors (q [T, H, D], k [N, D], w [T, H]), whose queries are the last of the keys.
        k: Keys a query, at least 1; N and more is all. None: N / 16, at most 2,048.
        g: Queries a group, 1 to 64. c: Candidates of Refine; None is 2 k, and at least what is legal.
        window: W, 0 to 1,024; None or 0 is g. mode: "refine" or "reuse", shown key by key.
        proxy: "mean", "first" or "last". guard: As `pivot_topk` takes it. phase: "prefill" or "decode".
        query: The open one; negative counts from the end. layer: Name of the open layer; None is the first.
        rivals: Of "hisa", "misa", "misa_rerank", "index_cache" and "pivot_cache": which stand beside.
        pattern: IndexCache's letters F and S, one a layer; None is F, then S.
        r: Price of a re-scored key in the cost model. backend: "auto", "triton" or "torch": what makes the scores.
        text: First text of a live model.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.g.value = 8; panel.wait(); panel.to_frame("systems")`. Controls: k, g, c, window, mode,
    proxy, guard, phase, query, place, layer, rivals, pattern, r, backend, and on a live model text.
    """

    sliders = ("k", "g", "c", "query")
    kinds = ("draw", "scan", "measure")
    with_mass = True
    clickable = {
        **dict.fromkeys(("refine_g", "reuse_g"), "g"),
        "refine_c": "c",
        **dict.fromkeys(("kept", "lost", "gained"), "place"),
    }

    def __init__(
        self,
        source,
        *,
        k=None,
        g=4,
        c=None,
        window=None,
        mode="refine",
        proxy="mean",
        guard=True,
        phase="prefill",
        query=-1,
        layer=None,
        rivals=(),
        pattern=None,
        r=3.0,
        backend="auto",
        text=None,
    ):
        self._findings = Findings({}, None)
        self._times: dict[tuple, dict[str, float]] = {}
        self._pattern = "F"  # the last one that was legal
        self._c_follows = c is None  # k and the text, until a hand sets it
        more = {"c": c, "g": g, "window": 0 if window is None else window, "mode": mode, "proxy": proxy, "guard": guard}
        more |= {"phase": phase, "rivals": (rivals,) if isinstance(rivals, str) else rivals, "pattern": pattern, "r": r}
        super().__init__(source, query=query, layer=layer, backend=backend, text=text, k=k, **more)

    def _empty_figure(self, names: list[str]):
        return pivot_figure()

    def _new_controls(self, names: list[str]) -> PivotControls:
        return PivotControls(names)

    def _start(self, *, k, c, guard, pattern, **more) -> None:
        _choose_guard(self.guard, guard)
        super()._start(k=k, **more)
        self.c.value = self._usual_c() if c is None else min(c, self.c.grid[-1]) if type(c) is int else c
        count = len(self._layers)
        self._pattern = "F" + "S" * (count - 1) if pattern is None else pattern
        index_cache_layers(count, pattern=self._pattern)
        self.pattern.value = self._pattern

    def _usual_c(self) -> int:
        """Twice k, as in the paper, and what is legal."""
        return min(max(2 * self.k.value, self._setting().least(self.g.value)), self.c.grid[-1])

    def _follow(self, with_k: bool) -> None:
        super()._follow(with_k)
        if self._c_follows:
            self.c.value = self._usual_c()

    def _use_layers(self, opened: list[Layer], **more) -> None:
        self._c_follows = self._c_follows and (not self._layers or self.c.value == self._usual_c())
        super()._use_layers(opened, **more)
        self._findings = Findings(self._layers, self._ranked)
        self.c.set_grid(self.k.grid)

    def _forget(self) -> None:
        super()._forget()
        self._findings.clear()
        self._times.clear()

    def _connect(self) -> None:
        super()._connect()
        self.pattern.observe(self._on_pattern, "value")
        self.rivals.observe(lambda _: self._controls.show_pattern(), "value")
        self.time_button.on_click(lambda _: self.submit("measure", self._measure))

    def _on_pattern(self, change) -> None:
        try:
            index_cache_layers(len(self._layers), pattern=change["new"])
        except ValueError as refused:
            self.show_status("control", str(refused))
            return
        self._pattern = change["new"]
        self._on_control(change)

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _setting(self) -> Setting:
        own = ("c", "window", "mode", "proxy", "guard", "phase", "r", "rivals")
        return Setting(**self._common(), **{name: getattr(self, name).value for name in own}, pattern=self._pattern)

    def _is_ready(self, at: Setting) -> bool:
        return super()._is_ready(at) and self._findings.has_lane(at)

    def _missing(self, at: Setting) -> list:
        return self._findings.missing(at, self.g.grid, self._stopped)

    def _fill(self, task, at: Setting, job) -> Iterator[None]:
        """Rank a window, make a search, or compute points while the setting stays."""
        if isinstance(task, Key):
            yield from self._rank(task, job)
        elif isinstance(task, Search):
            yield from self._findings.search(task, at, job, functools.partial(self._is_wanted, task.key))
        else:
            for _ in self._findings.points(at):
                yield
                if self._setting() != at:
                    return

    def _tell(self, job, left: int) -> None:
        if left and time.monotonic() > self._scan_began + QUIET_S:
            job.progress(0, 0, SEARCHING)
        else:
            job.check(SEARCHING)

    def _look(self, at: Setting) -> PivotView:
        systems, missing = self._findings.systems(at)
        curves, times = self._findings.curves(at), self._times.get(_timed(at, self._key(at)), {})
        layer = self._layers[at.layer]
        return PivotView(layer, at.query, at.place, at, *self._findings.open(at), systems, curves, missing, times)

    def _paint_view(self, view: PivotView) -> None:
        with self._lock:
            self._painter.paint(pivot_properties(view))
        kept, lost, gained = view.keys
        legend = pivot_words.legend(view) if view.layer.has_text else ""
        self._mark_text(view, legend, kept=kept, new=lost, gained=gained)
        can_time = self._can_time(view.at.layer)
        self.time_button.layout.display = SHOWN if can_time else HIDDEN
        self.table.value = pivot_words.numbers(view)
        self.costs.value = pivot_words.below_numbers(view, can_time)
        self.summary = pivot_words.sentence(view)

    def _has_more(self) -> bool:
        return True

    def _can_time(self, layer: str) -> bool:
        return self._layers[layer].capture.q.is_cuda

    def _measure(self, job) -> Iterator[None]:
        """Time every system that searches here, on the open window."""
        at = self._setting()
        layer, rows = self._layers[at.layer], self._ranked[self._key(at)].rows
        names = [name for name in self._need_view().systems if name not in OF_LAYERS]
        timing.wake(layer.capture.q.device)
        found = {}
        for i, name in enumerate(names):
            job.progress(i, len(names), "measuring systems:")
            call = pivot_calls.bound(name, at, layer, slice(rows.start, rows.stop))
            device = layer.capture.q.device
            found[name] = timing.measure(call, repetitions=REPETITIONS, device=device).median_us
            yield
        self._times[_timed(at, self._key(at))] = found
        self._redraw()

    def _slider_grid(self, name: str) -> list:
        if name == "c":
            return [c for c in self.c.grid if c >= self._need_view().at.least(self.g.value)] or [self.c.value]
        return super()._slider_grid(name)

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        self._need_view()
        views = []
        for value in values:
            at = self._shown._replace(**{name: value})
            if self._is_ready(at):
                collections.deque(self._findings.points(at), maxlen=0)
                view = self._look(at)
                views.append((pivot_properties(view), pivot_words.sentence(view)))
        return views

    def to_frame(self, table: str = "queries"):
        """A pandas frame of what is seen.

        Args:
            table: "queries" (the window's: group, member, what each keeps), "members" (losses by place in the group),
                "g" and "c" (the lines), "systems" (shares, multiply-adds, bytes, time) or "keys" (the open query's).
        """
        import pandas as pd

        if table not in TABLES:
            raise ValueError(f"table must be one of {', '.join(map(repr, TABLES))}, got {table!r}")
        return pd.DataFrame(pivot_words.frames(self._need_view())[table])

    def code(self) -> str:
        view = self._need_view()
        other = self._findings.earlier(view.at)[0] if set(view.systems) & set(OF_LAYERS) else None
        return "\n".join(pivot_calls.code(view, rows_code(view), self._layers.get(other)))


def _timed(at: Setting, key: Key) -> tuple:
    """What a measured time depends on."""
    return key, at.k, at.g, at.rule(), at.proxy, at.mode


def _choose_guard(control, guard) -> None:
    """On, off, or the length up to which groups are dense, which becomes a choice of its own."""
    if not isinstance(guard, bool):
        if not isinstance(guard, int):
            raise TypeError(f"guard must be True, False or a whole number of keys, got {guard!r}")
        if guard < 0:
            raise ValueError(f"guard must be >= 0, got {guard}")
        control.options = [*control.options, (f"to {guard:,} keys", guard)]
    control.index = len(control.options) - 1 if not isinstance(guard, bool) else int(not guard)
