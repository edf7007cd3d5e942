"""What a selection has to do, counted from its rows and groups: products of scoring, and bytes that move.

By definition alone, whatever a kernel does: a key is scored by a query in H (D + 1) multiply-adds (the dot products,
and the weighted sum of heads). Bytes are a lower bound: every pass over the keys reads them once, Refine's and HISA's
and MISA's second pass its candidates once a group or query; scores are float32, written once and read once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .groups import Groups

SCORE_BYTES = 2 * 4


class Shape(NamedTuple):
    """H heads of D numbers of `item` bytes, and how many keys N there are."""

    heads: int
    dim: int
    keys: int
    item: int

    @property
    def products(self) -> int:
        """Multiply-adds of scoring one key."""
        return self.heads * (self.dim + 1)


class Cost(NamedTuple):
    """Multiply-adds of the scan, of what chooses for it (proxies, block sums, a router), of re-scoring; bytes."""

    scan: int
    choose: int
    rescore: int
    bytes: int

    @property
    def operations(self) -> int:
        return self.scan + self.choose + self.rescore


def dense(shape: Shape, count: np.ndarray) -> Cost:
    """Every query scores its keys.

    Args:
        count: [T] keys that each may select, hi - lo.

    >>> dense(Shape(2, 4, 10, 4), np.array([9, 10]))
    Cost(scan=190, choose=0, rescore=0, bytes=312)
    """
    keys = int(count.sum())
    return Cost(shape.products * keys, 0, 0, _keys(shape, shape.keys) + SCORE_BYTES * keys)


def pivot(
    shape: Shape,
    count: np.ndarray,
    groups: Groups,
    *,
    topk: int,
    mode: str,
    budget: int,
    window: int,
    proxy: str = "mean",
    guard: bool | int = True,
    phase: str = "prefill",
) -> Cost:
    """Groups of `pivot_topk` with these arguments: a scan each by its proxy, by every member where it is dense."""
    shortest = (budget if mode == "refine" else topk) if guard is True else int(guard)
    alone = groups.are_dense(shortest)
    some = groups.those(~alone)
    members = some.stop - some.start
    prefix = some.hi - some.lo
    start = np.maximum(some.lo, some.hi - window)
    outside = start - some.lo if mode == "refine" and phase == "prefill" else prefix
    scanned = int(count[groups.rows(alone)].sum() + outside.sum())
    chosen = int(members.sum()) * shape.heads * (shape.dim + 1) if proxy == "mean" else 0
    scores, moved, rescored = scanned, _keys(shape, shape.keys), 0
    if mode == "refine":
        recent = some.hi_last - start
        room = np.maximum(budget - recent, 0) if phase == "prefill" else np.full(len(some), budget)
        older = np.minimum(room, start - some.lo)  # in decode at most: the best may be of the window
        listed = older + recent
        rescored = int((members * listed).sum())
        moved += _keys(shape, int(listed.sum()))
        scores += rescored
    return Cost(shape.products * scanned, chosen, shape.products * rescored, moved + SCORE_BYTES * scores)


def hisa(shape: Shape, count: np.ndarray, *, block: int, blocks: int) -> Cost:
    """Sums of all keys once, scores of their blocks, and keys of the chosen blocks for every query."""
    there = -(-count // block)
    scanned = int(np.maximum(there - 2, 0).sum())
    listed = int(np.minimum(np.minimum(blocks, there) * block, count).sum())
    moved = _keys(shape, shape.keys + shape.keys // block + listed) + SCORE_BYTES * (scanned + listed)
    return Cost(shape.products * scanned, shape.keys * shape.dim, shape.products * listed, moved)


def misa(shape: Shape, count: np.ndarray, *, heads: int, block: int, rerank: int | None = None) -> Cost:
    """A router over sums of blocks, a scan with few heads, and with `rerank` all heads for its best keys."""
    if heads >= shape.heads:
        return dense(shape, count)
    scanned, full = int(count.sum()), int(np.maximum(count // block, 1).sum())
    listed = int(np.minimum(count, rerank).sum()) if rerank is not None else 0
    routed = shape.keys * shape.dim + full * shape.heads * shape.dim
    moved = _keys(shape, shape.keys + shape.keys // block + listed) + SCORE_BYTES * (scanned + listed)
    return Cost(heads * (shape.dim + 1) * scanned, routed, shape.products * listed, moved)


def _keys(shape: Shape, count: int) -> int:
    return count * shape.dim * shape.item
