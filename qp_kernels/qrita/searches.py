"""Pivot searches of the Qrita kernels: where a count or a mass is reached, going down from the largest entry.

amount(q) is the count or the mass of all entries with keys >= q; it falls as q rises. A search is given
amount(lo) >= target > amount(hi) and returns the one key v with amount(v) >= target > amount(v + 1), the amount above
v, and how many entries equal v. All above v is kept, and of the entries equal to v as many as the target needs.
"""

import triton
import triton.language as tl

from .parts import (
    INF,
    amounts,
    gather,
    keys_of,
    load,
    probe,
    value_of,
    weights,
)


@triton.jit
def spread(lo, hi, i, PARTS: tl.constexpr):
    """The keys lo + ceil(i (hi - lo) / PARTS), i >= 1: pivots evenly spaced in bits, at most hi."""
    width = hi.to(tl.int64) - lo.to(tl.int64)
    return (lo.to(tl.int64) + (width * i + (PARTS - 1)) // PARTS).to(tl.int32)


@triton.jit
def spread_values(lo, hi, i, PARTS: tl.constexpr):
    """Pivots evenly spaced in value: where entries have both signs, evenly spaced bits crowd around zero."""
    share = i.to(tl.float32) / PARTS
    values = value_of(lo) * (1.0 - share) + value_of(hi - 1) * share
    keys = keys_of(tl.where(values == values, values, value_of(lo)))
    return tl.minimum(tl.maximum(keys, lo + 1), hi)


@triton.jit
def search(
    source, n, stride, lo, hi, at_lo, offset, target, top, rate,
    MASS: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quaternary search for v in [lo, hi), for a source on chip; amounts are those of the source plus `offset`.

    A step reads the source once. Where dropping the smallest entry that is left, with all its duplicates, would drop
    too much, that entry is v, whatever the interval's width. Else three pivots quarter the interval: 16 steps end it.
    """
    key, copies, above = lo, at_lo * 0, at_lo
    while above >= target:
        pivots = spread(lo, hi, tl.arange(0, 4) + 1, 4)  # the fourth is hi
        key, copies, found = probe(source, n, stride, lo, pivots, top, rate, MASS, FIX, 4, BLOCK)
        dropped = copies
        if MASS:
            dropped = copies * weights(value_of(key), top, rate, FIX)
        above = at_lo - dropped
        found += offset
        enough = found >= target
        lo = tl.max(tl.where(enough, pivots, lo), axis=0)
        hi = tl.min(tl.where(enough, hi, pivots), axis=0)
        at_lo = tl.min(tl.where(enough, found, at_lo), axis=0)
    return key, above, copies


@triton.jit
def spread_around(t, unit, lo, hi, lane):
    """Eight pivots around the threshold, the nearest a quarter of the unit away and the farthest two units."""
    offset = tl.where(lane < 4, -tl.exp2(1.0 - lane.to(tl.float32)), tl.exp2(lane.to(tl.float32) - 6.0))
    values = t + offset * unit
    keys = keys_of(tl.where(values == values, values, t))
    return tl.minimum(tl.maximum(keys, lo + 1), hi)


@triton.jit
def narrow_and_search(
    row, vocab, stride, lo, hi, n_lo, at_lo, target, top, rate, t, std, values_ptr, columns_ptr, counter,
    MASS: tl.constexpr, FIX: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
):  # fmt: skip
    """The same for a whole row in memory with n_lo entries from lo on, where amount(hi) = 0.

    Each read of the row brings eight pivots, until what is left of the interval fits into scratch memory or is a single
    key: the first time around the threshold t, in units of the standard deviation, then four spaced by value and four
    by bits. Fifths of the bits bound that to 15 reads; one or two are usual.
    """
    at_hi, n_hi = at_lo * 0, n_lo * 0
    lane = tl.arange(0, 8)
    i = lane % 4 + 1
    is_first = t > -INF
    while (n_lo - n_hi > CAPACITY) & (hi.to(tl.int64) - lo.to(tl.int64) > 1):
        pivots = tl.where(lane < 4, spread_values(lo, hi, i, 5), spread(lo, hi, i, 5))
        pivots = tl.where(is_first, spread_around(t, std, lo, hi, lane), pivots)
        is_first = t < -INF
        counts, masses = amounts(row, vocab, stride, pivots, top, rate, MASS, FIX, 8, BLOCK)
        found = masses if MASS else counts
        enough = found >= target
        lo = tl.max(tl.where(enough, pivots, lo), axis=0)
        hi = tl.min(tl.where(enough, hi, pivots), axis=0)
        at_lo = tl.min(tl.where(enough, found, at_lo), axis=0)
        at_hi = tl.max(tl.where(enough, at_hi, found), axis=0)
        n_lo = tl.min(tl.where(enough, counts, n_lo), axis=0)
        n_hi = tl.max(tl.where(enough, n_hi, counts), axis=0)
    key, above, copies = lo, at_hi, n_lo - n_hi
    if copies <= CAPACITY:
        n, _ = gather(
            row, vocab, stride, lo, hi, 0.0, rate, values_ptr, columns_ptr, counter, CAPACITY, False, FIX, BLOCK
        )
        key, above, copies = search(values_ptr, n, 1, lo, hi, at_lo, at_hi, target, top, rate, MASS, FIX, SEARCH_BLOCK)
    return key, above, copies


@triton.jit
def nth_column(values_ptr, columns_ptr, n, key, nth, vocab, BLOCK: tl.constexpr):
    """The nth smallest column among the candidates with this key, by quarters of the columns."""
    lo, hi = nth.to(tl.int32) * 0 - 1, nth.to(tl.int32) * 0 + vocab - 1
    while hi - lo > 1:
        pivots = spread(lo, hi, tl.arange(0, 4) + 1, 4)
        counts = tl.zeros([4], tl.int32)
        for start in range(0, n, BLOCK):
            values, place = load(values_ptr, start, n, 1, BLOCK)
            columns = tl.load(columns_ptr + place, mask=place < n, other=2**31 - 1)
            columns = tl.where(keys_of(values) == key, columns, 2**31 - 1)
            counts += tl.sum((columns[None, :] <= pivots[:, None]).to(tl.int32), axis=1)
        enough = counts >= nth
        hi = tl.min(tl.where(enough, pivots, hi), axis=0)
        lo = tl.max(tl.where(enough, lo, pivots), axis=0)
    return hi


@triton.jit
def nth_column_of_row(row, vocab, stride, key, nth, BLOCK: tl.constexpr):
    """The column of the row's nth entry with this key. Reads the row once."""
    seen, column = nth.to(tl.int32) * 0, nth.to(tl.int32) * 0 + vocab
    for start in range(0, vocab, BLOCK):
        values, columns = load(row, start, vocab, stride, BLOCK)
        equal = (keys_of(values) == key) & (columns < vocab)
        here = tl.sum(equal.to(tl.int32), axis=0)
        if (seen < nth) & (seen + here >= nth):
            running = seen + tl.cumsum(equal.to(tl.int32), axis=0)
            column = tl.min(tl.where(equal & (running >= nth), columns, vocab), axis=0)
        seen += here
    return column
