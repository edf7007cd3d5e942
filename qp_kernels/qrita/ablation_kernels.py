"""Triton kernels of the paper's variants (`ablation.py`): fp32 throughout, one program a row, a switch for every idea.

They show what each idea is worth, and share nothing with the kernels of `top_k_top_p`. k is searched among logits, p
among probabilities, as in the paper. Amounts are fp32: counts are exact below 2**24, masses depend on the blocks.
"""

import triton
import triton.language as tl

from .ablation_parts import gather, mask_row, mass, probabilities, threshold
from .ablation_search import search

INF = tl.constexpr(float("inf"))


@triton.jit
def _cut_of_k(
    source,
    scratch,
    n,
    gathered,
    k,
    lo,
    bottom,
    top,
    WAYS: tl.constexpr,
    DUPLICATES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
):
    """Search k among the candidates, which begin at lo, or on a miss in the whole row."""
    target = k.to(tl.float32)
    if gathered >= k:
        cut, tie, needed = search(scratch, gathered, target, lo, top, False, WAYS, DUPLICATES, STEPS, SEARCH_BLOCK)
    else:
        cut, tie, needed = search(source, n, target, bottom, top, False, WAYS, DUPLICATES, STEPS, BLOCK)
    return cut, tie, needed


@triton.jit
def _cut_of_p(
    source,
    scratch,
    n,
    gathered,
    share,
    by_k,
    hit,
    lo,
    bottom,
    top,
    cut,
    tie,
    needed,
    WAYS: tl.constexpr,
    DUPLICATES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
):
    """Turn what k's cut keeps into probabilities, in scratch, and search p among them. Also returns their total."""
    if by_k & hit:
        total = mass(scratch, gathered, top, cut, tie, needed, DUPLICATES, SEARCH_BLOCK)
    else:
        total = mass(source, n, top, cut, tie, needed, DUPLICATES, BLOCK)
        if ~by_k:  # p alone
            found = mass(scratch, gathered, top, cut, tie, needed, DUPLICATES, SEARCH_BLOCK)
            hit = found >= share * total
    if hit:
        kept = probabilities(scratch, scratch, gathered, top, total, cut, tie, needed, DUPLICATES, SEARCH_BLOCK)
    else:
        kept = probabilities(source, scratch, n, top, total, cut, tie, needed, DUPLICATES, BLOCK)
    lowest = tl.where(by_k, cut, tl.where(hit, lo, bottom))
    least, most = tl.exp(lowest - top) / total, 1.0 / total
    p_cut, p_tie, p_needed = search(scratch, kept, share, least, most, True, WAYS, DUPLICATES, STEPS, SEARCH_BLOCK)
    return total, p_cut, p_tie, p_needed


@triton.jit
def row_kernel(
    logits,
    out,
    scratch,
    k_rows,
    p_rows,
    delta_rows,
    n,
    stride,
    out_stride,
    cap,
    margin,
    K: tl.constexpr,
    P: tl.constexpr,
    TRUNCATE: tl.constexpr,
    MISS: tl.constexpr,
    PER_STD: tl.constexpr,
    OF_VALUE: tl.constexpr,
    WAYS: tl.constexpr,
    DUPLICATES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
):
    """Keep k, then p of them. Grid: a program a row; it owns the row, its output and scratch[n].

    Reads the row once to gather (and once more for p alone, twice where that misses), once a step of k's search where
    that misses, and once to write n entries.
    """
    row = tl.program_id(0).to(tl.int64)
    source, target, scratch = logits + row * stride, out + row * out_stride, scratch + row * n
    t = tl.full((), INF, tl.float32)
    if TRUNCATE and not MISS:
        t = threshold(source, n, tl.load(delta_rows + row), cap, margin, PER_STD, OF_VALUE)
    top, bottom, eligible, gathered = gather(source, scratch, n, n, t, TRUNCATE, BLOCK)
    no = tl.full((), -INF, tl.float32)
    cut, tie, needed, total = no, no, tl.zeros((), tl.float32), tl.full((), 1.0, tl.float32)
    p_cut, p_tie, p_needed = no, no, tl.zeros((), tl.float32)
    by_k, hit = eligible < 0, eligible < 0
    if K:
        k = tl.load(k_rows + row).to(tl.int32)
        by_k, hit = k < eligible, gathered >= k
        if by_k:
            cut, tie, needed = _cut_of_k(
                source, scratch, n, gathered, k, t, bottom, top, WAYS, DUPLICATES, STEPS, BLOCK, SEARCH_BLOCK
            )
    if P:
        share = tl.load(p_rows + row)
        if (share < 1.0) & (eligible > 0):
            total, p_cut, p_tie, p_needed = _cut_of_p(
                source,
                scratch,
                n,
                gathered,
                share,
                by_k,
                hit,
                t,
                bottom,
                top,
                cut,
                tie,
                needed,
                WAYS,
                DUPLICATES,
                STEPS,
                BLOCK,
                SEARCH_BLOCK,
            )
    mask_row(source, target, n, top, total, cut, tie, needed, p_cut, p_tie, p_needed, P, DUPLICATES, BLOCK)


@triton.jit
def gather_kernel(
    logits,
    scratch,
    found,
    delta_rows,
    n,
    stride,
    width,
    cap,
    margin,
    MISS: tl.constexpr,
    PER_STD: tl.constexpr,
    OF_VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather a row's candidates into scratch[width] for a sort. Grid: a program a row. Reads the row twice.

    found [B, 3] fp32: candidates, their mass and the row's mass, both in units of the maximum's.
    """
    row = tl.program_id(0).to(tl.int64)
    source, scratch = logits + row * stride, scratch + row * width
    t = tl.full((), INF, tl.float32)
    if not MISS:
        t = threshold(source, n, tl.load(delta_rows + row), cap, margin, PER_STD, OF_VALUE)
    top, bottom, eligible, gathered = gather(source, scratch, n, width, t, True, BLOCK)
    lowest = tl.full((), -INF, tl.float32)
    above = mass(source, n, top, t, lowest, 0.0, False, BLOCK)
    total = mass(source, n, top, lowest, lowest, 0.0, False, BLOCK)
    tl.store(found + row * 3, gathered.to(tl.float32))
    tl.store(found + row * 3 + 1, above)
    tl.store(found + row * 3 + 2, total)


@triton.jit
def cut_kernel(logits, out, values, needed, n, stride, out_stride, DUPLICATES: tl.constexpr, BLOCK: tl.constexpr):
    """Keep what is above values[row] and the first needed[row] entries equal to it. Grid: a program a row."""
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(values + row)
    first = tl.load(needed + row)
    no = tl.full((), -INF, tl.float32)
    mask_row(
        logits + row * stride,
        out + row * out_stride,
        n,
        0.0,
        1.0,
        value,
        value,
        first,
        no,
        no,
        0.0,
        False,
        DUPLICATES,
        BLOCK,
    )
