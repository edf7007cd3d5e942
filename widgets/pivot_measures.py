"""What queries of a window find when a group searches once: selections from ranks, and what they keep. No drawing.

Own ranks are known once a window is ranked, a proxy's once its lane is; then k, c, window and guard are comparisons.
What they compare is gathered along the orders once, for the first keys, since a gather costs more than they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qp_kernels import index_metrics
from qp_kernels.pivot.candidates import first_places, order_of, places_in, refine_levels
from qp_kernels.pivot.groups import Groups
from qp_kernels.pivot.ranking import NEVER, Ranking
from widgets.ranked_windows import Ranked

BYTES_A_KEY = 4 + 8 + 4  # of a lane: rank, order, level
FIRST_COLUMNS, KEPT_COLUMNS = 256, 8_192  # of an order: gathered at least; what is more is not kept


class Rule(NamedTuple):
    """How a group selects, as `pivot_topk` takes it; `budget` and `window` are legal ones."""

    budget: int
    window: int
    guard: bool | int
    phase: str

    def shortest(self, mode: str, k: int) -> int:
        """Keys of a first member up to which its group is dense."""
        return (self.budget if mode == "refine" else k) if self.guard is True else int(self.guard)


class Kept(NamedTuple):
    """What a selection keeps of each query's own, [T] float64: keys, attention (None where unknown), lost score."""

    recall: Tensor
    mass: Tensor | None
    regret: Tensor


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries of a ranked window as tensors, and the attention of their layer where it is known, [T, N]."""

    ranked: Ranked
    mass: Tensor | None

    @cached_property
    def rank(self) -> Tensor:
        return torch.from_numpy(self.ranked.rank)

    @cached_property
    def count(self) -> Tensor:
        return torch.from_numpy(self.ranked.count)

    @cached_property
    def order(self) -> Tensor:
        """[T, N] positions, a query's best key first."""
        return order_of(self.rank)

    @cached_property
    def scores(self) -> Tensor:
        """[T, N] float32, 0 where a query may not select."""
        return torch.from_numpy(self.ranked.scores).nan_to_num(nan=0.0)

    @cached_property
    def _mass_so_far(self) -> tuple[Tensor, Tensor]:
        """The attention of the first n keys of each query's own order, and of its best n keys, [T, N] float64."""
        own = self.mass.gather(1, self.order).double().cumsum(1)
        return own, self.mass.sort(dim=1, descending=True).values.double().cumsum(1)

    @cached_property
    def _score_so_far(self) -> Tensor:
        return self.scores.gather(1, self.order).double().cumsum(1)

    @property
    def nbytes(self) -> int:
        """What the cached tensors take, about."""
        return self.rank.numel() * (8 + 4 + 8 + (0 if self.mass is None else 20))

    def size(self, k: int) -> Tensor:
        """Keys that each query selects itself, [T]."""
        return self.count.clamp(max=k)

    @cached_property
    def some(self) -> Tensor:
        """[T] bool: the queries that may select at all; means are over them."""
        return self.count > 0

    def mean(self, values: Tensor) -> float:
        """Over the queries that select; NaN without one."""
        return float(values[self.some].double().mean())

    def own(self, k: int) -> Tensor:
        """[T, k] positions that each query selects itself, -1 beyond."""
        beyond = torch.arange(min(k, self.order.shape[1])) >= self.count[:, None]
        return self.order[:, :k].masked_fill(beyond, -1)

    def tail(self, row: int) -> dict[str, np.ndarray]:
        """A query's scores in order: each as a share of the best, and the share of all score that is so far.

        With attention also its sum so far. That of the last row is kept: k, c and g leave it as it is.
        """
        if self._tail[0] != row:
            count, order = int(self.ranked.count[row]), self.order[row]
            ordered = self.scores[row][order[:count]].numpy()
            best = float(ordered[0]) if count and ordered[0] > 0 else 1.0
            so_far = index_metrics.mass_curve(self.scores[row][None])[0, :count].numpy()
            tail = {"score": ordered / best, "so_far": so_far}
            if self.mass is not None:
                tail["attention"] = self.mass[row][order[:count]].double().cumsum(0).numpy()
            self._tail[:] = row, tail
        return self._tail[1]

    @cached_property
    def _tail(self) -> list:
        return [-1, None]

    def own_mass(self, k: int) -> tuple[Tensor, Tensor]:
        """Attention of each query's own selection, and of the best there is with as many keys, [T]."""
        last = (self.size(k) - 1).clamp(min=0)[:, None]
        return tuple(part.gather(1, last)[:, 0] * self.some for part in self._mass_so_far)

    def recall(self, positions: Tensor, k: int) -> Tensor:
        """The share of each query's own keys that is among positions [T, *], -1 for none; [T] float64."""
        hits = ((self.rank.gather(1, positions.clamp(min=0)) < k) & (positions >= 0)).sum(1)
        return hits.double() / self.size(k).clamp(min=1)

    def attention(self, positions: Tensor) -> Tensor:
        """The attention that positions [T, *] get, [T] float64."""
        return self.mass.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, 0.0).sum(1, dtype=torch.float64)

    def kept(self, positions: Tensor, k: int) -> Kept:
        """What a selection keeps; regret is the share of the own selection's score that it lacks."""
        best = self._score_so_far.gather(1, (self.size(k) - 1).clamp(min=0)[:, None])[:, 0]
        score = (
            self.scores.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, 0.0).sum(1, dtype=torch.float64)
        )
        regret = torch.where(best > 0, 1 - score / best, 0.0).clamp(min=0)
        return Kept(self.recall(positions, k), None if self.mass is None else self.attention(positions), regret)


