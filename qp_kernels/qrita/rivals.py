"""Other ways to cut a distribution, or to find a cut, to show beside top-k and top-p; plain torch, none of them tuned.

`min_p` and `top_n_sigma` are other rules: one threshold on the logits, and entries equal to it are kept. `full_sort`,
`torch_topk`, `rtop_k` and `dual_pivot_sample` are other ways to top-k and top-p; each says what it does not promise.
NaN and -inf are never kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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


@torch.no_grad()
def full_sort(logits: Tensor, k: int | Tensor | None = None, p: float | Tensor | None = None) -> Tensor:
    """Keep k, then p of them, by sorting the row: the rule of Hugging Face's logits warpers, and of much serving code.

    Not promised: k entries (every entry equal to the k-th stays); which of the entries equal to the last of the nucleus
    stay (the sort decides); a nucleus within 1e-6 (a running fp32 sum is off by up to 1e-3 of the mass at V = 262,144).

    Args:
        logits, k, p: As for `top_k_top_p`.
    Returns:
        Bool mask of the shape of logits, True where kept.
    Raises:
        TypeError, ValueError: as `top_k_top_p`.
    Source: transformers, `TopKLogitsWarper` and `TopPLogitsWarper`.

    >>> full_sort(torch.tensor([1.0, 3.0, 1.0, 1.0, 0.0]), k=2)
    tensor([ True,  True,  True,  True, False])
    """
    rows, limits = _comparable(logits), checks.limits(logits, k, p)
    if limits.k is not None:
        kth = rows.sort(-1, descending=True).values.gather(-1, limits.k[:, None] - 1)
        rows = rows.masked_fill(rows < kth, -INF)
    keep = rows > -INF
    if limits.p is not None:
        ascending, order = rows.sort(-1)
        dropped = ascending.softmax(-1).cumsum(-1) <= 1.0 - limits.p[:, None]
        dropped[:, -1] = False
        keep &= ~dropped.scatter(-1, order, dropped)
    return keep.view(logits.shape)


@torch.no_grad()
def torch_topk(logits: Tensor, k: int) -> Tensor:
    """Keep k entries by `torch.topk`.

    Not promised: which of the entries equal to the k-th stay; it may change with device, shape and version.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16.
        k: An int >= 1, one for all rows.
    Returns:
        Bool mask of the shape of logits, True where kept.
    Raises:
        TypeError, ValueError: logits as for `top_k_top_p`; k < 1 or no int.

    >>> torch_topk(torch.tensor([1.0, 3.0, 2.0]), 2)
    tensor([False,  True,  True])
    """
    rows, k = _comparable(logits), min(checks.positive("k", k), logits.shape[-1])
    keep = torch.zeros_like(rows, dtype=torch.bool).scatter_(-1, rows.topk(k, sorted=False).indices, True)
    return (keep & (rows > -INF)).view(logits.shape)


@torch.no_grad()
def rtop_k(logits: Tensor, k: int, max_iter: int | None = None) -> Tensor:
    """Keep k entries by RTop-K: halve the interval of values until k stand above its middle, then take them in order.

    Without `max_iter` the interval is halved down to neighbouring floats: exact on finite rows, lowest index first
    among ties. With `max_iter` it stops early and takes the first k entries above the lower end: k entries, not the
    largest. The interval is one of values, so a row with one far outlier needs many halvings.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16. +inf counts as the largest finite float32.
        k: An int >= 1, one for all rows.
        max_iter: Halvings before the early stop, an int >= 1; None for no such stop.
    Returns:
        Bool mask of the shape of logits, True where kept.
    Raises:
        TypeError, ValueError: logits as for `top_k_top_p`; k or max_iter < 1 or no int.
    Source: Xie et al., "RTop-K: Ultra-Fast Row-Wise Top-K Selection", 2024, arXiv 2409.00822.

    >>> row = torch.tensor([1.0, 2.0, 100.0, 3.0])
    >>> rtop_k(row, 2).tolist(), rtop_k(row, 2, max_iter=3).tolist()
    ([False, False, True, True], [True, True, False, False])
    """
    rows, k = _comparable(logits), min(checks.positive("k", k), logits.shape[-1])
    most = None if max_iter is None else checks.positive("max_iter", max_iter)
    rows = rows.clamp(torch.finfo(rows.dtype).min, torch.finfo(rows.dtype).max)
    lo, hi = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True).nextafter(rows.new_full((), INF))
    step, found = 0, torch.zeros_like(lo, dtype=torch.bool)
    while step != most:
        middle = lo * 0.5 + hi * 0.5
        live = (middle > lo) & (middle < hi) & ~found
        if not live.any():
            break
        count = (rows >= middle).sum(-1, keepdim=True)
        lo, hi = torch.where(live & (count >= k), middle, lo), torch.where(live & (count < k), middle, hi)
        found |= live & (count == k)
        step += 1
    sure = (rows >= hi) if most is None else torch.zeros_like(rows, dtype=torch.bool)
    between = (rows >= lo) & ~sure
    keep = sure | (between & (between.cumsum(-1) <= k - sure.sum(-1, keepdim=True)))
    return keep.view(logits.shape) & (logits > -INF)


class Drawn(NamedTuple):
    """Tokens [B] int64 (-1 where nothing is eligible) and the rounds each row took, [B] int64; 0-d for one row."""

    token: Tensor
    rounds: Tensor


@torch.no_grad()
def dual_pivot_sample(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Drawn:
    """Draw a token of the top-k and top-p set without ever finding the set: FlashInfer's rejection sampling.

    A round draws a token among the probabilities above `low`, and takes the token's probability and the middle between
    it and `high` as pivots. The token is accepted if fewer than k entries, and less than the mass p, lie above the
    first pivot. Else the pivots narrow (low, high]. The answer is one token: there is no set to mask, list or count.

    Not promised: exactly k entries (all equal to the k-th can be drawn); the number of rounds; the same token for the
    same seed in another batch. Promised: the distribution, k and p both over the original one (`order="joint"`,
    `ties="all"`), up to fp32 rounding of the probabilities.

    Args:
        logits, k, p: As for `top_k_top_p`.
        generator: Where the uniform numbers come from; None is torch's default one.
    Returns:
        `Drawn(token, rounds)`.
    Raises:
        TypeError, ValueError: as `top_k_top_p`.
    Source: FlashInfer, "Sorting-Free GPU Kernels for LLM Sampling", flashinfer.ai/2025/03/10/sampling.html.

    >>> drawn = dual_pivot_sample(torch.tensor([0.0, 9.0, 8.0, -4.0]), k=1, generator=torch.Generator().manual_seed(0))
    >>> int(drawn.token)
    1
    """
    rows, limits = _comparable(logits), checks.limits(logits, k, p)
    most = logits.shape[-1] if limits.k is None else limits.k[:, None]
    share = 2.0 if limits.p is None else torch.where(limits.p < 1, limits.p.clamp(min=1e-30), 2.0)[:, None]
    eligible = (rows > -INF).any(-1)
    probs = torch.where(eligible[:, None], rows, 0.0).clamp(max=torch.finfo(rows.dtype).max).softmax(-1)
    low, high = torch.zeros_like(probs[:, :1]), probs.amax(-1, keepdim=True)
    token, rounds = torch.full_like(eligible, -1, dtype=torch.int64), torch.zeros_like(eligible, dtype=torch.int64)
    open_rows = eligible

    def allowed(pivot: Tensor) -> Tensor:
        above = probs > pivot
        return (above.sum(-1, keepdim=True) < most) & (probs.where(above, 0.0).sum(-1, keepdim=True) < share)

    while open_rows.any():
        mass = probs.where(probs > low, 0.0).cumsum(-1)
        total = mass[:, -1:]
        u = torch.rand(high.shape, generator=generator, device=rows.device) * total
        last = (mass < total).sum(-1, keepdim=True)  # rounding may take u to the total, beyond every entry
        drawn = torch.searchsorted(mass, u, right=True).minimum(last)
        first = probs.gather(-1, drawn)
        second = (first + high) / 2
        rounds += open_rows
        accepted = open_rows & allowed(first)[:, 0]
        token = torch.where(accepted, drawn[:, 0], token)
        low, high = torch.where(allowed(second), first, second), torch.where(allowed(second), second, high)
        open_rows = open_rows & ~accepted
    return Drawn(token, rounds) if logits.ndim == 2 else Drawn(token[0], rounds[0])


def _comparable(logits: Tensor) -> Tensor:
    """Rows in float32 with -inf for NaN; a copy."""
    return checks.as_rows(logits).float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)


def _maximum(rows: Tensor) -> Tensor:
    """Largest entry of each row that is not NaN, [B] float64."""
    return rows.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(-1).double()


def _at_least(logits: Tensor, value: Tensor) -> Tensor:
    return (logits >= value[..., None]) & (logits > -INF)
