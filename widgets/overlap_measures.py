"""How alike the queries of a window choose: their selections as bits, compared by counting. No drawing.

A window is ranked once; then any k is a comparison, a selection of N keys takes N / 8 bytes, and what two queries share
is a count of bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from qp_kernels.pivot.groups import cut
from widgets.ranked_windows import GROUPS, Ranked


@dataclass(frozen=True, eq=False)
class Chosen:
    """What the queries of a window select at one k.

    Attributes:
        ranked: The window. k: Keys a query. bits: [T, words] uint64: one bit a key. size: [T] keys selected.
    """

    ranked: Ranked
    k: int
    bits: np.ndarray
    size: np.ndarray

    @classmethod
    def at(cls, ranked: Ranked, k: int) -> Chosen:
        bytes_ = np.packbits(ranked.rank < k, axis=1, bitorder="little")
        padded = np.zeros((len(bytes_), -(-bytes_.shape[1] // 8) * 8), np.uint8)
        padded[:, : bytes_.shape[1]] = bytes_
        return cls(ranked, k, padded.view(np.uint64), np.minimum(ranked.count, k))

    @property
    def share(self) -> float:
        """What part of its keys a query selects, in the mean: what two queries would share by chance."""
        some = self.ranked.count > 0
        return float((self.size[some] / self.ranked.count[some]).mean()) if some.any() else np.nan

    @property
    def tied(self) -> int:
        """Queries whose last selected key scores as one that is left out: there the position decides."""
        last = np.minimum(self.k, self.ranked.rank.shape[1]) - 1
        return int((self.ranked.equal[:, last] & (self.ranked.count > self.k)).sum())

    def keys(self, row: int) -> np.ndarray:
        """Positions that a row of the window selects, ascending."""
        return np.flatnonzero(self.ranked.rank[row] < self.k)

    @cached_property
    def overlap(self) -> np.ndarray:
        """[T, T]: keys that two queries share over the larger of their selections; NaN where one selects none."""
        T = len(self.size)
        shared = np.zeros((T, T))
        for t in range(T):
            shared[t, t:] = shared[t:, t] = np.bitwise_count(self.bits[t] & self.bits[t:]).sum(1, dtype=np.int64)
        larger = np.maximum(self.size[:, None], self.size).astype(np.float64)
        larger[(self.size[:, None] == 0) | (self.size == 0)] = np.nan
        return shared / larger

    @cached_property
    def by_distance(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances [tokens] that occur, ascending, and the mean overlap of all pairs of queries so far apart."""
        first, second = np.triu_indices(len(self.size), 1)
        apart = np.abs(self.ranked.positions[second] - self.ranked.positions[first])
        overlap = self.overlap[first, second]
        usable = (self.ranked.lo[first] == self.ranked.lo[second]) & (apart > 0) & ~np.isnan(overlap)
        distances, which = np.unique(apart[usable], return_inverse=True)
        counts = np.bincount(which, minlength=len(distances))
        return distances, np.bincount(which, overlap[usable], len(distances)) / np.maximum(counts, 1)

    @cached_property
    def near(self) -> np.ndarray:
        """Rows whose next one is a neighbour, `ranked.step` tokens apart in the same sequence; both select keys."""
        ranked = self.ranked
        near = np.flatnonzero((np.diff(ranked.positions) == ranked.step) & (ranked.lo[1:] == ranked.lo[:-1]))
        return near[(self.size[near] > 0) & (self.size[near + 1] > 0) & (ranked.step > 0)]

    @cached_property
    def adjacent(self) -> float:
        """Mean overlap of neighbouring queries; NaN without any."""
        near = self.near
        if not len(near):
            return np.nan
        shared = np.bitwise_count(self.bits[near] & self.bits[near + 1]).sum(1, dtype=np.int64)
        return float((shared / np.maximum(self.size[near], self.size[near + 1])).mean())

    def groups(self, g: int) -> np.ndarray:
        """First rows of the whole groups of g neighbours that PIVOT would form from the window's first query on.

        Groups with a query that selects nothing are left out.
        """
        found = cut(torch.from_numpy(self.ranked.lo), torch.from_numpy(self.ranked.hi), g)
        starts = found.start[found.stop - found.start == g]
        return starts[(self.size[starts[:, None] + np.arange(g)] > 0).all(1)]

    def union_and_joint(self, g: int) -> tuple[float, float]:
        """Keys that any member of a group selects, and that all do, over k in the mean of the groups; NaN without one.

        k is the mean size of the members' selections, which is less than k where they have fewer keys.
        """
        starts = self.groups(g)
        if not len(starts):
            return np.nan, np.nan
        members = starts[:, None] + np.arange(g)
        some, every = self.bits[starts], self.bits[starts]
        for member in range(1, g):
            some = some | self.bits[starts + member]
            every = every & self.bits[starts + member]
        mean = self.size[members].mean(1)
        union, joint = (np.bitwise_count(part).sum(1, dtype=np.int64) / mean for part in (some, every))
        return float(union.mean()), float(joint.mean())

    @cached_property
    def over_g(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Group sizes of which the window has whole groups; union / k and joint / k of each."""
        sizes = [g for g in GROUPS if g <= len(self.size)]
        found = [(g, *self.union_and_joint(g)) for g in sizes]
        found = np.array([one for one in found if not np.isnan(one[1])]).reshape(-1, 3)
        return found[:, 0].astype(np.int64), found[:, 1], found[:, 2]


def chance_union(share: float, g) -> np.ndarray:
    """Union / k of g queries that each select a share of the keys at random."""
    g = np.asarray(g, np.float64)
    return (1 - (1 - share) ** g) / share if share > 0 else np.full(g.shape, np.nan)


def chance_joint(share: float, g) -> np.ndarray:
    """Joint / k of such queries."""
    return share ** (np.asarray(g, np.float64) - 1)
