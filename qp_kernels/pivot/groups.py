"""Query groups: which rows share a proxy, and what the proxy is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import Problem
from .reference import dequantised, rounded

PROXIES = ("mean", "first", "last")


class Group(NamedTuple):
    """Rows start .. stop - 1. first: keys [lo, hi) of the first member; hi_last: where the last member's end."""

    start: int
    stop: int
    lo: int
    hi: int
    hi_last: int


def cut(lo: Tensor, hi: Tensor, size: int) -> list[Group]:
    """Cut rows into groups of `size`: anew at every row whose lo differs, or whose hi is not one more, than before.

    >>> [group[:2] for group in cut(torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 2, 3, 3, 4]), 2)]
    [(0, 2), (2, 3), (3, 5)]
    """
    los, his = lo.tolist(), hi.tolist()
    starts = []
    for t in range(len(los)):
        follows = t > 0 and los[t] == los[t - 1] and his[t] == his[t - 1] + 1
        if not follows or t - starts[-1] == size:
            starts.append(t)
    stops = [*starts[1:], len(los)]
    return [Group(start, stop, los[start], his[start], his[stop - 1]) for start, stop in zip(starts, stops)]


def proxies(problem: Problem, groups: list[Group], kind: str) -> Problem:
    """One query a group, which may select the keys of its group's first member.

    "mean" is the sum of the members' queries and weights, which ranks as their mean does and is exact for integers:
    de-quantised, added in row order in float32, and rounded to the dtype of q.
    """
    bounds = {name: [getattr(one, name) for one in groups] for name in ("lo", "hi")}
    bounds = {name: torch.tensor(ends, dtype=torch.int64, device="cpu") for name, ends in bounds.items()}
    if kind != "mean":
        rows = [one.start if kind == "first" else one.stop - 1 for one in groups]
        return replace(problem.rows(torch.tensor(rows, dtype=torch.int64, device="cpu")), **bounds)
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
