"""Measures of one row of scores, in plain torch: how Gaussian it is, and where it is not."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Moments(NamedTuple):
    """Mean and standard deviation (ddof 0, unit of the row), skewness and excess kurtosis (both 0 for a Gaussian)."""

    mean: float
    std: float
    skew: float
    excess_kurtosis: float


def moments(row: torch.Tensor) -> Moments:
    """Moments of the finite entries of a row.

    Args:
        row: [N] any float dtype; ±inf and NaN are left out.
    Returns:
        Moments in float64. Without a finite entry all are NaN; with σ = 0, skew and kurtosis are 0.
    """
    finite = torch.isfinite(row)
    x = (row if finite.all() else row[finite]).double()
    if x.numel() == 0:
        return Moments(*[float("nan")] * 4)
    mean = x.mean()
    z = x - mean
    std = (torch.dot(z, z) / len(z)).sqrt()
    if std == 0:
        return Moments(mean.item(), 0.0, 0.0, 0.0)
    z /= std
    squared = z.square()
    skew, kurtosis = torch.dot(squared, z) / len(z), torch.dot(squared, squared) / len(z)
    return Moments(mean.item(), std.item(), skew.item(), kurtosis.item() - 3.0)


def quantile_pairs(descending: torch.Tensor, points: int = 160) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ranks, normal quantiles and values of a row for a QQ plot, dense in both tails.

    Args:
        descending: [N] finite values, largest first.
        points: About how many pairs to return.
    Returns:
        ranks [M] int64 (0 = largest), theory [M] = Φ⁻¹(1 − (rank + ½)/N), values [M]; float64, ranks increasing.
    """
    n = descending.numel()
    if n == 0:
        empty = torch.empty(0, dtype=torch.float64)
        return empty.long(), empty, empty
    decades = math.log10((n + 1) / 2)
    tail = torch.logspace(0, decades, points // 2, dtype=torch.float64).round().long() - 1
    ranks = torch.cat([tail, n - 1 - tail]).clamp_(0, n - 1).unique()
    theory = -torch.special.ndtri((ranks.double() + 0.5) / n)
    return ranks, theory, descending[ranks].double()
