"""What PIVOT is compared to: HISA (few blocks of keys) and MISA (few heads). They score and select as PIVOT does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..machine import upload
from . import checks
from .api import MAX_BYTES, engine_of
from .checks import Problem, on_device, take, together
from .reference import dequantised, dequantised_keys, in_float32, rounded

# Of the router's products with blocks, at once.
BYTES_A_PRODUCT = 16
# Of a key of a chosen block: numbers and positions, int64.
BYTES_A_KEY = 32


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
    blocks = min(blocks, max(2, -(-problem.keys // block)))  # more is every block
    block = min(block, max(1, problem.keys))
    result = torch.full((len(q), topk), -1, dtype=torch.int32, device=q.device)
    for start, rows in by_start(problem):
        sums, scale = engine_of(problem).block_sums(problem, start, block)
        # A row's list of positions, and its blocks among all, exist at once.
        step = max(1, problem.max_bytes // (BYTES_A_KEY * (blocks * block + len(sums))))
        for chosen in map(together, rows.split(step)):
            part = problem.rows(chosen)
            inside = chosen_blocks(part, start, sums, scale, block, blocks)
            lists = keys_of(inside, start, block, problem.keys)
            result[on_device(chosen, q)] = engine_of(problem).rescored_each(part, lists)
    return result


def by_start(problem: Problem):
    """(lo, rows) for every lo that occurs."""
    for start in problem.lo.unique().tolist():
        yield start, torch.nonzero(problem.lo == start)[:, 0]


def chosen_blocks(problem: Problem, start: int, sums: Tensor, scale: Tensor | None, block: int, blocks: int) -> Tensor:
    """[T, blocks] int64: numbers of the chosen blocks, ascending, -1 where a row has fewer."""
    device = problem.q.device
    count = (problem.hi - start).clamp(min=0) // -block * -1  # of blocks, rounded up
    # The first and the last one are always in: what ranks are those between, as keys.
    between = replace(
        problem, k=sums, k_scale=scale, lo=(count * 0 + 1).clamp(max=len(sums)), hi=(count - 1).clamp(min=0)
    )
    number = torch.arange(len(sums) + 1, device=device)
    count = upload(count, device)[:, None]
    inside = (number == 0) & (count > 0) | (number == count - 1)
    if blocks > 2 and len(sums):
        best = engine_of(problem).dense(replace(between, topk=min(blocks - 2, len(sums)))).long()
        inside.scatter_(1, best.where(best >= 0, len(sums)), torch.where(best >= 0, True, inside[:, -1:]))
        # What is NaN ranks last: behind all others, by number.
        is_nan = (number < count) & ~inside
        inside |= is_nan & (is_nan.cumsum(1) <= blocks - inside.sum(1, keepdim=True))
    numbers = number.where(inside, len(number)).sort(dim=1).values[:, :blocks]
    return numbers.masked_fill(numbers == len(number), -1)


def keys_of(numbers: Tensor, start: int, block: int, keys: int) -> Tensor:
    """Positions of the keys of each row's blocks [T, blocks], of which -1 is none: [T, blocks * block] int32."""
    positions = start + numbers[:, :, None] * block + torch.arange(block, device=numbers.device)
    return positions.masked_fill((numbers < 0)[:, :, None] | (positions >= keys), -1).flatten(1).int()


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
    engine = engine_of(problem)
    if heads >= q.shape[1]:
        return engine.dense(problem)
    block = min(block, max(1, problem.keys))
    few = routed(problem, heads, block)
    if rerank is None:
        return engine.dense(few)
    return engine.rescored_each(problem, engine.dense(replace(few, topk=min(rerank, max(1, problem.keys)))))


def routed(problem: Problem, heads: int, block: int) -> Problem:
    """The problem with each row's `heads` most active heads, in ascending order."""
    active = torch.empty(len(problem), heads, dtype=torch.int64, device=problem.q.device)
    for start, rows in by_start(problem):
        rows = together(rows)
        energies = energy(problem.rows(rows), start, block)
        order = energies.sort(dim=1, descending=True, stable=True).indices[:, :heads]
        active[on_device(rows, active)] = order.sort(dim=1).values
    row = torch.arange(len(problem), device=problem.q.device)[:, None]
    scale = None if problem.q_scale is None else problem.q_scale[row, active]
    return replace(problem, q=take(problem.q, (row, active)), w=problem.w[row, active], q_scale=scale)


def energy(problem: Problem, start: int, block: int) -> Tensor:
    """E [T, H] float32 of rows whose keys start at `start`."""
    device, (rows, heads, _) = problem.q.device, problem.q.shape
    sums, scale = engine_of(problem).block_sums(problem, start, block)
    sums = dequantised(sums, scale)
    weight = problem.w.abs() if problem.q_scale is None else problem.w.abs() * problem.q_scale
    full_of = (problem.hi - start).clamp(min=0) // block
    full = upload(full_of, device)
    total = torch.zeros(rows, heads, dtype=torch.float32, device=device)
    step = max(1, problem.max_bytes // (BYTES_A_PRODUCT * heads * max(1, len(sums))))
    for first in range(0, rows, step):
        chunk = slice(first, min(first + step, rows))
        inside = torch.arange(len(sums), device=device) < full[chunk, None]
        products = no_nan(torch.einsum("thd,nd->thn", problem.q[chunk].float(), sums)).relu()
        total[chunk] = products.where(inside[:, None, :], 0.0).sum(-1)
    partial = torch.nonzero((full_of == 0) & (problem.hi > start))[:, 0]
    if len(partial):  # the sum of the one partial block
        n = problem.hi[partial] - start
        part = dequantised_keys(problem, slice(start, start + int(n.max()))).cumsum(0)
        part = dequantised(*rounded(part[upload(n - 1, device)], problem.k.dtype))
        there = on_device(partial, total)
        total[there] = no_nan(torch.einsum("thd,td->th", take(problem.q, there).float(), part)).relu()
    return no_nan(weight * total)


def no_nan(values: Tensor) -> Tensor:
    """Values with 0 for NaN."""
    return values.masked_fill(values.isnan(), 0.0)
