"""Triton kernels that select: the exact best columns of each row of a score matrix, ascending.

Three steps, the truncation idea of Qrita on scores, whose tails are long, so that no bell curve tells the threshold:

1. `threshold_kernel`: a sample of a long row tells a threshold that a few more than `limit` of its scores reach.
2. `mark_kernel`: one read of the row. Which scores reach the threshold becomes a bit each: order costs nothing then.
3. `choose_kernel`: the few that are marked are listed, searched in registers for the exact cut, and their columns
   written. Short rows come here at once. Where the threshold left too few or too many, the row itself is searched, in
   full reads.

Scores are compared as int32 keys with their order; -0.0 equals 0.0. Equal scores: lowest column. NaN is never selected.
A row's result does not depend on the sample, the tiles or the other rows.
"""

import triton
import triton.language as tl

from ..qrita.parts import BEYOND, keys_of, value_of
from ..qrita.searches import quarter

# The key of what is none: below the key of -inf.
NONE = tl.constexpr(-(2**31))
# Key of -inf.
LEAST = tl.constexpr(-(2**31) + 0x7FFFFF)
# What `threshold_kernel` writes for a row that is not marked, because it is short.
WHOLE = tl.constexpr(-(2**31) + 1)


@triton.jit
def bounds_of(row, table, lo, hi, step, FIELDS: tl.constexpr, TABLE: tl.constexpr):
    """A row's base (the position of column 0) and its columns [begin, end)."""
    base, first, last = lo, lo, hi + step * row
    if TABLE:
        base, first, last = tl.load(table + FIELDS * row), tl.load(table + FIELDS * row + 1), tl.load(table + FIELDS * row + 2)
    return base, first - base, tl.maximum(last, first) - base


@triton.jit
def number_of(row, table, number, step, FIELD: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr):
    """Another number of a row: a field of the table, or `number` that rises by `step` a row."""
    value = number + step * row
    if TABLE:
        value = tl.load(table + FIELDS * row + FIELD)
    return value


@triton.jit
def ordered(values):
    """Keys of scores; NONE for NaN."""
    return tl.where(values == values, keys_of(values), NONE)


@triton.jit
def count_three(keys, q1, q2, q3):
    """How many keys reach each of three pivots; at most 2**15 - 1 keys."""
    one = tl.zeros_like(keys).to(tl.int64) + 1
    fields = tl.where(keys >= q1, one, 0) + tl.where(keys >= q2, one << 20, 0) + tl.where(keys >= q3, one << 40, 0)
    total = tl.sum(fields, axis=0)
    return (total & 0xFFFFF).to(tl.int32), ((total >> 20) & 0xFFFFF).to(tl.int32), (total >> 40).to(tl.int32)


@triton.jit
def cut_of(keys, total, limit, slack):
    """(q, n): n >= limit keys reach q, at most limit + slack if there is such a q, else q is the limit-th largest key.

    total: keys that are not NONE. Where they are no more than limit + slack, q is LEAST.
    """
    q, n = LEAST, total
    if total > limit + slack:
        q = tl.min(tl.where(keys == NONE, BEYOND, keys), axis=0)
        above = tl.max(keys, axis=0) + 1
        while (n > limit + slack) & (q < above - 1):
            q1, q2, q3 = quarter(q, above, 1), quarter(q, above, 2), quarter(q, above, 3)
            n1, n2, n3 = count_three(keys, q1, q2, q3)
            above = tl.where(n1 < limit, q1, tl.where(n2 < limit, q2, tl.where(n3 < limit, q3, above)))
            q = tl.where(n3 >= limit, q3, tl.where(n2 >= limit, q2, tl.where(n1 >= limit, q1, q)))
            n = tl.where(n3 >= limit, n3, tl.where(n2 >= limit, n2, tl.where(n1 >= limit, n1, n)))
    return q, n


