"""What `PivotExplorer` shows: a window at one setting of PIVOT, what each system keeps and costs, one query's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qp_kernels import index_metrics
from qp_kernels.pivot import cost
from qp_kernels.pivot.cost import Cost
from widgets.index_view import IndexView
from widgets.pivot_lanes import hisa_block, hisa_blocks, misa_block, misa_heads
from widgets.pivot_measures import Kept, Lane, Queries, Rule, told_apart
from widgets.ranked_windows import Ranked

RIVALS = ("hisa", "misa", "misa_rerank", "index_cache", "pivot_cache")
OF_LAYERS = ("index_cache", "pivot_cache")  # rivals that take another layer's keys
NAMES = {
    "dense": "dense",
    "refine": "Refine",
    "reuse": "Reuse",
    "hisa": "HISA",
    "misa": "MISA",
    "misa_rerank": "MISA, re-ranked",
    "index_cache": "IndexCache",
    "pivot_cache": "PIVOT + IndexCache",
}
POINTS = 16  # budgets that the lines over c are drawn at
DOUBLING = (1, 2, 4, 8, 16, 32, 64)  # group sizes of the lines over g: they leave no rest of a window


class Setting(NamedTuple):
    """The values of the controls at one moment: they may change under a job, which reads them once."""

    layer: str
    query: int
    k: int
    g: int
    place: int
    backend: str
    c: int
    window: int  # 0 is g
    mode: str
    proxy: str
    guard: bool | int
    phase: str
    r: float
    rivals: tuple[str, ...]
    pattern: str

    def least(self, g: int) -> int:
        """The smallest budget of Refine that is legal with groups of g."""
        return self.k + max(self.window, g) + g - 1 if self.phase == "prefill" else 1

    def rule(self, g: int | None = None, budget: int | None = None) -> Rule:
        """How groups of g select, window and budget raised to what is legal."""
        g = self.g if g is None else g
        budget = max(self.c, self.least(g)) if budget is None else budget
        return Rule(budget, max(self.window, g), self.guard, self.phase)

    def budgets(self, n_keys: int) -> list[int]:
        """Where the lines over c are drawn: from the least legal one to all keys."""
        low = self.least(self.g) if self.phase == "prefill" else max(1, self.k // 4)
        return list(_spread(low, max(low, n_keys)))

    def sizes(self, queries: int) -> list[int]:
        """Group sizes of the lines over g."""
        return sorted({*(g for g in DOUBLING if g <= queries), self.g})

    def is_legal(self, g: int) -> bool:
        """Whether Refine takes the open c with groups of g; of the open g it is raised."""
        return g == self.g or self.least(g) <= self.c


@lru_cache(256)
def _spread(low: int, high: int) -> tuple[int, ...]:
    """Whole numbers from low to high at about equal ratios."""
    return tuple(sorted({round(x) for x in np.geomspace(low, high, POINTS)}))


@dataclass(frozen=True, eq=False)
class System:
    """One way to select, at the open setting.

    Attributes:
        positions: [T, k], -1 for none. kept: What it keeps of each query's own. cost: What it does.
        used: The layer that searched, where it is another one.
    """

    name: str
    positions: Tensor
    kept: Kept
    cost: Cost
    used: str = ""


@dataclass(frozen=True, eq=False)
class Curves:
    """Mean shares over g and over c; NaN where they are not known yet, or nothing is legal.

    Attributes:
        g: Group sizes; refine, reuse: Keys found. refine_mass, reuse_mass: Attention kept.
        c: Budgets; over_c, over_c_mass: The same of Refine.
    """

    g: list[int]
    refine: list[float]
    reuse: list[float]
    refine_mass: list[float]
    reuse_mass: list[float]
    c: list[int]
    over_c: list[float]
    over_c_mass: list[float]


@dataclass(frozen=True, eq=False)
class PivotView(IndexView):
    """What the panel shows.

    Attributes:
        at: The setting. queries: Its window. lane: The search of its groups. systems: By name, "dense" first.
        curves: Lines over g and c. missing: Name of a rival -> why it is not among the systems.
        times_us: Name of a system -> measured time of one call for the window, empty where none was measured.
    """

    at: Setting
    queries: Queries
    lane: Lane
    systems: dict[str, System]
    curves: Curves
    missing: dict[str, str] = field(default_factory=dict)
    times_us: dict[str, float] = field(default_factory=dict)

    @property
    def ranked(self) -> Ranked:
        return self.queries.ranked

    @property
    def rule(self) -> Rule:
        return self.at.rule()

    @property
    def open(self) -> System:
        """What the open mode selects."""
        return self.systems[self.at.mode]

    @cached_property
    def group(self) -> range:
        """Rows of the window in the open query's group."""
        one = int(self.lane.of[self.row])
        return range(int(self.lane.groups.start[one]), int(self.lane.groups.stop[one]))

    @cached_property
    def dense(self) -> np.ndarray:
        """[T] bool: which queries the open mode leaves on the dense path."""
        return self.lane.dense(self.at.mode, self.at.k, self.rule).numpy()

    @cached_property
    def keys(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The open query's keys: kept by its group's search, lost by it, and gained instead; positions, ascending."""
        return told_apart(self.open.positions[self.row], self.systems["dense"].positions[self.row])

    @cached_property
    def mass(self) -> tuple[float, float] | None:
        """Mean attention that queries' own selections keep, and the best there is; None where it is not known."""
        if self.queries.mass is None:
            return None
        own, best = self.queries.own_mass(self.at.k)
        return self.queries.mean(own), self.queries.mean(best)

    def share(self, name: str) -> float:
        """Mean share of its own keys that a query finds with a system."""
        return self._means[name][0]

    def attention(self, name: str) -> float:
        """Mean attention that a system keeps; NaN where it is not known."""
        return self._means[name][1]

    @cached_property
    def _means(self) -> dict[str, tuple[float, float]]:
        """Of each system the mean share of keys, and of attention."""
        mean, kept = self.queries.mean, {name: one.kept for name, one in self.systems.items()}
        return {name: (mean(one.recall), np.nan if one.mass is None else mean(one.mass)) for name, one in kept.items()}

    def less(self, name: str) -> float:
        """How many times fewer multiply-adds a system makes than dense selection; infinite where it makes none."""
        mine = self.systems[name].cost.operations
        return self.systems["dense"].cost.operations / mine if mine else np.inf

    @cached_property
    def own_kept(self) -> np.ndarray:
        """[T] bool: whether each query selects its own position."""
        positions = torch.from_numpy(self.ranked.positions)
        return index_metrics.own_kept(self.open.positions, positions).numpy()

    @cached_property
    def members(self) -> dict[str, np.ndarray]:
        """By place in the group, in the mean of the window's whole groups: lost keys, lost score, own token kept.

        Empty arrays where no group is whole; dense groups count, with nothing lost.
        """
        starts, stops = self.lane.groups.start, self.lane.groups.stop
        whole = starts[stops - starts == self.at.g]
        rows = whole[:, None] + np.arange(self.at.g)
        rows = rows[self.queries.some.numpy()[rows].all(1)] if len(rows) else rows
        kept = self.open.kept
        columns = {"lost": 1 - kept.recall.numpy(), "regret": kept.regret.numpy(), "own_kept": self.own_kept}
        size = self.at.g if len(rows) else 0
        return {name: values[rows].mean(0) if size else np.empty(0) for name, values in columns.items()}

    @cached_property
    def tail(self) -> dict[str, np.ndarray]:
        """The open query's scores in order, see `Queries.tail`."""
        return self.queries.tail(self.row)


def cost_of(name: str, queries: Queries, lane: Lane, at: Setting, capture) -> Cost:
    """What a system that searches in this layer does for the window."""
    ranked = queries.ranked
    _, heads, width = capture.q.shape
    shape = cost.Shape(heads, width, len(capture.k), capture.k.element_size())
    count, rule = (ranked.hi - ranked.lo).clip(min=0), at.rule()
    if name == "dense":
        return cost.dense(shape, count)
    if name == "hisa":
        block = hisa_block(shape.keys)
        return cost.hisa(shape, count, block=block, blocks=hisa_blocks(at.k, rule.budget, block))
    if name in ("misa", "misa_rerank"):
        rerank = max(at.k, rule.budget) if name == "misa_rerank" else None
        return cost.misa(shape, count, heads=misa_heads(heads), block=misa_block(shape.keys), rerank=rerank)
    options = {"budget": rule.budget, "window": rule.window, "guard": rule.guard, "phase": rule.phase}
    return cost.pivot(shape, count, lane.groups, topk=at.k, mode=name, proxy=at.proxy, **options)
