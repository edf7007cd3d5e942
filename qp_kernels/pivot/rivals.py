"""What PIVOT is compared to: HISA (few blocks of keys) and MISA (few heads), in plain torch, on the same scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from . import checks
from .api import MAX_BYTES
from .checks import Problem, take
from .reference import best, chunks, dense, dequantised, in_float32, ranked, rescored, rounded, score

# Of the router's products with blocks, at once.
BYTES_A_PRODUCT = 16


@in_float32
def hisa_topk(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    topk: int,
    *,
    block: int = 128,
    blocks: int = 64,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """HISA: a query scores the sums of its blocks of keys, and then the keys of the best blocks.

    Args:
        q, k, w, topk, q_scale, k_scale, lo, hi, backend, max_bytes: As for `dense_topk`.
        block: Keys of a block, >= 1. A row's blocks start at its lo.
        blocks: Blocks whose keys are scored, >= 2, with (blocks - 1) * block >= topk. The first and the last one, full
            or not, are always among them; the others by the score of their sum (de-quantised, float32, rounded to the
            dtype of k), ties lowest block, NaN last.
    Returns, Ties:
        As for `dense_topk`.
    Raises:
        As `dense_topk`; ValueError for blocks or block out of range.
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": backend, "max_bytes": max_bytes}
    problem = checks.problem(q, k, w, topk, **options)
    block, blocks = checks.whole("block", block, 1), checks.whole("blocks", blocks, 2)
    if (blocks - 1) * block < topk:
        raise ValueError(f"(blocks - 1) * block must be >= topk, {topk}, got {(blocks - 1) * block}")
    block = min(block, max(1, problem.keys))
    result = torch.full((len(q), topk), -1, dtype=torch.int32, device=q.device)
    for start, rows in by_start(problem):
        part = problem.rows(rows)
        sums, scale = block_sums(part, start, block)
        for chunk in chunks(part):
            some = part.rows(chunk)
            inside = chosen_blocks(some, start, sums, scale, block, blocks)
            for i, t in enumerate(rows[chunk].tolist()):
                result[t] = rescored(some.rows(slice(i, i + 1)), keys_of(inside[i], start, block, problem.keys))[0]
    return result


def by_start(problem: Problem):
    """(lo, rows) for every lo that occurs."""
    for start in problem.lo.unique().tolist():
        yield start, torch.nonzero(problem.lo == start)[:, 0]


def block_sums(problem: Problem, start: int, block: int) -> tuple[Tensor, Tensor | None]:
    """The sums of the full blocks of keys from `start` on, as keys: [n, D] in the dtype of k, and their scales."""
    n = (problem.keys - start) // block
    keys = slice(start, start + n * block)
    k = dequantised(problem.k[keys], None if problem.k_scale is None else problem.k_scale[keys])
    return rounded(k.unflatten(0, (n, block)).sum(1), problem.k.dtype)


def chosen_blocks(problem: Problem, start: int, sums: Tensor, scale: Tensor | None, block: int, blocks: int) -> Tensor:
    """[T, blocks] int64: numbers of the chosen blocks in any order, -1 where a row has fewer."""
    device = problem.q.device
    keys = (problem.hi - start).clamp(min=0).to(device)[:, None]
    count = (keys + block - 1) // block
    values = score(problem.q, sums, problem.w, problem.q_scale, scale)
    number = torch.arange(len(sums), device=device)
    between = (number > 0) & (number < count - 1)
    # What is NaN ranks last: behind all others, by number.
    is_nan = values.isnan()
    middle = ranked(values, number, between & ~is_nan, blocks - 2) if blocks > 2 else number.new_empty(len(values), 0)
    rest = ranked(torch.zeros_like(values), number, between & is_nan, blocks - 2) if blocks > 2 else middle
    order = torch.cat([middle, rest], dim=1)
    order = order.gather(1, (order < 0).int().argsort(dim=1, stable=True))[:, : max(0, blocks - 2)]
    first = torch.where(count > 0, 0, -1)
    last = torch.where(count > 1, count - 1, -1)
    return torch.cat([first, last, order], dim=1)


