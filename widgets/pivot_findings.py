"""What is known of a PIVOT panel's windows, and what of that a setting shows: systems, and lines over g and c."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from qp_kernels.pivot import index_cache_layers
from qp_kernels.pivot.cost import Cost
from widgets import pivot_calls
from widgets.index_source import Layer
from widgets.pivot_lanes import Lanes, Search
from widgets.pivot_measures import Lane, Queries, Rule, listed
from widgets.pivot_view import OF_LAYERS, Curves, Setting, System, cost_of
from widgets.ranked_windows import Key, RankedWindows

# Of a redraw, for what is not known of the lines over g and c; the rest is filled in behind.
INLINE_RECALL_S, INLINE_MASS_S = 0.006, 0.001
MOST_POINTS, KEPT_SYSTEMS = 100_000, 16
Point = tuple[Search, str, int, Rule]  # of a line: which search, mode, k, rule


class Lines(NamedTuple):
    """Points of the lines over g and c at a setting; None where Refine is not legal. Reuse has no budget."""

    at: Setting
    sizes: list[int]
    budgets: list[int]
    refine: list[Point | None]
    reuse: list[Point]
    over_c: list[Point]


class Findings:
    """Searches over the windows of some layers, and the points of the lines that were computed of them.

    Args:
        layers: By name. ranked: Their windows, which whoever made it ranks.
    """

    def __init__(self, layers: dict[str, Layer], ranked: RankedWindows):
        self._layers, self._ranked, self._lanes = layers, ranked, Lanes(layers)
        self._recalls: dict[Point, float] = {}
        self._masses: dict[Point, float] = {}
        self._systems: OrderedDict[tuple, System] = OrderedDict()
        self._last: Lines | None = None

    def key(self, at: Setting, layer: str | None = None) -> Key:
        """The window that is open, or the one of another layer beside it."""
        return self._ranked.key(layer or at.layer, at.query, at.backend)

    def lane(self, at: Setting, g: int | None = None, layer: str | None = None) -> Search:
        """The search of groups of g, by default of the open g and layer."""
        return Search(self.key(at, layer), "lane", at.g if g is None else g, at.proxy)

    def has_lane(self, at: Setting) -> bool:
        """Whether the open groups have searched."""
        return self.lane(at) in self._lanes

    def open(self, at: Setting) -> tuple[Queries, Lane]:
        """The open window and the search of its groups."""
        return self._queries(self.key(at)), self._lanes[self.lane(at)]

    def missing(self, at: Setting, sizes: list[int], only_open: bool) -> list[Key | Search | Point]:
        """Windows, then searches, then points of the lines that are not known, most urgent first.

        Args:
            sizes: Group sizes that are searched besides, so that a step of their slider needs no search.
            only_open: Leave out what the open groups can do without.
        """
        key, lane = self.key(at), self.lane(at)
        if key not in self._ranked:
            return [key]
        left = [] if lane in self._lanes else [lane]
        if only_open:
            return left
        for name in at.rivals:
            left += [one for one in self._needs(name, at) if not self._is_there(one)]
        n_queries, n_keys = len(self._ranked[key].rows), len(self._layers[at.layer].capture.k)
        every = self._lanes.fitting({*at.sizes(n_queries), *sizes}, n_queries, n_keys)
        left += [one for g in every if (one := self.lane(at, g)) not in self._lanes and one != lane]
        # What does not fit beside the others is searched when it is opened, and missing in the lines till then.
        return left or [point for point in self._points(at) if point[0] in self._lanes and not self._is_known(point)]

    def search(self, search: Search, at: Setting, job, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Make a search in steps, while its window is wanted, and what a redraw takes of it."""
        if search.key in self._ranked:
            yield from self._lanes.search(search, self._ranked[search.key], job, is_wanted)
        if search.what == "lane" and search in self._lanes:
            self._lanes[search].levels(at.rule(search.g))

    def points(self, at: Setting) -> Iterator[None]:
        """Compute the points of the lines, and yield after each."""
        for point in self._points(at):
            self._compute(point)
            yield

    def _is_there(self, one: Key | Search) -> bool:
        return one in (self._ranked if isinstance(one, Key) else self._lanes)

    def _needs(self, name: str, at: Setting) -> list[Key | Search]:
        """What a rival must have searched, in order."""
        if name in OF_LAYERS:
            other, _ = self.earlier(at)
            if other is None:
                return []
            return [self.key(at, other), *[self.lane(at, at.g, other)] * (name == "pivot_cache")]
        return [Search(self.key(at), "misa" if name == "misa_rerank" else name)]

    def earlier(self, at: Setting) -> tuple[str | None, str]:
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

    def _lines(self, at: Setting) -> Lines:
        """What the lines over g and c are of; those of the last setting are kept, since a redraw asks several times."""
        if self._last is None or self._last.at != at:
            key, n_keys = self.key(at), len(self._layers[at.layer].capture.k)
            sizes, budgets = at.sizes(len(self._ranked[key].rows)), at.budgets(n_keys)
            lanes = {g: Search(key, "lane", g, at.proxy) for g in sizes}
            refine = [(lanes[g], "refine", at.k, at.rule(g)) if at.is_legal(g) else None for g in sizes]
            reuse = [(lanes[g], "reuse", at.k, at.rule(g, budget=0)) for g in sizes]
            over_c = [(lanes[at.g], "refine", at.k, at.rule(budget=c)) for c in budgets]
            self._last = Lines(at, sizes, budgets, refine, reuse, over_c)
        return self._last

    def _points(self, at: Setting) -> list[Point]:
        """The points of the lines over g and c."""
        lines = self._lines(at)
        over_g = [point for pair in zip(lines.reuse, lines.refine, strict=True) for point in pair if point is not None]
        return over_g + lines.over_c

    def _is_known(self, point: Point) -> bool:
        with_mass = self._layers[point[0].key.layer].capture.mass is not None
        return point in self._recalls and (not with_mass or point in self._masses)

    def _compute_recalls(self, at: Setting) -> None:
        """All keys found over c, which one comparison of the open groups' candidates tells."""
        if unknown := [point for point in self._lines(at).over_c if point not in self._recalls]:
            queries, lane = self._queries(self.key(at)), self._lanes[self.lane(at)]
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
                self._recalls[point] = lane.reuse_recall(queries, k, rule)
        if queries.mass is not None and point not in self._masses and not only_recall:
            self._masses[point] = queries.mean(queries.attention(lane.select(mode, queries, k, rule)))

    def _queries(self, key: Key) -> Queries:
        return self._lanes.queries(key, self._ranked[key])

    def curves(self, at: Setting) -> Curves:
        """The lines as far as they are known or come within a time: keys first, then attention."""
        began = time.perf_counter()
        self._compute_recalls(at)
        for only_recall, limit_s in ((True, INLINE_RECALL_S), (False, INLINE_MASS_S)):
            for point in self._points(at):
                if time.perf_counter() > began + limit_s:
                    break
                self._compute(point, only_recall)
        asked = self._lines(at)
        lines = [
            [known.get(point, np.nan) for point in points]
            for known in (self._recalls, self._masses)
            for points in (asked.refine, asked.reuse, asked.over_c)
        ]
        refine, reuse, over_c, refine_mass, reuse_mass, over_c_mass = lines
        return Curves(asked.sizes, refine, reuse, refine_mass, reuse_mass, asked.budgets, over_c, over_c_mass)

    def systems(self, at: Setting) -> tuple[dict[str, System], dict[str, str]]:
        """What every system selects, and why a rival is not among them."""
        missing, used = {}, dict.fromkeys(("dense", "refine", "reuse"), "")
        other, why = self.earlier(at) if set(at.rivals) & set(OF_LAYERS) else (None, "")
        for name in at.rivals:
            if name in OF_LAYERS and other is None:
                missing[name] = why
            elif not all(map(self._is_there, self._needs(name, at))):
                missing[name] = "not searched yet"
            else:
                used[name] = other if name in OF_LAYERS else ""
        return {name: self._system(name, at, layer) for name, layer in used.items()}, missing

    def _system(self, name: str, at: Setting, other: str) -> System:
        """One of them; those that a step leaves as they were are kept."""
        wanted = (name, self.key(at), at.k, *self._depends_on(name, at, other))
        if wanted not in self._systems:
            capture, (queries, lane) = self._layers[at.layer].capture, self.open(at)
            cost = Cost(0, 0, 0, 0) if other else cost_of(name, queries, lane, at, capture)
            positions, title = self._select(name, at, other), self._layers[other].title if other else ""
            self._systems[wanted] = System(name, positions, queries.kept(positions, at.k), cost, title)
            while len(self._systems) > KEPT_SYSTEMS:
                self._systems.popitem(last=False)
        self._systems.move_to_end(wanted)
        return self._systems[wanted]

    def _depends_on(self, name: str, at: Setting, other: str) -> tuple:
        """What a system's selection follows from, besides the window and k."""
        rule = at.rule()
        return {
            "refine": (self.lane(at), rule),
            "reuse": (self.lane(at), rule._replace(budget=0)),
            "hisa": (rule.budget,),
            "misa_rerank": (rule.budget,),
            "index_cache": (other,),
            "pivot_cache": (other, self.lane(at), at.mode, rule),
        }.get(name, ())

    def _select(self, name: str, at: Setting, other: str) -> torch.Tensor:
        """[T, k] positions that a system selects, -1 for none."""
        rule, (queries, lane) = at.rule(), self.open(at)
        if name == "dense":
            return queries.own(at.k)
        if name in ("refine", "reuse"):
            return lane.select(name, queries, at.k, rule)
        if name in OF_LAYERS:
            theirs = self._queries(self.key(at, other))
            if name == "index_cache":
                return theirs.own(at.k)
            return self._lanes[self.lane(at, at.g, other)].select(at.mode, theirs, at.k, rule)
        if name == "hisa":
            _, options = pivot_calls.call_of(name, at, self._layers[at.layer])
            return listed(queries, at.k, self._lanes[Search(self.key(at), "hisa")], options["blocks"])
        few = self._lanes[Search(self.key(at), "misa")]
        if name == "misa":
            beyond = torch.arange(min(at.k, few.order.shape[1])) >= few.count[:, None]
            return few.order[:, : at.k].masked_fill(beyond, -1)
        return listed(queries, at.k, few.levels, max(at.k, rule.budget))

    def clear(self) -> None:
        """Forget all, and the layers."""
        self._lanes.clear()
        self._recalls.clear()
        self._masses.clear()
        self._systems.clear()
        self._last, self._layers = None, {}
