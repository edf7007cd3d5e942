"""Two other ways to cut a distribution, each a single threshold on the logits: min-p and top-n-sigma.

Both are shown beside top-k and top-p. Entries equal to the threshold are kept; NaN and -inf never are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import checks
from .threshold import finite_moments
from .tiling import chunks

INF = math.inf


@torch.no_grad()
def min_p(logits: Tensor, min_p: float | Tensor) -> Tensor:
    """Keep the entries at least `min_p` times as probable as the most probable one.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16, natural-log units.
        min_p: Number in [0, 1], or a float tensor [B]. 0 keeps every eligible entry.
    Returns:
        Bool mask of the shape of logits, True where kept.
    Raises:
        TypeError, ValueError: as `top_k_top_p` does for p.
    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024, arXiv 2407.01082.

    >>> min_p(torch.tensor([0.5, 0.3, 0.2]).log(), 0.5)
    tensor([ True,  True, False])
    """
    return _at_least(logits, min_p_threshold(logits, min_p))


@torch.no_grad()
def min_p_threshold(logits: Tensor, min_p: float | Tensor) -> Tensor:
    """The logit max + ln(min_p) at which `min_p` cuts, [B] float32 (0-d for [V]); -inf for min_p = 0."""
    rows = checks.as_rows(logits)
    share, top = checks.real_rows("min_p", min_p, logits), _maximum(rows)
    value = torch.where(share > 0, top + share.log(), -INF).float()
    return value if logits.ndim == 2 else value[0]


@torch.no_grad()
def top_n_sigma(logits: Tensor, n: float | Tensor) -> Tensor:
    """Keep the entries within n standard deviations of the row's maximum.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16, natural-log units.
        n: Number >= 0, or a float tensor [B].
    Returns:
        Bool mask of the shape of logits, True where kept.
    Raises:
        TypeError: a bool, or a wrong type or dtype. ValueError: n negative, infinite or NaN, or a wrong shape.
    Source: Tang et al., "Top-n-sigma: not all logits are you need", 2024, arXiv 2411.07641. Standard deviation over
    the row's finite entries, ddof 0.

    >>> top_n_sigma(torch.tensor([0.0, 1.0, 2.0, 9.0, 10.0]), 1.0)
    tensor([False, False, False,  True,  True])
    """
    return _at_least(logits, top_n_sigma_threshold(logits, n))


@torch.no_grad()
def top_n_sigma_threshold(logits: Tensor, n: float | Tensor) -> Tensor:
    """The logit max - n * std at which `top_n_sigma` cuts, [B] float32 (0-d for [V]); the maximum where std is 0."""
    rows = checks.as_rows(logits)
    width = checks.real_rows("n", n, logits, high=INF)
    std = torch.cat([finite_moments(rows[chunk])[1] for chunk in chunks(rows)])
    value = (_maximum(rows) - width * std.nan_to_num(nan=0.0)).float()
    return value if logits.ndim == 2 else value[0]


def _maximum(rows: Tensor) -> Tensor:
    """Largest entry of each row that is not NaN, [B] float64."""
    return rows.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(-1).double()


def _at_least(logits: Tensor, value: Tensor) -> Tensor:
    return (logits >= value[..., None]) & (logits > -INF)
