"""Whether a result meets the contract, row by row, from sorted rows and float64 masses; slow and independent of the
kernels. It is asked before anything is timed.

The row order is value descending, index ascending; top-k keeps its first k exactly; a nucleus is a prefix of n >= 1
entries with mass S(n) >= p - 1e-6 and S(n - 1) < p + 1e-6 of what k left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

INF = float("inf")
TOLERANCE = 1e-6
PROB_TOLERANCE = 1e-5
# Entries sorted at once: each needs about 60 bytes.
ENTRIES_AT_ONCE = 1 << 24


class Oracle(NamedTuple):
    """Of some rows [B, V]: places in row order, the share of each prefix, and the shortest and longest allowed set."""

    order: Tensor
    share: Tensor
    fewest: Tensor
    most: Tensor


def wrong_rows(kind: str, result: Any, logits: Tensor, k: int | None, p: float | None) -> int:
    """How many rows of a result are not what k and p say.

    Args:
        kind: "mask" (logits with -inf for what is dropped), "probs" (0 for what is dropped), "kept" (bool),
            "candidates" (fields indices, probs and count, as `select` returns) or "tokens" [B].
        result: Of the call. logits: [B, V], what the call was given.
    """
    step = max(1, ENTRIES_AT_ONCE // logits.shape[1])
    wrong = 0
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        wrong += int(CHECKS[kind](_part(result, part), logits[part], oracle(logits[part], k, p)).sum())
    return wrong


def _part(result: Any, rows: slice) -> Any:
    return result[rows] if isinstance(result, Tensor) else type(result)(*(field[rows] for field in result))


def oracle(logits: Tensor, k: int | None, p: float | None) -> Oracle:
    """What is allowed for each row of logits [B, V]."""
    x = logits.float() + 0.0  # -0.0 becomes 0.0
    x = torch.where(x.isnan(), -INF, x)
    ranked, order = x.sort(dim=-1, descending=True, stable=True)
    eligible = (ranked > -INF).sum(-1)
    most = eligible if not k or k < 0 else eligible.clamp(max=k)
    top = ranked[:, :1].double()
    weights = torch.where(ranked == ranked[:, :1], 1.0, (ranked.double() - top).exp()).masked_fill(ranked == -INF, 0.0)
    mass = weights.cumsum(-1)
    share = mass / mass.gather(1, (most - 1).clamp(min=0)[:, None]).clamp(min=1.0)
    if p is None or p >= 1:
        return Oracle(order, share, most, most)
    inside = torch.arange(x.shape[1], device=x.device) < (most - 1)[:, None]
    fewest = ((share < p - TOLERANCE) & inside).sum(-1) + 1
    longest = ((share < p + TOLERANCE) & inside).sum(-1) + 1 if p > 0 else torch.ones_like(most)
    return Oracle(order, share, fewest.minimum(most), longest.minimum(most))


def _of_kept(kept: Tensor, found: Oracle) -> Tensor:
    """[B] bool: no prefix of the row order, or one of another length than allowed."""
    count = kept.sum(-1)
    ranks = torch.arange(kept.shape[1], device=kept.device)
    beyond = (kept.gather(1, found.order) & (ranks >= count[:, None])).any(-1)
    return beyond | (count < found.fewest) | (count > found.most)


def _of_mask(result: Tensor, logits: Tensor, found: Oracle) -> Tensor:
    kept = result != -INF  # NaN, as what was never written may be, counts as kept
    return _of_kept(kept, found) | (kept & (result != logits)).any(-1)


def _of_candidates(result: Any, logits: Tensor, found: Oracle) -> Tensor:
    count, width = result.count.long(), result.indices.shape[1]
    slots = torch.arange(width, device=logits.device)
    filled = slots < count[:, None]
    other = (result.indices.long() != torch.where(filled, found.order[:, :width], -1)).any(-1)
    base = found.share.gather(1, (count - 1).clamp(min=0)[:, None])
    want = found.share[:, :width].diff(dim=-1, prepend=torch.zeros_like(base)) / base
    off = ((result.probs - want.where(filled, 0.0)).abs() > PROB_TOLERANCE).any(-1)
    return other | off | (count < found.fewest) | (count > found.most)


def _of_tokens(result: Tensor, logits: Tensor, found: Oracle) -> Tensor:
    """Drawn from what is kept; whether often enough, one batch cannot tell."""
    ranks = torch.arange(logits.shape[1], device=logits.device)
    allowed = (found.order == result[:, None]) & (ranks < found.most[:, None])
    return ~allowed.any(-1) & ~((found.most == 0) & (result == -1))


CHECKS: dict[str, Callable[[Any, Tensor, Oracle], Tensor]] = {
    "mask": _of_mask,
    "probs": lambda result, logits, found: _of_kept(result > 0, found),
    "kept": lambda result, logits, found: _of_kept(result, found),
    "candidates": _of_candidates,
    "tokens": _of_tokens,
}
