"""From which budget on a key is a candidate: with it, any topk and budget is a comparison, without a scan.

`ranking.rank_keys` does that for dense selection; here are the orders that PIVOT's proxies, MISA's few heads and HISA's
blocks of keys make, and `first_places`, which selects from them what the public functions select.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from . import checks, rivals
from .api import PHASES, engine_of
from .groups import PROXIES, Groups, cut
from .ranking import NEVER, Ranking, rank
from .reference import in_float32

ALWAYS = 0


@in_float32
def rank_proxies(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    group: int,
    proxy: str = "mean",
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Groups, Ranking]:
    """The groups that `pivot_topk` forms, and how the proxy of each ranks the keys of its first member, [G, N].

    Args:
        q, k, w, q_scale, k_scale, lo, hi, backend: As for `pivot_topk`. group: g >= 1. proxy: "mean", "first", "last".
    Raises:
        As `pivot_topk`.

    Reuse takes the keys with rank < topk; `refine_levels` gives the candidates of Refine.
    """
    problem = _problem(q, k, w, q_scale=q_scale, k_scale=k_scale, lo=lo, hi=hi, backend=backend)
    checks.one_of("proxy", proxy, PROXIES)
    groups = cut(problem.lo, problem.hi, checks.whole("group", group, 1))
    return groups, rank(engine_of(problem).proxies(problem, groups, proxy))


def refine_levels(
    ranks: Tensor, groups: Groups, window: int, phase: str = "prefill", order: Tensor | None = None
) -> Tensor:
    """The least budget with which a key is among a group's candidates: [G, N] int32; NEVER where none is enough.

    Args:
        ranks: [G, N] as `rank_proxies` gives them. groups: Their groups. window: W >= g. phase: "prefill" or "decode".
        order: `order_of(ranks)`, where it is at hand.

    The window's keys are always candidates (0). Members besides see nothing at or beyond their own end.
    """
    checks.one_of("phase", phase, PHASES)
    place = torch.arange(ranks.shape[1], device=ranks.device)
    lo, hi, last = (torch.from_numpy(x).to(ranks.device)[:, None] for x in (groups.lo, groups.hi, groups.hi_last))
    start = torch.maximum(lo, hi - window)
    recent = (place >= start) & (place < last)
    levels = ranks.clone()
    if phase == "prefill":  # the window counts inside the budget, and the proxy ranks what is outside
        order = order_of(ranks) if order is None else order
        outside = (order < start) & (ranks.gather(1, order) < NEVER)
        level = outside.int().cumsum(1, dtype=torch.int32) + (last - start).int()
        levels.scatter_(1, order, level.masked_fill_(~outside, NEVER))
    else:
        levels = torch.where(ranks < NEVER, ranks + 1, ranks)
    return levels.masked_fill_(recent, ALWAYS)


@in_float32
def rank_few_heads(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    heads: int = 8,
    block: int = 1024,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
) -> Ranking:
    """How every query ranks its keys with the heads that MISA's router chooses, [T, N].

    Args:
        As for `misa_topk`, which takes the keys with rank < topk, and with `rerank` leaves those with rank < rerank.
    Raises:
        As `misa_topk`.
    """
    problem = _problem(q, k, w, q_scale=q_scale, k_scale=k_scale, lo=lo, hi=hi, backend=backend)
    heads, block = checks.whole("heads", heads, 1), checks.whole("block", block, 1)
    return rank(rivals.routed(problem, heads, min(block, max(1, problem.keys))) if heads < q.shape[1] else problem)


@in_float32
def block_levels(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    block: int = 128,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The least `blocks` of `hisa_topk` with which a query scores a key, [T, N] int32; NEVER where it may not.

    Args:
        As for `hisa_topk`. The first and the last block have 2, the best one between them 3.
    Raises:
        As `hisa_topk`.
    """
    problem = _problem(q, k, w, q_scale=q_scale, k_scale=k_scale, lo=lo, hi=hi, backend=backend)
    block = min(checks.whole("block", block, 1), max(1, problem.keys))
    device = problem.q.device
    place = torch.arange(problem.keys, device=device)
    result = torch.full((len(problem), problem.keys), NEVER, dtype=torch.int32, device=device)
    for start, rows in rivals.by_start(problem):
        part = problem.rows(rows)
        sums, scale = engine_of(problem).block_sums(problem, start, block)
        count = ((part.hi - start).clamp(min=0) + block - 1) // block
        between = replace(
            part, k=sums, k_scale=scale, lo=(count * 0 + 1).clamp(max=len(sums)), hi=(count - 1).clamp(min=0)
        )
        levels = _levels_of_blocks(rank(between) if len(sums) else None, count.to(device)[:, None])
        number = ((place - start).clamp(min=0) // block).clamp(max=levels.shape[1] - 1)
        visible = (place >= start) & (place < part.hi.to(device)[:, None])
        result[rows.to(device)] = levels[:, number].masked_fill(~visible, NEVER)
    return result


def _levels_of_blocks(between: Ranking | None, count: Tensor) -> Tensor:
    """[T, blocks + 1] int32 from the ranks of the blocks between the first and the last of `count` [T, 1]."""
    if between is None:  # no block is full
        return torch.full((len(count), 1), 2, dtype=torch.int32, device=count.device)
    ranks = torch.cat([between.rank, torch.full_like(between.rank[:, :1], NEVER)], 1)
    number = torch.arange(ranks.shape[1], device=count.device)
    ends = (number == 0) | (number == count - 1)
    is_nan = (ranks == NEVER) & ~ends & (number < count)  # behind all others, by number
    behind = between.count[:, None] + is_nan.cumsum(1) - 1
    ranks = torch.where(is_nan, behind.int(), ranks)
    return torch.where(ends, 2, torch.where(ranks < NEVER, ranks + 3, ranks)).int()


def order_of(ranks: Tensor) -> Tensor:
    """The positions of each row in the order of its ranks [R, N]; those that have none come last. [R, N] int64."""
    return ranks.sort(dim=1, stable=True).indices


def first_places(order: Tensor, count: Tensor, topk: int, levels: Tensor, of: Tensor, budget: Tensor) -> Tensor:
    """Where in their own order the rows find their topk candidates: [T, topk] int64, ascending, with a tail of -1.

    Args:
        order: [T, N] positions as each row ranks them itself (`order_of`); count: [T] how many it may select.
        topk: Keys selected, >= 1. levels: [G, N] the least budget of each key. of: [T] which row of them counts.
        budget: [T]: keys of a level up to it are candidates; NEVER makes all of them candidates, as in dense selection.
    Returns:
        Places p: row t selects the keys order[t, p[t]]. p < topk are those that dense selection takes as well.
    """
    columns = min(order.shape[1], 2 * topk)
    while True:
        some = levels.take(order[:, :columns] + (of * levels.shape[1])[:, None])
        if (places := places_in(some, count, topk, budget)) is not None:
            return places
        columns = min(order.shape[1], 2 * columns)


def places_in(levels: Tensor, count: Tensor, topk: int, budget: Tensor) -> Tensor | None:
    """`first_places` from the levels of the first keys of each row's own order, [T, C]; None if C is too few."""
    T, columns = levels.shape
    column = torch.arange(columns, device=levels.device)
    is_candidate = (levels <= budget[:, None]) & (column < count[:, None])
    number = is_candidate.cumsum(1, dtype=torch.int32)
    if not bool(((number[:, -1] >= topk) | (count <= columns)).all()):
        return None
    found = torch.full((T, topk + 1), -1, dtype=torch.int64, device=levels.device)
    # What is beyond topk goes to a column that is cut off.
    there = torch.where(is_candidate & (number <= topk), number - 1, topk).long()
    found.scatter_(1, there, column.expand(T, -1))
    return found[:, :topk]


def _problem(q, k, w, **options) -> checks.Problem:
    return checks.problem(q, k, w, 1, max_bytes=rivals.MAX_BYTES, **options)
