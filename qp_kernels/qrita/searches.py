"""Pivot searches of the Qrita kernels: where a count or a mass is reached, going down from the largest entry.

amount(q) is the count or the mass of all entries with keys >= q; it falls as q rises. A search is given
amount(lo) >= target > amount(hi) and returns the one key v with amount(v) >= target > amount(v + 1), the amount above
v, and how many entries equal v. All above v is kept, and of the entries equal to v as many as the target needs.
"""

import triton
import triton.language as tl

from . import configs
from .parts import BEYOND, INF, INTERPRETED, amounts, entries, gather, keys_of, value_of, weights

MOST_HELD = tl.constexpr(configs.MOST_HELD)


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
def quarter(lo, hi, i):
    """The key lo + ceil(i (hi - lo) / 4)."""
    return (lo.to(tl.int64) + ((hi.to(tl.int64) - lo.to(tl.int64)) * i + 3) // 4).to(tl.int32)


@triton.jit
def count_at(keys, q0, q1, q2, q3):
    """Which of four pivots each key reaches, as fields of 16 bits: sums of up to MOST_HELD are four counts."""
    one = tl.zeros_like(keys).to(tl.int64) + 1
    none = one * 0
    fields = tl.where(keys >= q0, one, none) + tl.where(keys >= q1, one << 16, none)
    return fields + tl.where(keys >= q2, one << 32, none) + tl.where(keys >= q3, one << 48, none)


@triton.jit
def weigh_at(keys, weight, q0, q1, q2, q3):
    """The weight of each key that reaches a pivot, for four pivots."""
    none = tl.zeros_like(weight)
    a, b = tl.where(keys >= q0, weight, none), tl.where(keys >= q1, weight, none)
    return a, b, tl.where(keys >= q2, weight, none), tl.where(keys >= q3, weight, none)


@triton.jit
def least_at(keys, q0, q1, q2, q3):
    """Each key where it reaches a pivot, else BEYOND, for four pivots."""
    a, b = tl.where(keys >= q0, keys, BEYOND), tl.where(keys >= q1, keys, BEYOND)
    return a, b, tl.where(keys >= q2, keys, BEYOND), tl.where(keys >= q3, keys, BEYOND)


@triton.jit
def merge_counts(n, a, b, c, d, n2, a2, b2, c2, d2):
    return n + n2, tl.minimum(a, a2), tl.minimum(b, b2), tl.minimum(c, c2), tl.minimum(d, d2)


@triton.jit
def merge_weights(k, l, m, n, a, b, c, d, k2, l2, m2, n2, a2, b2, c2, d2):  # noqa: E741
    a, b, c, d = merge_four(a, b, c, d, a2, b2, c2, d2)
    return k + k2, l + l2, m + m2, n + n2, a, b, c, d


@triton.jit
def merge_four(a, b, c, d, a2, b2, c2, d2):
    return tl.minimum(a, a2), tl.minimum(b, b2), tl.minimum(c, c2), tl.minimum(d, d2)


@triton.jit
def counts_and_least(held, n, first, q0, q1, q2, q3, BLOCK: tl.constexpr):
    """The counts of candidates at four pivots, and the least key at each; the first BLOCK keys are given."""
    fields = count_at(first, q0, q1, q2, q3)
    a, b, c, d = least_at(first, q0, q1, q2, q3)
    for start in range(BLOCK, n, BLOCK):
        values, _ = entries(held, start, n, 1, True, BLOCK)
        keys = keys_of(values)
        fields += count_at(keys, q0, q1, q2, q3)
        a2, b2, c2, d2 = least_at(keys, q0, q1, q2, q3)
        a, b, c, d = merge_four(a, b, c, d, a2, b2, c2, d2)
    if INTERPRETED:
        total = tl.sum(fields, axis=0)
        a, b, c, d = tl.min(a, axis=0), tl.min(b, axis=0), tl.min(c, axis=0), tl.min(d, axis=0)
    else:
        total, a, b, c, d = tl.reduce((fields, a, b, c, d), 0, merge_counts)
    return total & 0xFFFF, (total >> 16) & 0xFFFF, (total >> 32) & 0xFFFF, total >> 48, a, b, c, d


@triton.jit
def masses_and_least(
    held, n, first, weight, top, rate, q0, q1, q2, q3, FIX: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The same with masses; the first BLOCK keys and their weights are given."""
    i, j, k, m = weigh_at(first, weight, q0, q1, q2, q3)
    a, b, c, d = least_at(first, q0, q1, q2, q3)
    for start in range(BLOCK, n, BLOCK):
        values, _ = entries(held, start, n, 1, True, BLOCK)
        keys = keys_of(values)
        i2, j2, k2, m2 = weigh_at(keys, weights(values, top, rate, FIX), q0, q1, q2, q3)
        i, j, k, m = i + i2, j + j2, k + k2, m + m2
        a2, b2, c2, d2 = least_at(keys, q0, q1, q2, q3)
        a, b, c, d = merge_four(a, b, c, d, a2, b2, c2, d2)
    if INTERPRETED:
        i, j, k, m = tl.sum(i, axis=0), tl.sum(j, axis=0), tl.sum(k, axis=0), tl.sum(m, axis=0)
        a, b, c, d = tl.min(a, axis=0), tl.min(b, axis=0), tl.min(c, axis=0), tl.min(d, axis=0)
    else:
        i, j, k, m, a, b, c, d = tl.reduce((i, j, k, m, a, b, c, d), 0, merge_weights)
    return i, j, k, m, a, b, c, d


@triton.jit
def search(
    held, n, lo, hi, at_lo, offset, target, top, rate, MASS: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr,
    guess=0.0, reach=0.0, GUESSED: tl.constexpr = False,
):  # fmt: skip
    """Quaternary search for v in [lo, hi) in n places of candidates; amounts are theirs plus `offset`.

    A step knows the smallest entry that is left. Where dropping it, with all its duplicates, drops too much, it is v,
    whatever the interval's width. Else three pivots quarter the rest: 16 steps end it. Amounts and smallest entries at
    all pivots come from one reduction. The first BLOCK places stay in registers, the others are read in every step.
    GUESSED: The first step's pivots are a guess of v and what is within reach of it.
    """
    first, _ = entries(held, 0, n, 1, True, BLOCK)
    keys = keys_of(first)
    weight = tl.zeros([BLOCK], tl.int64)
    if MASS:
        weight = weights(first, top, rate, FIX)
    q0, above = lo, at_lo
    is_first = above >= target
    while above >= target:
        q1, q2, q3 = quarter(q0, hi, 1), quarter(q0, hi, 2), quarter(q0, hi, 3)
        if GUESSED:
            q1 = tl.where(is_first, tl.minimum(tl.maximum(keys_of(guess - reach), q0), hi), q1)
            q2 = tl.where(is_first, tl.minimum(tl.maximum(keys_of(guess), q0), hi), q2)
            q3 = tl.where(is_first, tl.minimum(tl.maximum(keys_of(guess + reach), q0), hi), q3)
            is_first = above < target
        if MASS:
            above, at_q1, at_q2, at_q3, least, least_1, least_2, least_3 = masses_and_least(
                held, n, keys, weight, top, rate, q0, q1, q2, q3, FIX, BLOCK
            )
        else:
            above, at_q1, at_q2, at_q3, least, least_1, least_2, least_3 = counts_and_least(
                held, n, keys, q0, q1, q2, q3, BLOCK
            )
        above, at_q1, at_q2, at_q3 = above + offset, at_q1 + offset, at_q2 + offset, at_q3 + offset
        if above >= target:
            at_lo = above
            hi = tl.where(at_q3 < target, q3, hi)
            hi = tl.where(at_q2 < target, q2, hi)
            hi = tl.where(at_q1 < target, q1, hi)
            least, at_lo = tl.where(at_q1 >= target, least_1, least), tl.where(at_q1 >= target, at_q1, at_lo)
            least, at_lo = tl.where(at_q2 >= target, least_2, least), tl.where(at_q2 >= target, at_q2, at_lo)
            least, at_lo = tl.where(at_q3 >= target, least_3, least), tl.where(at_q3 >= target, at_q3, at_lo)
            q0 = least + 1
    key, copies = q0 - 1, at_lo - above
    if MASS:
        copies = copies // tl.maximum(weights(value_of(key), top, rate, FIX), 1)
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
    row, vocab, stride, lo, hi, n_lo, at_lo, target, top, rate, t, std, held,
    MASS: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
    LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The same for a whole row in memory with n_lo entries from lo on, where amount(hi) = 0.

    Each read of the row brings eight pivots, until what is left of the interval is likely to fit into scratch memory
    or is a single key: the first time around the threshold t, in units of the standard deviation, then four spaced by
    value and four by bits. Fifths of the bits bound that to 15 reads; one or two are usual. Where a lane's queue was
    too short for what is left, it goes on.
    """
    at_hi, n_hi = at_lo * 0, n_lo * 0
    lane = tl.arange(0, 8)
    i = lane % 4 + 1
    is_first = t > -INF
    most, n = lo * 0 + LANES * DEPTH // 2, lo * 0 - 1
    while (n < 0) & (hi.to(tl.int64) - lo.to(tl.int64) > 1):
        while (n_lo - n_hi > most) & (hi.to(tl.int64) - lo.to(tl.int64) > 1):
            pivots = tl.where(lane < 4, spread_values(lo, hi, i, 5), spread(lo, hi, i, 5))
            pivots = tl.where(is_first, spread_around(t, std, lo, hi, lane), pivots)
            is_first = t < -INF
            counts, masses = amounts(row, vocab, stride, pivots, top, rate, MASS, FIX, 8, BLOCK, LANES)
            found = masses if MASS else counts
            enough = found >= target
            lo = tl.max(tl.where(enough, pivots, lo), axis=0)
            hi = tl.min(tl.where(enough, hi, pivots), axis=0)
            at_lo = tl.min(tl.where(enough, found, at_lo), axis=0)
            at_hi = tl.max(tl.where(enough, at_hi, found), axis=0)
            n_lo = tl.min(tl.where(enough, counts, n_lo), axis=0)
            n_hi = tl.max(tl.where(enough, n_hi, counts), axis=0)
        if hi.to(tl.int64) - lo.to(tl.int64) > 1:
            n, _, _ = gather(
                row, 0, vocab, stride, value_of(lo), value_of(hi), rate, held, False, FIX, BLOCK, LANES, DEPTH
            )
            most = most // 16
    key, above, copies = lo, at_hi, n_lo - n_hi
    if n >= 0:
        key, above, copies = search(held, n, lo, hi, at_lo, at_hi, target, top, rate, MASS, FIX, SEARCH_BLOCK)
    return key, above, copies


@triton.jit
def nth_column(held, n, key, nth, vocab, BLOCK: tl.constexpr):
    """The nth smallest column among the candidates with this key, by quarters of the columns."""
    lo, hi = nth.to(tl.int32) * 0 - 1, nth.to(tl.int32) * 0 + vocab - 1
    while hi - lo > 1:
        pivots = spread(lo, hi, tl.arange(0, 4) + 1, 4)
        counts = tl.zeros([4], tl.int32)
        for start in range(0, n, BLOCK):
            values, columns = entries(held, start, n, 1, True, BLOCK)
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
        values, columns = entries(row, start, vocab, stride, False, BLOCK)
        equal = (keys_of(values) == key) & (columns < vocab)
        here = tl.sum(equal.to(tl.int32), axis=0)
        if (seen < nth) & (seen + here >= nth):
            running = seen + tl.cumsum(equal.to(tl.int32), axis=0)
            column = tl.min(tl.where(equal & (running >= nth), columns, vocab), axis=0)
        seen += here
    return column
