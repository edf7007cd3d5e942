"""Measures of index selections, in plain torch: how alike neighbouring queries choose, and what a selection loses.

A selection is [T, topk] positions, ascending and unique, with a tail of -1, as `qp_kernels.pivot` returns it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NOBODY = torch.iinfo(torch.int64).max


def common(a: Tensor, b: Tensor) -> Tensor:
    """How many positions two selections [T, *] of the same rows share, [T] int64."""
    a, b = a.long(), b.long().masked_fill(b < 0, NOBODY)
    place = torch.searchsorted(b.contiguous(), a.contiguous()).clamp(max=b.shape[1] - 1)
    return ((b.gather(1, place) == a) & (a >= 0)).sum(1)


def size(indices: Tensor) -> Tensor:
    """How many keys each row of a selection [T, topk] has, [T] int64."""
    return (indices >= 0).sum(1)


def recall(found: Tensor, wanted: Tensor) -> Tensor:
    """The share of each row's wanted keys that was found, [T] float64; 1 where none is wanted.

    >>> recall(torch.tensor([[1, 2], [0, -1]]), torch.tensor([[2, 3], [-1, -1]]))
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    n = size(wanted)
    return (common(found, wanted).double() / n.clamp(min=1)).masked_fill(n == 0, 1.0)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Keys that two selections share, as a share of the larger, [T] float64; 1 where both are empty."""
    n = torch.maximum(size(a), size(b))
    return (common(a, b).double() / n.clamp(min=1)).masked_fill(n == 0, 1.0)


def overlap_by_distance(indices: Tensor, distances: Sequence[int]) -> Tensor:
    """Mean overlap of rows t and t + d for each distance d >= 1, [len(distances)] float64; NaN beyond the rows."""
    found = [overlap(indices[:-d], indices[d:]).mean() for d in distances]
    return torch.stack(found) if found else torch.empty(0, dtype=torch.float64)


def joint_and_union(indices: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """For each whole group of rows: keys that all members share, and keys that any has, over the mean of their sizes.

    Args:
        indices: [T, topk]. group: g >= 1 rows; a rest of fewer rows is left out.
    Returns:
        joint, union: [T // g] float64. Equal rows have 1 and 1, rows without a common key 0 and g, rows without any
        key 0 and 0.
    """
    n = len(indices) // group
    rows = indices[: n * group].long().reshape(n, group * indices.shape[1])
    rows = rows.masked_fill(rows < 0, NOBODY).sort(1).values
    new = torch.ones_like(rows, dtype=torch.bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    there = rows != NOBODY
    union = (new & there).sum(1)
    # Members hold a key once: where it comes g times in a row, all have it.
    every = torch.zeros_like(there)
    every[:, group - 1 :] = there[:, group - 1 :] & (rows[:, group - 1 :] == rows[:, : rows.shape[1] - group + 1])
    mean = there.sum(1).double() / group
    return every.sum(1) / mean.clamp(min=1e-300), union / mean.clamp(min=1e-300)


def captured(mass: Tensor, indices: Tensor) -> Tensor:
    """The sum of each row's mass [T, N] over its selected keys, [T] float64."""
    there = indices >= 0
    if not mass.shape[1]:
        return torch.zeros(len(mass), dtype=torch.float64, device=mass.device)
    return mass.double().gather(1, indices.clamp(min=0).long()).masked_fill(~there, 0.0).sum(1)


def mass_curve(scores: Tensor) -> Tensor:
    """The share of a row's positive score in its n largest, n = 1 .. N: [T, N] float64; zeros without any. NaN is 0."""
    ordered = scores.double().nan_to_num(nan=0.0).clamp(min=0).sort(dim=1, descending=True).values
    total = ordered.sum(1, keepdim=True)
    return torch.where(total > 0, ordered.cumsum(1) / total, 0.0)


def zero_share(scores: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """The share of exact zeros among the scores [T, N] that a row may select, lo[t] <= s < hi[t]; [T] float64."""
    inside = _inside(scores, lo, hi)
    return ((scores == 0) & inside).sum(1) / inside.sum(1).clamp(min=1).double()


def tie_at(scores: Tensor, topk: int, lo: Tensor, hi: Tensor) -> Tensor:
    """How many scores equal the topk-th largest that a row may select, [T] int64; 0 where it has fewer."""
    inside = _inside(scores, lo, hi)
    ordered = scores.masked_fill(~inside, -torch.inf).sort(dim=1, descending=True).values
    if topk > scores.shape[1]:
        return torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    equal = ((scores == ordered[:, topk - 1 : topk]) & inside).sum(1)
    return equal.masked_fill(inside.sum(1) < topk, 0)


def regret(scores: Tensor, found: Tensor, wanted: Tensor) -> Tensor:
    """The share of the wanted keys' score that the found ones lack, [T] float64; 0 where nothing is wanted.

    Args:
        scores: [T, N] of the rows' own queries, not negative. found, wanted: Selections of these rows.
    """
    best = captured(scores, wanted)
    return torch.where(best > 0, 1 - captured(scores, found) / best, 0.0)


def by_member(values: Tensor, group: int) -> Tensor:
    """The mean of [T] values by a row's place in its group of g rows, [g]; a rest of fewer rows is left out."""
    n = len(values) // group
    return values[: n * group].reshape(n, group).double().mean(0)


def own_kept(indices: Tensor, positions: Tensor) -> Tensor:
    """Whether each row selects its own position [T], [T] bool."""
    return (indices.long() == positions[:, None]).any(1)


def speed_up(length: float, *, group: int, budget: int, r: float) -> float:
    """PIVOT-Refine's speed over dense selection by its cost model, g L / (L + r g c).

    A group of g scans L keys once instead of g times, and re-scores c candidates for each member, each r times as
    dear as a key of the scan. Source: arXiv 2607.24593.

    >>> round(speed_up(131_072, group=4, budget=4096, r=3.0), 2)
    2.91
    """
    return group * length / (length + r * group * budget)


def fit_r(lengths: Sequence[float], speed_ups: Sequence[float], *, group: int, budget: int) -> float:
    """r of the cost model from measured speed-ups: least squares in their inverses, 1 / g + r c / L.

    >>> fit_r([8192, 65536], [speed_up(n, group=4, budget=4096, r=2.5) for n in (8192, 65536)], group=4, budget=4096)
    2.5
    """
    if len(lengths) != len(speed_ups) or not len(lengths):
        raise ValueError(f"pass as many lengths as speed-ups, at least one, got {len(lengths)} and {len(speed_ups)}")
    x = [budget / length for length in lengths]
    y = [1 / one - 1 / group for one in speed_ups]
    return sum(a * b for a, b in zip(x, y)) / sum(a * a for a in x)


def _inside(scores: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """[T, N] bool: what each row may select; NaN never is."""
    place = torch.arange(scores.shape[1], device=scores.device)
    inside = (place >= lo.to(scores.device)[:, None]) & (place < hi.to(scores.device)[:, None])
    return inside & ~scores.isnan()
