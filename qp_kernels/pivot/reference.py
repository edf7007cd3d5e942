"""Scores and exact selection of keys in plain torch: what every selection here is made of.

    I[t, s] = k_scale[s] * sum over j of w[t, j] * q_scale[t, j] * relu(q[t, j] . k[s])

in float32. Source: DeepSeek-V3.2 (the lightning indexer).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .checks import Problem, take

# Of a score, its sort key (int64) and its position (int64), twice: what a row of the selection holds at once.
BYTES_A_SCORE = 48
FP8_LARGEST = 448.0
# Of a float32 number.
LEAST_EXPONENT = -149


def scores(problem: Problem, keys: Tensor | None = None) -> Tensor:
    """I of every row against all keys, or those at positions `keys`: [T, N] float32."""
    k, k_scale = problem.k, problem.k_scale
    if keys is not None:
        k, k_scale = take(k, keys), None if k_scale is None else k_scale[keys]
    return score(problem.q, k, problem.w, problem.q_scale, k_scale)


def score(q: Tensor, k: Tensor, w: Tensor, q_scale: Tensor | None, k_scale: Tensor | None) -> Tensor:
    """The same for tensors; one head at a time, so that nothing is larger than the result."""
    weights = w if q_scale is None else w * q_scale
    k = k.float().t()
    total = torch.zeros(len(q), k.shape[1], dtype=torch.float32, device=q.device)
    for j in range(q.shape[1]):
        total += weights[:, j, None] * (q[:, j].float() @ k).relu()
    return total if k_scale is None else total * k_scale


def in_float32(function: Callable) -> Callable:
    """Without gradients, without autocast, and with float32 products in float32: a process may have allowed TF32."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(IEEE)
            return function(*args, **kwargs)

    return wrapper


class Ieee:
    """float32 products in float32, until the last thread that wants it is done: the setting is the whole process's."""

    def __init__(self):
        self.lock, self.depth, self.before = threading.Lock(), 0, []

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth > 1:
                return
            for matmul in (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)):
                name, value = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
                if hasattr(matmul, name) and getattr(matmul, name) != value:
                    self.before.append((matmul, name, getattr(matmul, name)))
                    setattr(matmul, name, value)

    def __exit__(self, *_) -> None:
        with self.lock:
            self.depth -= 1
            while self.depth == 0 and self.before:
                setattr(*self.before.pop())


IEEE = Ieee()


def ranked(values: Tensor, positions: Tensor, eligible: Tensor, limit: int) -> Tensor:
    """The first `limit` positions of each row by score descending, position ascending; [T, limit] int64, -1 beyond.

    Args:
        values: [T, M] float32. positions: [M] ascending. eligible: [T, M] bool; NaN never is.
    """
    eligible = eligible & ~values.isnan()
    keys = order_keys(values).masked_fill(~eligible, torch.iinfo(torch.int64).min)
    limit = min(limit, values.shape[1])
    best = keys.sort(dim=1, descending=True, stable=True).indices[:, :limit]
    return positions[best].masked_fill(~eligible.gather(1, best), -1)


def order_keys(values: Tensor) -> Tensor:
    """int64 images of float32 scores with their order; -0.0 equals 0.0."""
    bits = (values + 0.0).view(torch.int32).long()
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def ascending(chosen: Tensor, width: int) -> Tensor:
    """Chosen positions [T, <= width] as a result: [T, width] int32, ascending, with a tail of -1."""
    beyond = torch.iinfo(torch.int64).max
    chosen = chosen.masked_fill(chosen < 0, beyond).sort(dim=1).values
    chosen = chosen.masked_fill(chosen == beyond, -1)
    return torch.nn.functional.pad(chosen, (0, width - chosen.shape[1]), value=-1).int()


def chunks(problem: Problem) -> Iterator[slice]:
    """Rows whose scores fit `max_bytes` at once; at least one."""
    step = max(1, problem.max_bytes // (BYTES_A_SCORE * max(1, problem.keys)))
    for start in range(0, len(problem), step):
        yield slice(start, min(start + step, len(problem)))


def best(problem: Problem, limit: int) -> Tensor:
    """The first `limit` keys of each row in rank order, [T, <= limit] int64 with -1 where there are no more."""
    device = problem.q.device
    positions = torch.arange(problem.keys, device=device)
    found = [torch.empty(0, min(limit, problem.keys), dtype=torch.int64, device=device)]
    for chunk in chunks(problem):
        part = problem.rows(chunk)
        lo, hi = part.lo.to(device)[:, None], part.hi.to(device)[:, None]
        found.append(ranked(scores(part), positions, (positions >= lo) & (positions < hi), limit))
    return torch.cat(found)


def dense(problem: Problem) -> Tensor:
    """Every row's own top-k: [T, topk] int32."""
    return ascending(best(problem, problem.topk), problem.topk)


def rescored(problem: Problem, candidates: Tensor) -> Tensor:
    """Every row's top-k of candidates [M], ascending positions of which none lies below its lo: [T, topk] int32."""
    hi = problem.hi.to(candidates.device)[:, None]
    found = ranked(scores(problem, candidates), candidates, candidates < hi, problem.topk)
    return ascending(found, problem.topk)


def dequantised(values: Tensor, scale: Tensor | None) -> Tensor:
    """Values [..., D] times their scale [...], float32."""
    return values.float() if scale is None else values.float() * scale[..., None]


def dequantised_keys(problem: Problem, keys: slice) -> Tensor:
    """Some of the keys times their scales, [n, D] float32."""
    return dequantised(problem.k[keys], None if problem.k_scale is None else problem.k_scale[keys])


def rounded(total: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A float32 sum [..., D] in a dtype of q and k; for float8 with the smallest power of two as scale [...] that fits.

    The scale is 1 where all is zero or something is not finite.
    """
    if dtype != torch.float8_e4m3fn:
        return total.to(dtype), None
    largest = total.abs().amax(-1)
    exponent = torch.ceil(torch.log2(largest.double() / FP8_LARGEST)).clamp(min=LEAST_EXPONENT)
    scale = torch.exp2(exponent).where(largest.isfinite() & (largest > 0), 1.0)
    scale = torch.where(largest.double() / scale > FP8_LARGEST, scale * 2, scale).float()
    return (total / scale[..., None]).to(dtype), scale