@triton.jit
def threshold_kernel(
    scores, stride, table, lo, hi, step, limit, thresholds,
    RUNS: tl.constexpr, RUN: tl.constexpr, CAP: tl.constexpr,
    FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A threshold for each row: some more than `limit` of its scores reach it, as a sample tells.

    The sample are RUNS runs of RUN neighbours, one at a place of its own in each of RUNS equal parts of the row.
    """
    row = tl.program_id(0)
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    length = end - begin
    key = WHOLE
    if length > CAP:
        i = tl.arange(0, RUNS * RUN)
        part = i // RUN
        size = length // RUNS
        jitter = ((part * 40503) & 0xFFFF) * (size - RUN + 1) >> 16
        column = begin + part * size + jitter + i % RUN
        values = tl.load(scores + row.to(tl.int64) * stride + column)
        keys = ordered(values)
        expected = limit.to(tl.float32) * (RUNS * RUN) / length.to(tl.float32)
        wanted = (expected + 3.5 * tl.sqrt(expected) + 3.0).to(tl.int32)
        total = tl.sum((keys != NONE).to(tl.int32), axis=0)
        key, _ = cut_of(keys, total, wanted, wanted // 8)
    tl.store(thresholds + row, key)


@triton.jit
def mark_kernel(
    scores, stride, table, lo, hi, step, thresholds, marks, tiles,
    TILE: tl.constexpr, PADDED: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). Bit j of word i tells whether score 32 i + j of a row reaches its threshold.

    Reads TILE scores once and writes TILE / 32 words. PADDED: rows are padded to whole tiles, which need no mask.
    """
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    key = tl.load(thresholds + row)
    if key != WHOLE:
        bit = tl.arange(0, 32)
        word = tile * (TILE // 32) + tl.arange(0, TILE // 32)
        column = word[:, None] * 32 + bit[None, :]
        inside = (column >= begin) & (column < end)
        place = scores + row.to(tl.int64) * stride + column
        if PADDED:
            values = tl.load(place)
        else:
            values = tl.load(place, mask=inside, other=0.0)
        reaches = (inside & (values >= value_of(key))).to(tl.int32)
        tl.store(marks + row.to(tl.int64) * tiles * (TILE // 32) + word, tl.sum(reaches << bit[None, :], axis=1))


@triton.jit
def bits_in(words):
    """How many bits of each word are set."""
    n = words - ((words >> 1) & 0x55555555)
    n = (n & 0x33333333) + ((n >> 2) & 0x33333333)
    n = (n + (n >> 4)) & 0x0F0F0F0F
    return ((n * 0x01010101) >> 24) & 0xFF


@triton.jit
def list_marks(marks, words, held, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """Write the columns whose bits are set into `held`, ascending, at most PLACES; how many they are."""
    total = 0
    for start in range(0, words, BLOCK):
        i = start + tl.arange(0, BLOCK)
        left = tl.load(marks + i, mask=i < words, other=0)
        n = bits_in(left)
        place = total + tl.cumsum(n, axis=0) - n
        total += tl.sum(n, axis=0)
        if total <= PLACES:
            most = tl.max(n, axis=0)
            for _ in range(most):
                lowest = left & -left
                # A power of two as a float has its exponent: bit 31, which is negative, too.
                bit = ((lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
                tl.store(held + place, i * 32 + bit, mask=left != 0)
                place += 1
                left = left & (left - 1)
    return total


@triton.jit
def keys_at(scores, held, start, end, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """Keys and columns from `start` on: of the row, or (HELD) of columns that are listed; NONE from `end` on."""
    column = start + tl.arange(0, BLOCK)
    there = column < end
    if HELD:
        column = tl.load(held + column, mask=there, other=0)
    return ordered(tl.load(scores + column, mask=there, other=float("nan"))), column


@triton.jit
def position_of(columns, base, lists, list_row, list_stride, there, LISTED: tl.constexpr):
    """Positions of columns: counted from the base, or those of a list."""
    positions = base + columns
    if LISTED:
        positions = tl.load(lists + list_row * list_stride + columns, mask=there, other=0)
    return positions


@triton.jit
def write_block(
    out, keys, columns, cut, ties, base, lists, list_row, list_stride, window, written, tied, LISTED: tl.constexpr
):
    """Write the positions of a block's kept columns; (written, tied) before and after it.

    Kept: keys above the cut, and of those equal to it the first `ties`. Not written: positions from `window` on.
    """
    strict = keys > cut
    equal = keys == cut
    marks = strict.to(tl.int32) * 65536 + equal.to(tl.int32)
    ranks = tl.cumsum(marks, axis=0)
    tie_rank = (ranks & 0xFFFF) + tied
    kept = strict | (equal & (tie_rank <= ties))
    positions = position_of(columns, base, lists, list_row, list_stride, kept, LISTED)
    slot = written + (ranks >> 16) + tl.minimum(tie_rank, ties) - tl.minimum(tied, ties) - 1
    tl.store(out + slot, positions, mask=kept & (positions < window))
    total = tl.sum(marks, axis=0)
    after = tied + (total & 0xFFFF)
    dropped = tl.sum((kept & (positions >= window)).to(tl.int32), axis=0)
    return written + (total >> 16) + tl.minimum(after, ties) - tl.minimum(tied, ties), after, dropped


@triton.jit
def choose(
    out, keys, columns, total, limit, base, lists, list_row, list_stride, window, LISTED: tl.constexpr
):  # fmt: skip
    """Write the best `limit` of a row's keys, which are all in registers; how many positions are written."""
    cut, n = cut_of(keys, total, limit, 0)
    ties = limit - tl.sum((keys > cut).to(tl.int32), axis=0)
    written, _, dropped = write_block(
        out, keys, columns, cut, ties, base, lists, list_row, list_stride, window, 0, 0, LISTED
    )
    return written - dropped


@triton.jit
def choose_short(
    out, scores, held, begin, end, limit, base, lists, list_row, list_stride, window,
    LISTED: tl.constexpr, HELD: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The same of a whole row, or what is held of it, of at most CAP scores."""
    keys, columns = keys_at(scores, held, begin, end, HELD, CAP)
    total = tl.sum((keys != NONE).to(tl.int32), axis=0)
    return choose(out, keys, columns, total, limit, base, lists, list_row, list_stride, window, LISTED)


@triton.jit
def search_row(scores, held, begin, end, limit, key, reached, short, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """The exact cut of a row, or of what is held of it, by full reads: (cut, how many keys equal to it are kept).

    key, reached: A threshold and how many scores reach it: fewer than `limit` where `short`, else more than fit.
    """
    q = tl.where(short, LEAST, key)
    above = tl.where(short, key, BEYOND)
    n, n_above = tl.where(short, 2147483647, reached), tl.where(short & (key > LEAST), reached, 0)
    is_first = n == n
    while (q < above - 1) & (n != limit):
        q1, q2, q3 = quarter(q, above, 1), quarter(q, above, 2), quarter(q, above, 3)
        # A threshold that many scores equal is often the cut itself.
        q1 = tl.where(is_first, q + 1, q1)
        is_first = n != n
        c0, c1 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        c2, c3 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        for start in range(begin, end, BLOCK):
            keys, _ = keys_at(scores, held, start, end, HELD, BLOCK)
            c0 += (keys >= q).to(tl.int32)
            c1 += (keys >= q1).to(tl.int32)
            c2 += (keys >= q2).to(tl.int32)
            c3 += (keys >= q3).to(tl.int32)
        n0, n1, n2, n3 = tl.sum(c0, axis=0), tl.sum(c1, axis=0), tl.sum(c2, axis=0), tl.sum(c3, axis=0)
        n_above = tl.where(n1 < limit, n1, tl.where(n2 < limit, n2, tl.where(n3 < limit, n3, n_above)))
        above = tl.where(n1 < limit, q1, tl.where(n2 < limit, q2, tl.where(n3 < limit, q3, above)))
        q = tl.where(n3 >= limit, q3, tl.where(n2 >= limit, q2, tl.where(n1 >= limit, q1, q)))
        n = tl.where(n3 >= limit, n3, tl.where(n2 >= limit, n2, tl.where(n1 >= limit, n1, n0)))
        # Fewer eligible scores than wanted: all are kept.
        above = tl.where(n < limit, q + 1, above)
    # n == limit: all that reach q are kept. Else q is the cut, and n_above lie above it.
    return tl.where(n == limit, q - 1, q), tl.where(n == limit, 0, limit - n_above)


@triton.jit
def choose_row(
    out, scores, held, begin, end, cut, ties, base, lists, list_row, list_stride, window,
    LISTED: tl.constexpr, HELD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what a cut keeps of the same, by one read in order; how many positions are written."""
    written, tied, dropped = 0, 0, 0
    for start in range(begin, end, BLOCK):
        keys, column = keys_at(scores, held, start, end, HELD, BLOCK)
        written, tied, out_of = write_block(
            out, keys, column, cut, ties, base, lists, list_row, list_stride, window, written, tied, LISTED
        )
        dropped += out_of
    return written - dropped


@triton.jit
def search_and_choose(
    out, scores, held, begin, end, limit, key, reached, short, base, lists, list_row, list_stride, window,
    LISTED: tl.constexpr, HELD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both of them."""
    cut, ties = search_row(scores, held, begin, end, limit, key, reached, short, HELD, BLOCK)
    return choose_row(
        out, scores, held, begin, end, cut, ties, base, lists, list_row, list_stride, window, LISTED, HELD, BLOCK
    )


@triton.jit
def choose_kernel(
    scores, stride, table, lo, hi, step, limit, thresholds, marks, words, held,
    lists, list_stride, list_rows, out, width, window, window_step, last,
    CAP: tl.constexpr, PLACES: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
    MARKED: tl.constexpr, LISTED: tl.constexpr, APPENDED: tl.constexpr,
    FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). out [rows, width]: the best `limit` positions of each row, ascending, with a tail of -1.

    MARKED: A row of more than CAP columns comes with bits for those that may be among them. LISTED: Column c is position
    lists[row // list_rows, c]. APPENDED: Positions [window, last) follow, and none of them is written before.
    """
    row = tl.program_id(0)
    base, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    window_from = row * 0 + BEYOND
    if APPENDED:
        window_from = number_of(row, table, window, window_step, 4, FIELDS, TABLE)
    list_row = (row // list_rows).to(tl.int64)
    scores += row.to(tl.int64) * stride
    out += row.to(tl.int64) * width
    if MARKED:
        key = tl.load(thresholds + row)
        if key == WHOLE:
            written = choose_short(
                out, scores, out, begin, end, limit, base, lists, list_row, list_stride, window_from, LISTED, False, CAP
            )
        else:
            held += row.to(tl.int64) * PLACES
            total = list_marks(marks + row.to(tl.int64) * words, words, held, PLACES, WORDS)
            tl.debug_barrier()
            if (total < limit) | (total > PLACES):
                written = search_and_choose(
                    out, scores, held, begin, end, limit, key, total, total < limit,
                    base, lists, list_row, list_stride, window_from, LISTED, False, BLOCK,
                )  # fmt: skip
            elif total <= CAP:
                written = choose_short(
                    out, scores, held, 0, total, limit, base, lists, list_row, list_stride, window_from, LISTED, True, CAP
                )
            else:
                written = search_and_choose(
                    out, scores, held, 0, total, limit, key, total, total < limit,
                    base, lists, list_row, list_stride, window_from, LISTED, True, BLOCK,
                )  # fmt: skip
    else:
        written = choose_short(
            out, scores, out, begin, end, limit, base, lists, list_row, list_stride, window_from, LISTED, False, CAP
        )
    if APPENDED:
        end_of = number_of(row, table, last, window_step, 5, FIELDS, TABLE)
        for start in range(window_from, end_of, 128):
            i = start + tl.arange(0, 128)
            tl.store(out + written + i - window_from, i, mask=i < end_of)
        written += end_of - window_from
    for start in range(written, width, 1024):
        i = start + tl.arange(0, 1024)
        tl.store(out + i, -1, mask=i < width)
