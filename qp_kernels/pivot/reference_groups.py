"""Index selection in plain torch as the public functions call it: dense, Reuse, Refine, and re-scored lists."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .checks import Problem
from .groups import Groups
from .reference import best, dense, dequantised, dequantised_keys, rescored, rounded

__all__ = ["block_sums", "dense", "reuse", "refine", "rescored_each"]


def proxies(problem: Problem, groups: Groups, kind: str) -> Problem:
    """One query a group, which may select the keys of its group's first member.

    "mean" is the sum of the members' queries and weights, which ranks as their mean does and is exact for integers:
    de-quantised, added in row order in float32, and rounded to the dtype of q.
    """
    bounds = {"lo": torch.from_numpy(groups.lo), "hi": torch.from_numpy(groups.hi)}
    if kind != "mean":
        rows = groups.start if kind == "first" else groups.stop - 1
        return replace(problem.rows(torch.from_numpy(rows)), **bounds)
    q = dequantised(problem.q, problem.q_scale)
    sums, weights = [], []
    for group in groups:
        total, weight = q[group.start].clone(), problem.w[group.start].clone()
        for t in range(group.start + 1, group.stop):
            total += q[t]
            weight += problem.w[t]
        sums.append(total)
        weights.append(weight)
    q, scale = rounded(torch.stack(sums), problem.q.dtype)
    return replace(problem, q=q, w=torch.stack(weights), q_scale=scale, **bounds)


def reuse(problem: Problem, groups: Groups, kind: str) -> Tensor:
    """Every member takes its proxy's topk: [T, topk] int32."""
    counts = torch.from_numpy(groups.stop - groups.start).to(problem.q.device)
    return dense(proxies(problem, groups, kind)).repeat_interleave(counts, dim=0)


def refine(problem: Problem, groups: Groups, kind: str, budget: int, window: int, phase: str) -> Tensor:
    """Every member takes its own topk of its proxy's candidates, in which the window always is: [T, topk] int32."""
    proxy = proxies(problem, groups, kind)
    starts = [max(one.lo, one.hi - window) for one in groups]
    if phase == "prefill":  # the window counts inside the budget, and the proxy ranks what is outside
        proxy = replace(proxy, hi=torch.tensor(starts, dtype=torch.int64, device="cpu"))
    result = []
    for one, start, order in zip(groups, starts, best(proxy, budget), strict=True):
        recent = torch.arange(start, one.hi_last, device=order.device)
        room = budget - len(recent) if phase == "prefill" else budget
        candidates = torch.cat([order[: max(0, room)], recent])
        candidates = candidates[candidates >= 0].unique()  # ascending
        result.append(rescored(problem.rows(slice(one.start, one.stop)), candidates))
    return torch.cat(result)


def rescored_each(problem: Problem, lists: Tensor) -> Tensor:
    """Every row's topk of its own list of positions [T, c] int32, ascending, -1 anywhere: [T, topk] int32."""
    result = torch.full((len(problem), problem.topk), -1, dtype=torch.int32, device=lists.device)
    for t, positions in enumerate(lists):
        result[t] = rescored(problem.rows(slice(t, t + 1)), positions[positions >= 0].long())[0]
    return result


def block_sums(problem: Problem, start: int, block: int) -> tuple[Tensor, Tensor | None]:
    """The sums of the full blocks of keys from `start` on, as keys: [n, D] in the dtype of k, and their scales [n]."""
    n = (problem.keys - start) // block
    k = dequantised_keys(problem, slice(start, start + n * block))
    return rounded(k.unflatten(0, (n, block)).sum(1), problem.k.dtype)