class Lane:
    """One search a group: how the proxy of every group of g queries ranks the keys; asked by its own window alone.

    Attributes:
        groups: The groups. rank: [G, N] int32, count: [G] keys that are ranked. of: [T] each query's group.
    """

    def __init__(self, groups: Groups, rank: Tensor, count: Tensor):
        self.groups, self.rank, self.count = groups, rank, count
        self.of = torch.from_numpy(np.repeat(np.arange(len(groups)), groups.stop - groups.start))
        self._levels: tuple = (None, None)
        self._along: dict[str, tuple] = {}  # name -> (what it was made of, values along an order)

    @classmethod
    def joined(cls, groups: Groups, parts: list[Ranking]) -> Lane:
        """From rankings of neighbouring groups."""
        return cls(groups, *(torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("rank", "count")))

    @cached_property
    def order(self) -> Tensor:
        return order_of(self.rank)

    @property
    def nbytes(self) -> int:
        return self.rank.numel() * BYTES_A_KEY + sum(values.nbytes for _, values in self._along.values())

    def levels(self, rule: Rule) -> Tensor:
        """The least budget of every key, [G, N]; those of the last window and phase are kept."""
        wanted = rule.window, rule.phase
        if self._levels[0] != wanted:
            self._levels = wanted, refine_levels(self.rank, self.groups, *wanted, self.order)
        return self._levels[1]

    def dense(self, mode: str, k: int, rule: Rule) -> Tensor:
        """[T] bool: which queries are on the dense path."""
        return torch.from_numpy(self.groups.are_dense(rule.shortest(mode, k)))[self.of]

    def budgets(self, k: int, rule: Rule) -> Tensor:
        """[T]: the budget of each query; on the dense path every key is a candidate."""
        return torch.full_like(self.of, min(rule.budget, NEVER - 1)).masked_fill(self.dense("refine", k, rule), NEVER)

    def _first(self, name: str, of: tuple, columns: int, n_keys: int, make: Callable[[int], Tensor]) -> Tensor:
        """At least so many columns of what `make(columns)` gathers; the last of a name are kept, if they are few."""
        known_of, known = self._along.get(name, (None, None))
        if known_of == of and known.shape[1] >= min(columns, n_keys):
            return known
        made = make(min(n_keys, max(FIRST_COLUMNS, 1 << (columns - 1).bit_length())))
        if made.shape[1] <= KEPT_COLUMNS:
            self._along[name] = of, made
        return made

    def own_levels(self, queries: Queries, rule: Rule, columns: int) -> Tensor:
        """The least budgets of the first keys of each query's own order, [T, >= columns]; NEVER beyond its keys."""

        def make(columns: int) -> Tensor:
            found = self.levels(rule).take(queries.order[:, :columns] + (self.of * self.rank.shape[1])[:, None])
            return found.masked_fill(torch.arange(columns) >= queries.count[:, None], NEVER)

        return self._first("levels", (rule.window, rule.phase), columns, queries.order.shape[1], make)

    def own_ranks(self, queries: Queries, columns: int) -> Tensor:
        """How each query itself ranks the first keys of its proxy's order, [T, >= columns]; NEVER beyond them."""

        def make(columns: int) -> Tensor:
            beyond = torch.arange(columns) >= self.count[self.of, None]
            return queries.rank.gather(1, self.order[:, :columns][self.of]).masked_fill(beyond, NEVER)

        return self._first("ranks", (), columns, queries.order.shape[1], make)

    def refine(self, queries: Queries, k: int, rule: Rule) -> Tensor:
        """[T, k] positions that Refine selects, -1 for none."""
        columns, budgets = 2 * k, self.budgets(k, rule)
        while True:
            levels = self.own_levels(queries, rule, columns)[:, :columns]
            if (places := places_in(levels, queries.count, k, budgets)) is not None:
                return queries.order.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)
            columns *= 2

    def reuse(self, queries: Queries, k: int, rule: Rule) -> Tensor:
        """[T, k] positions that Reuse selects, -1 for none."""
        order = self.order[:, :k]
        shared = order.masked_fill(torch.arange(order.shape[1]) >= self.count[:, None], -1)[self.of]
        return torch.where(self.dense("reuse", k, rule)[:, None], queries.own(k), shared)

    def select(self, mode: str, queries: Queries, k: int, rule: Rule) -> Tensor:
        return self.refine(queries, k, rule) if mode == "refine" else self.reuse(queries, k, rule)

    def refine_recalls(self, queries: Queries, k: int, rules: list[Rule]) -> list[float]:
        """Mean recall of Refine with rules that differ in their budget: an own key is found where it is a candidate."""
        found = self.own_levels(queries, rules[0], k)[:, :k].numpy()
        size, some = queries.size(k).clamp(min=1).numpy(), queries.some.numpy()
        out = []
        for rule in rules:
            recall = np.count_nonzero(found <= min(rule.budget, NEVER - 1), axis=1) / size
            recall[self.dense("refine", k, rule).numpy()] = 1.0
            out.append(float(recall[some].mean()) if some.any() else np.nan)
        return out

    def reuse_recall(self, queries: Queries, k: int, rule: Rule) -> float:
        """Mean recall of Reuse: the share of the proxy's keys that a query has among its own."""
        found = np.count_nonzero(self.own_ranks(queries, k)[:, :k].numpy() < k, axis=1)
        recall, some = found / queries.size(k).clamp(min=1).numpy(), queries.some.numpy()
        recall[self.dense("reuse", k, rule).numpy()] = 1.0
        return float(recall[some].mean()) if some.any() else np.nan


def listed(queries: Queries, k: int, levels: Tensor, budget: int) -> Tensor:
    """[T, k] positions of each query's best keys of a level up to a budget: HISA, and MISA with re-ranking."""
    rows = torch.arange(len(levels))
    places = first_places(queries.order, queries.count, k, levels, rows, torch.full_like(rows, budget))
    return queries.order.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)


def told_apart(positions: Tensor, own: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of one query, ascending: in both selections, in its own alone, in the other alone."""
    found, wanted = (np.unique(part[part >= 0].numpy()) for part in (positions, own))
    both = np.intersect1d(found, wanted, assume_unique=True)
    return both, np.setdiff1d(wanted, both, assume_unique=True), np.setdiff1d(found, both, assume_unique=True)
