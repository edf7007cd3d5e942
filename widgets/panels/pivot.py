"""PivotExplorer: what does a group of queries lose when it searches once, and what does it save?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from qp_kernels import timing
from qp_kernels.pivot import index_cache_layers
from qp_kernels.pivot.cost import Cost
from widgets import pivot_calls, pivot_words
from widgets.index_source import Layer
from widgets.painting import Properties
from widgets.panels.index_panel import IndexPanel, rows_code
from widgets.panels.pivot_controls import OF_LAYERS, PivotControls
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.pivot_figure import pivot_figure, pivot_properties
from widgets.pivot_lanes import Lanes, Search
from widgets.pivot_measures import Lane, Queries, Rule, listed
from widgets.pivot_view import Curves, PivotView, Setting, System, cost_of
from widgets.ranked_windows import Key

INLINE_S = 0.006  # of a redraw, for the lines over g and c; what takes longer is filled in behind
QUIET_S = 0.3  # a scan that is over sooner says nothing
MOST_POINTS = 100_000
REPETITIONS = 10
TABLES = ("queries", "members", "g", "c", "systems", "keys")
Point = tuple[Search, str, int, Rule]  # of a line: which search, mode, k, rule


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
        source: An `IndexCapture`, a list or dict of them (layers), a `.safetensors` capture, an `.npz` file with q, k
            and w, or tensors (q [T, H, D], k [N, D], w [T, H]), whose queries are the last of the keys.
        k: Keys a query, at least 1; N and more is all. None: N / 16, at most 2,048.
        g: Queries a group, 1 to 64. c: Candidates of Refine; None is 2 k, and at least what is legal.
        window: W, 0 to 1,024; None or 0 is g. mode: "refine" or "reuse", shown key by key.
        proxy: "mean", "first" or "last". guard: As `pivot_topk` takes it. phase: "prefill" or "decode".
        query: The open one; negative counts from the end. layer: Name of the open layer; None is the first.
        rivals: Of "hisa", "misa", "misa_rerank", "index_cache" and "pivot_cache": which stand beside.
        pattern: IndexCache's letters F and S, one a layer; None is F, then S.
        r: Price of a re-scored key in the cost model. backend: "auto", "triton" or "torch": what makes the scores.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.g.value = 8; panel.wait(); panel.to_frame("systems")`. Controls: k, g, c, window, mode,
    proxy, guard, phase, query, place, layer, rivals, pattern, r, backend.
    """

    sliders = ("k", "g", "c", "query")
    kinds = ("draw", "scan", "measure")
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
    ):
        self._lanes = Lanes({})
        self._recalls: dict[Point, float] = {}
        self._masses: dict[Point, float] = {}
        self._times: dict[tuple, dict[str, float]] = {}
        self._pattern, self._scan_began = "F", 0.0
        more = {"c": c, "g": g, "window": 0 if window is None else window, "mode": mode, "proxy": proxy, "guard": guard}
        more |= {"phase": phase, "rivals": tuple(rivals), "pattern": pattern, "r": r}
        super().__init__(source, query=query, layer=layer, backend=backend, k=k, **more)

    def _empty_figure(self, names: list[str]):
        return pivot_figure()

    def _new_controls(self, names: list[str]) -> PivotControls:
        return PivotControls(names)

    def _start(self, *, k, c, guard, pattern, mode, proxy, phase, **more) -> None:
        for name, value in (("mode", mode), ("proxy", proxy), ("phase", phase)):
            _choose(name, getattr(self, name), value)
        _choose_guard(self.guard, guard)
        super()._start(k=k, **more)
        usual = max(2 * self.k.value, self._setting().least(self.g.value))
        most = self.c.grid[-1]
        self.c.value = min(usual, most) if c is None else min(c, most) if type(c) is int else c
        count = len(self._layers)
        self._pattern = "F" + "S" * (count - 1) if pattern is None else pattern
        index_cache_layers(count, pattern=self._pattern)
        self.pattern.value = self._pattern

    def _use_layers(self, opened: list[Layer], **more) -> None:
        super()._use_layers(opened, **more)
        self._lanes = Lanes(self._layers)
        self.c.set_grid(self.k.grid)

    def _forget(self) -> None:
        super()._forget()
        self._lanes.clear()
        for known in (self._recalls, self._masses, self._times):
            known.clear()

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

    def _lane(self, at: Setting, g: int, layer: str | None = None) -> Search:
        return Search(self._key(at, layer), "lane", g, at.proxy)

    def _is_ready(self, at: Setting) -> bool:
        return super()._is_ready(at) and self._lane(at, at.g) in self._lanes

    def _missing(self, at: Setting) -> list:
        """Searches and then points of the lines that are not known, and windows before searches in them."""
        key, lane = self._key(at), self._lane(at, at.g)
        if key not in self._ranked:
            return [key]
        left = [] if lane in self._lanes else [lane]
        if self._stopped:
            return left
        for name in at.rivals:
            left += [one for one in self._needs(name, at) if one not in self._ranked and one not in self._lanes]
        sizes = {*at.sizes(len(self._ranked[key].rows)), *self.g.grid}  # a step of the slider needs no search
        left += [one for g in sorted(sizes) if (one := self._lane(at, g)) not in self._lanes and one != lane]
        return left or [point for point in self._points(at) if not self._is_known(point)]

    def _needs(self, name: str, at: Setting) -> list[Key | Search]:
        """What a rival must have searched, in order."""
        if name in OF_LAYERS:
            other, _ = self._earlier(at)
            if other is None:
                return []
            return [self._key(at, other), *[self._lane(at, at.g, other)] * (name == "pivot_cache")]
        return [Search(self._key(at), "misa" if name == "misa_rerank" else name)]

    def _earlier(self, at: Setting) -> tuple[str | None, str]:
        """The layer whose keys IndexCache takes for the open one, or None and why there is none."""
        names = list(self._layers)
        if len(names) == 1:
            return None, "needs more than one layer"
        here = names.index(at.layer)
        other = names[index_cache_layers(len(names), pattern=at.pattern)[here]]
        if other == at.layer:
            return None, f"{self._layers[other].title} searches itself (F in {at.pattern})"
        mine, theirs = self._layers[at.layer].capture, self._layers[other].capture
        same = all(torch.equal(getattr(mine, part), getattr(theirs, part)) for part in ("lo", "hi", "positions"))
        if not same or len(mine.k) != len(theirs.k):
            return None, f"{self._layers[other].title} has other queries or keys"
        return other, ""

    def _points(self, at: Setting) -> Iterator[Point]:
        """The points of the lines over g and c."""
        rows, n_keys = self._ranked[self._key(at)].rows, len(self._layers[at.layer].capture.k)
        for g in at.sizes(len(rows)):
            yield self._lane(at, g), "reuse", at.k, at.rule(g, budget=0)
            if at.is_legal(g):
                yield self._lane(at, g), "refine", at.k, at.rule(g)
        for c in at.budgets(n_keys):
            yield self._lane(at, at.g), "refine", at.k, at.rule(budget=c)

    def _is_known(self, point: Point) -> bool:
        with_mass = self._layers[point[0].key.layer].capture.mass is not None
        return point in self._recalls and (not with_mass or point in self._masses)

    def _fill(self, task, at: Setting, job) -> Iterator[None]:
        """Rank a window, make a search, or compute points while the setting stays."""
        if isinstance(task, Key):
            yield from self._rank(task, job)
        elif isinstance(task, Search):
            if task.key in self._ranked:

                def is_wanted() -> bool:
                    return self._is_wanted(task.key)

                yield from self._lanes.search(task, self._ranked[task.key], job, is_wanted)
        else:
            for point in list(self._points(at)):
                self._compute(point)
                yield
                if self._setting() != at:
                    return

    def _compute_recalls(self, at: Setting) -> None:
        """All keys found over c, which one comparison of the open groups' candidates tells."""
        points = [point for point in self._points(at) if point[:2] == (self._lane(at, at.g), "refine")]
        if unknown := [point for point in points if point not in self._recalls]:
            queries, lane = self._queries(self._key(at)), self._lanes[self._lane(at, at.g)]
            found = lane.refine_recalls(queries, at.k, [rule for *_, rule in unknown])
            self._recalls.update(zip(unknown, found, strict=True))

    def _compute(self, point: Point, only_recall: bool = False) -> None:
        """One point of the lines."""
        search, mode, k, rule = point
        if search not in self._lanes or search.key not in self._ranked:
            return
        queries, lane = self._queries(search.key), self._lanes[search]
        if len(self._recalls) > MOST_POINTS:
            self._recalls.clear()
            self._masses.clear()
        if point not in self._recalls:
            if mode == "refine":
                self._recalls[point] = lane.refine_recalls(queries, k, [rule])[0]
            else:
                self._recalls[point] = queries.mean(queries.recall(lane.reuse(queries, k, rule), k))
        if queries.mass is not None and point not in self._masses and not only_recall:
            self._masses[point] = queries.mean(queries.attention(lane.select(mode, queries, k, rule)))

    def _queries(self, key: Key) -> Queries:
        return self._lanes.queries(key, self._ranked[key])

    def _tell(self, job, left: int) -> None:
        if not self._scan_began or not left:
            self._scan_began = time.monotonic() if left else 0.0
        if time.monotonic() > self._scan_began + QUIET_S and left:
            job.progress(0, 0, "searching for other group sizes and budgets")
        else:
            job.check("searching for other group sizes and budgets")

    def _look(self, at: Setting) -> PivotView:
        until = time.perf_counter() + INLINE_S
        queries, lane = self._queries(self._key(at)), self._lanes[self._lane(at, at.g)]
        systems, missing = self._systems(at, queries, lane)
        curves = self._curves(at, len(queries.ranked.rows), until)
        times = self._times.get(_timed(at, self._key(at)), {})
        layer = self._layers[at.layer]
        return PivotView(layer, at.query, at.place, at, queries, lane, systems, curves, missing, times)

    def _curves(self, at: Setting, n_queries: int, until: float) -> Curves:
        """The lines as far as they are known or come quickly: keys first, then attention."""
        self._compute_recalls(at)
        for only_recall in (True, False):
            for point in self._points(at):
                if time.perf_counter() > until:
                    break
                self._compute(point, only_recall)
        sizes, budgets = at.sizes(n_queries), at.budgets(len(self._layers[at.layer].capture.k))

        def values(known: dict, mode: str) -> list[float]:
            rules = {g: at.rule(g, budget=0 if mode == "reuse" else None) for g in sizes}
            return [
                known.get((self._lane(at, g), mode, at.k, rule), np.nan)
                if mode == "reuse" or at.is_legal(g)
                else np.nan
                for g, rule in rules.items()
            ]

        lines = [values(known, mode) for known in (self._recalls, self._masses) for mode in ("refine", "reuse")]
        points = [(self._lane(at, at.g), "refine", at.k, at.rule(budget=c)) for c in budgets]
        over_c = [[known.get(point, np.nan) for point in points] for known in (self._recalls, self._masses)]
        return Curves(sizes, *lines, budgets, *over_c)

    def _systems(self, at: Setting, queries: Queries, lane: Lane) -> tuple[dict[str, System], dict[str, str]]:
        """What every system selects, and why a rival is not among them."""
        capture, rule = self._layers[at.layer].capture, at.rule()
        found = {"dense": queries.own(at.k), "refine": lane.refine(queries, at.k, rule)}
        found["reuse"] = lane.reuse(queries, at.k, rule)
        missing, used = {}, {}
        other, why = self._earlier(at) if set(at.rivals) & set(OF_LAYERS) else (None, "")
        for name in at.rivals:
            if name in OF_LAYERS and other is None:
                missing[name] = why
            elif any(one not in self._ranked and one not in self._lanes for one in self._needs(name, at)):
                missing[name] = "not searched yet"
            else:
                found[name] = self._rival(name, at, queries, other)
                used[name] = self._layers[other].title if name in OF_LAYERS else ""
        systems = {}
        for name, positions in found.items():
            kept = queries.kept(positions, at.k)
            if name in OF_LAYERS:
                cost = Cost(0, 0, 0, 0)
            else:
                cost = cost_of(name, (queries, lane, at), capture)
            systems[name] = System(name, positions, kept, cost, used.get(name, ""))
        return systems, missing

    def _rival(self, name: str, at: Setting, queries: Queries, other: str | None) -> torch.Tensor:
        """[T, k] positions that a rival selects."""
        rule = at.rule()
        if name in OF_LAYERS:
            theirs = self._queries(self._key(at, other))
            if name == "index_cache":
                return theirs.own(at.k)
            return self._lanes[self._lane(at, at.g, other)].select(at.mode, theirs, at.k, rule)
        if name == "hisa":
            function, options = pivot_calls.call_of(name, at, self._layers[at.layer])
            return listed(queries, at.k, self._lanes[Search(self._key(at), "hisa")], options["blocks"])
        few = self._lanes[Search(self._key(at), "misa")]
        if name == "misa":
            beyond = torch.arange(min(at.k, few.order.shape[1])) >= few.count[:, None]
            return few.order[:, : at.k].masked_fill(beyond, -1)
        return listed(queries, at.k, few.levels, max(at.k, rule.budget))

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
            if self._lane(at, at.g) in self._lanes:
                for point in self._points(at):
                    self._compute(point)
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
        other = self._earlier(view.at)[0] if set(view.systems) & set(OF_LAYERS) else None
        return "\n".join(pivot_calls.code(view, rows_code(view), self._layers.get(other)))


def _timed(at: Setting, key: Key) -> tuple:
    """What a measured time depends on."""
    return key, at.k, at.g, at.rule(), at.proxy, at.mode


def _choose(name: str, control, value) -> None:
    known = [one for _, one in control._options_full]
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    control.value = value


def _choose_guard(control, guard) -> None:
    """On, off, or the length up to which groups are dense, which becomes a choice of its own."""
    if not isinstance(guard, bool):
        if not isinstance(guard, int):
            raise TypeError(f"guard must be True, False or a whole number of keys, got {guard!r}")
        if guard < 0:
            raise ValueError(f"guard must be >= 0, got {guard}")
        control.options = [*control.options, (f"to {guard:,} keys", guard)]
    control.index = len(control.options) - 1 if not isinstance(guard, bool) else int(not guard)
