"""The whole order of every query's keys: with it a selection for any k is a comparison, without a scan."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks, reference
from .checks import Problem


class Ranking(NamedTuple):
    """Where each key stands in a row's order, score descending and position ascending.

    Attributes:
        rank: [T, N] int32: a row's best key has 0; `NEVER` where a row may not select a key, or its score is NaN.
        equal: [T, N] bool: whether the key of rank r scores as the key of rank r + 1 does.
        count: [T] int64: keys that a row may select.
        scores: [T, N] float32; NaN where a row may not select a key.
    """

    rank: Tensor
    equal: Tensor
    count: Tensor
    scores: Tensor


NEVER = torch.iinfo(torch.int32).max


@reference.in_float32
def rank_keys(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
) -> Ranking:
    """Rank all keys of every query: row t of `dense_topk` holds the keys with rank < topk.

    Args:
        q, k, w, q_scale, k_scale, lo, hi, backend: As `dense_topk` takes them. The scores are made by the back-end,
            the order by torch.
    Returns:
        `Ranking`, on the device of q. At most about 64 T N bytes exist at once.
    Raises:
        As `dense_topk`.

    Ties: lowest position. NaN is never selected.

    >>> rank_keys(torch.ones(1, 1, 1), torch.tensor([[1.0], [3.0], [2.0], [3.0]]), torch.ones(1, 1)).rank.tolist()
    [[3, 0, 2, 1]]
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": backend, "max_bytes": 1}
    return rank(checks.problem(q, k, w, 1, **options))


def rank(problem: Problem) -> Ranking:
    """`rank_keys` of a checked problem, whose topk counts for nothing."""
    device, place = problem.q.device, torch.arange(problem.keys, device=problem.q.device)
    low, high = problem.lo.to(device)[:, None], problem.hi.to(device)[:, None]
    scores = _scores(problem, place, low)
    eligible = (place >= low) & (place < high) & ~scores.isnan()
    # Below every score, infinite ones too.
    keys = reference.order_keys(scores).masked_fill(~eligible, torch.iinfo(torch.int64).min)
    keys, order = keys.sort(dim=1, descending=True, stable=True)
    ranks = torch.empty(keys.shape, dtype=torch.int32, device=device)
    ranks.scatter_(1, order, place.int().expand_as(order))
    count = eligible.sum(1)
    equal = torch.zeros_like(eligible)
    equal[:, :-1] = (keys[:, 1:] == keys[:, :-1]) & (place[1:] < count[:, None])
    return Ranking(ranks.masked_fill_(~eligible, NEVER), equal, count, scores.masked_fill(~eligible, torch.nan))


def _scores(problem: Problem, place: Tensor, low: Tensor) -> Tensor:
    """[T, N] float32, undefined where a row may not select."""
    if problem.backend == "torch":
        return reference.scores(problem)
    from . import launch

    scales = {"q_scale": problem.q_scale, "k_scale": problem.k_scale}
    scanned = launch.scan(problem.q, problem.k, problem.w, **scales, lo=problem.lo, hi=problem.hi)
    if not scanned.shape[1]:
        return torch.zeros(len(problem), problem.keys, device=problem.q.device)
    return scanned.gather(1, (place - low).clamp(0, scanned.shape[1] - 1))