def keys_of(inside: Tensor, start: int, block: int, keys: int) -> Tensor:
    """Ascending positions of the keys of one row's blocks, of which -1 is none."""
    numbers = inside[inside >= 0].sort().values
    positions = (start + numbers[:, None] * block + torch.arange(block, device=numbers.device)).flatten()
    return positions[positions < keys]


@in_float32
def misa_topk(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    topk: int,
    *,
    heads: int = 8,
    block: int = 1024,
    rerank: int | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """MISA: a query scores its keys with the few heads that a router takes for the most active.

    Args:
        q, k, w, topk, q_scale, k_scale, lo, hi, backend, max_bytes: As for `dense_topk`.
        heads: Heads that score, >= 1; H and more are all. The router's energy of head j is

                E_j = |w_j| * q_scale_j * sum over full blocks b of relu(q_j . sum of the keys in b)

            (of the one partial block if there is no full one; a product that is NaN counts 0). Ties lowest head.
        block: Keys of a block, >= 1; blocks start at lo. Their sums are those of `hisa_topk`.
        rerank: None, or how many keys the few heads leave to all heads, >= topk.
    Returns, Ties:
        As for `dense_topk`.
    Raises:
        As `dense_topk`; ValueError for heads, block or rerank out of range.
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": backend, "max_bytes": max_bytes}
    problem = checks.problem(q, k, w, topk, **options)
    heads, block = checks.whole("heads", heads, 1), checks.whole("block", block, 1)
    if rerank is not None and checks.whole("rerank", rerank, 1) < topk:
        raise ValueError(f"rerank must be >= topk, {topk}, got {rerank}")
    if heads >= q.shape[1]:
        return dense(problem)
    block = min(block, max(1, problem.keys))
    few = routed(problem, heads, block)
    if rerank is None:
        return dense(few)
    result = torch.full((len(q), topk), -1, dtype=torch.int32, device=q.device)
    for t, candidates in enumerate(best(few, rerank)):
        result[t] = rescored(problem.rows(slice(t, t + 1)), candidates[candidates >= 0].sort().values)[0]
    return result


def routed(problem: Problem, heads: int, block: int) -> Problem:
    """The problem with each row's `heads` most active heads, in ascending order."""
    active = torch.empty(len(problem), heads, dtype=torch.int64, device=problem.q.device)
    for start, rows in by_start(problem):
        there = rows.to(problem.q.device)
        energies = energy(problem.rows(rows), start, block)
        order = energies.sort(dim=1, descending=True, stable=True).indices[:, :heads]
        active[there] = order.sort(dim=1).values
    row = torch.arange(len(problem), device=problem.q.device)[:, None]
    scale = None if problem.q_scale is None else problem.q_scale[row, active]
    return replace(problem, q=take(problem.q, (row, active)), w=problem.w[row, active], q_scale=scale)


def energy(problem: Problem, start: int, block: int) -> Tensor:
    """E [T, H] float32 of rows whose keys start at `start`."""
    device, (rows, heads, _) = problem.q.device, problem.q.shape
    sums, scale = block_sums(problem, start, block)
    sums = dequantised(sums, scale)
    weight = problem.w.abs() if problem.q_scale is None else problem.w.abs() * problem.q_scale
    full = ((problem.hi - start).clamp(min=0) // block).to(device)
    total = torch.zeros(rows, heads, dtype=torch.float32, device=device)
    step = max(1, problem.max_bytes // (BYTES_A_PRODUCT * heads * max(1, len(sums))))
    for first in range(0, rows, step):
        chunk = slice(first, min(first + step, rows))
        inside = torch.arange(len(sums), device=device) < full[chunk, None]
        products = no_nan(torch.einsum("thd,nd->thn", problem.q[chunk].float(), sums)).relu()
        total[chunk] = products.where(inside[:, None, :], 0.0).sum(-1)
    for t in torch.nonzero((full == 0).cpu() & (problem.hi > start))[:, 0].tolist():
        keys = slice(start, int(problem.hi[t]))
        part = dequantised(problem.k[keys], None if problem.k_scale is None else problem.k_scale[keys])
        part = dequantised(*rounded(part.sum(0), problem.k.dtype))
        total[t] = no_nan(problem.q[t].float() @ part).relu()
    return no_nan(weight * total)


def no_nan(values: Tensor) -> Tensor:
    """Values with 0 for NaN."""
    return values.masked_fill(values.isnan(), 0.0)
