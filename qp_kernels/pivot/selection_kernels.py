"""Triton kernels that select: the exact best columns of each row of a score matrix, ascending.

Three steps, the truncation idea of Qrita on scores, whose tails are long, so that no bell curve tells the threshold:

1. A sample of a long row tells a threshold that a few more than `limit` of its scores reach.
2. One read of the row: whether a score reaches the threshold becomes a bit, so that order costs nothing.
3. The few that are marked are listed, and searched in registers for the exact cut; the positions kept are written.

`threshold_kernel`, `mark_kernel` and `choose_kernel` take a step each. For few rows `few_kernel` takes all three: each of
its programs marks a part of a row, and the last one that ends goes on. Short rows need the third step only. Where the
threshold left too few or too many, the row itself is searched, in full reads.

Scores are compared as int32 keys with their order; -0.0 equals 0.0. Equal scores: lowest column. NaN is never selected.
A row's result does not depend on the sample, the parts or the other rows.
"""

import triton
import triton.language as tl

from ..qrita.parts import BEYOND, INTERPRETED, keys_of, value_of
from ..qrita.searches import quarter

# The key of what is none: below the key of -inf.
NONE = tl.constexpr(-(2**31))
# Key of -inf.
LEAST = tl.constexpr(-(2**31) + 0x7FFFFF)
# The threshold of a row that is not marked, because it is short.
WHOLE = tl.constexpr(-(2**31) + 1)


@triton.jit
def bounds_of(row, table, lo, hi, step, FIELDS: tl.constexpr, TABLE: tl.constexpr):
    """A row's base (the position of column 0) and its columns [begin, end)."""
    base, first, last = lo, lo, hi + step * row
    if TABLE:
        table += FIELDS * row
        base, first, last = tl.load(table), tl.load(table + 1), tl.load(table + 2)
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
def merge_extremes(least, largest, n, least_2, largest_2, n_2):
    return tl.minimum(least, least_2), tl.maximum(largest, largest_2), n + n_2


@triton.jit
def extremes(keys):
    """The least and the largest key that is not NONE, and how many such there are."""
    there = keys != NONE
    least, n = tl.where(there, keys, BEYOND), there.to(tl.int32)
    if INTERPRETED:
        return tl.min(least, axis=0), tl.max(keys, axis=0), tl.sum(n, axis=0)
    else:
        return tl.reduce((least, keys, n), 0, merge_extremes)


@triton.jit
def merge_sum_and_max(a, b, a_2, b_2):
    return a + a_2, tl.maximum(b, b_2)


@triton.jit
def sum_and_max(n):
    if INTERPRETED:
        return tl.sum(n, axis=0), tl.max(n, axis=0)
    else:
        return tl.reduce((n, n), 0, merge_sum_and_max)


@triton.jit
def count_three(keys, q1, q2, q3):
    """How many keys, fewer than 2**20, reach each of three pivots."""
    one = tl.zeros_like(keys).to(tl.int64) + 1
    fields = tl.where(keys >= q1, one, 0) + tl.where(keys >= q2, one << 20, 0) + tl.where(keys >= q3, one << 40, 0)
    total = tl.sum(fields, axis=0)
    return (total & 0xFFFFF).to(tl.int32), ((total >> 20) & 0xFFFFF).to(tl.int32), (total >> 40).to(tl.int32)


@triton.jit
def cut_of(keys, limit, slack):
    """(q, n, ties): n keys reach q. There q is the largest such pivot with limit <= n <= limit + slack, if there is one.

    Else q is the limit-th largest key, and `ties` of those equal to it are among the first `limit`. In both cases what
    is above q, and of what equals q the first `ties`, are the first `limit` if n is; fewer keys than that are all kept.
    """
    q, largest, n = extremes(keys)
    ties = limit
    above, n_above = largest + 1, 0
    while (n > limit + slack) & (q < above - 1):
        q1, q2, q3 = quarter(q, above, 1), quarter(q, above, 2), quarter(q, above, 3)
        n1, n2, n3 = count_three(keys, q1, q2, q3)
        n_above = tl.where(n1 < limit, n1, tl.where(n2 < limit, n2, tl.where(n3 < limit, n3, n_above)))
        above = tl.where(n1 < limit, q1, tl.where(n2 < limit, q2, tl.where(n3 < limit, q3, above)))
        q = tl.where(n3 >= limit, q3, tl.where(n2 >= limit, q2, tl.where(n1 >= limit, q1, q)))
        n = tl.where(n3 >= limit, n3, tl.where(n2 >= limit, n2, tl.where(n1 >= limit, n1, n)))
    ties = tl.where(n > limit, limit - n_above, limit)
    return q, n, ties


@triton.jit
def threshold_of(scores, begin, end, limit, RUNS: tl.constexpr, RUN: tl.constexpr, CAP: tl.constexpr):
    """A key that some more than `limit` of the scores [begin, end) of a row reach, as a sample tells; WHOLE for few.

    The sample are RUNS runs of RUN neighbours, one at a place of its own in each of RUNS equal parts of the row.
    """
    length = end - begin
    key = length * 0 + WHOLE
    if length > CAP:
        i = tl.arange(0, RUNS * RUN)
        part = i // RUN
        size = length // RUNS
        jitter = ((part * 40503) & 0xFFFF) * (size - RUN + 1) >> 16
        keys = ordered(tl.load(scores + begin + part * size + jitter + i % RUN))
        expected = limit.to(tl.float32) * (RUNS * RUN) / length.to(tl.float32)
        wanted = (expected + 3.5 * tl.sqrt(expected) + 3.0).to(tl.int32)
        q, n, _ = cut_of(keys, wanted, wanted // 8)
        key = tl.where(n < wanted, LEAST, q)
    return key


@triton.jit
def mark(scores, begin, end, key, marks, tile, TILE: tl.constexpr, PADDED: tl.constexpr):
    """Bit j of word i of a row's marks: whether score 32 i + j reaches the key. For TILE scores, read once."""
    bit = tl.arange(0, 32)
    word = tile * (TILE // 32) + tl.arange(0, TILE // 32)
    column = word[:, None] * 32 + bit[None, :]
    inside = (column >= begin) & (column < end)
    if PADDED:  # rows are padded to whole tiles, so that no mask is needed, and 16 bytes are read at once
        values = tl.load(scores + column)
    else:
        values = tl.load(scores + column, mask=inside, other=0.0)
    reaches = (inside & (values >= value_of(key))).to(tl.int32)
    tl.store(marks + word, tl.sum(reaches << bit[None, :], axis=1))


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
        here, most = sum_and_max(n)
        total += here
        if total <= PLACES:
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
def put(out, width, members, slot, positions, mask, REPEAT: tl.constexpr):
    """Store positions into each of a row's `members` rows of the result, at most REPEAT."""
    for member in tl.static_range(REPEAT):
        tl.store(out + member * width + slot, positions, mask=mask & (member < members))


@triton.jit
def write_block(
    out, width, members, keys, columns, cut, ties, written, tied, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the positions of a block's kept columns; (kept, ties, not written) so far, after it.

    Kept: keys above the cut, and of those equal to it the first `ties`. Not written (APPENDED): positions from `window`.
    """
    strict, equal = keys > cut, keys == cut
    marks = strict.to(tl.int32) * 65536 + equal.to(tl.int32)
    ranks = tl.cumsum(marks, axis=0)
    tie_rank = (ranks & 0xFFFF) + tied
    kept = strict | (equal & (tie_rank <= ties))
    positions = base + columns
    if LISTED:
        positions = tl.load(listed + columns, mask=kept, other=0)
    slot = written + (ranks >> 16) + tl.minimum(tie_rank, ties) - tl.minimum(tied, ties) - 1
    dropped = 0
    there = kept
    if APPENDED:
        there = kept & (positions < window)
        dropped = tl.sum((kept & (positions >= window)).to(tl.int32), axis=0)
    put(out, width, members, slot, positions, there, REPEAT)
    total = tl.sum(marks, axis=0)
    after = tied + (total & 0xFFFF)
    return written + (total >> 16) + tl.minimum(after, ties) - tl.minimum(tied, ties), after, dropped


@triton.jit
def choose_short(
    out, width, members, scores, held, begin, end, limit, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, HELD: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Write the best `limit` of a row, or of what is held of it, of at most CAP scores; how many positions are written."""
    keys, columns = keys_at(scores, held, begin, end, HELD, CAP)
    cut, n, ties = cut_of(keys, limit, 0)
    _, _, dropped = write_block(
        out, width, members, keys, columns, cut, ties, 0, 0, base, listed, window, LISTED, APPENDED, REPEAT
    )
    return tl.minimum(n, limit) - dropped


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
def choose_long(
    out, width, members, scores, held, begin, end, limit, key, reached, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, HELD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same in memory: of a row of any length, or of more than fit registers of what is held of it."""
    cut, ties = search_row(scores, held, begin, end, limit, key, reached, reached < limit, HELD, BLOCK)
    written, tied, dropped = 0, 0, 0
    for start in range(begin, end, BLOCK):
        keys, columns = keys_at(scores, held, start, end, HELD, BLOCK)
        written, tied, out_of = write_block(
            out, width, members, keys, columns, cut, ties, written, tied, base, listed, window, LISTED, APPENDED, REPEAT
        )
        dropped += out_of
    return written - dropped


@triton.jit
def choose_marked(
    out, width, members, scores, marks, words, held, begin, end, limit, key, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    CAP: tl.constexpr, PLACES: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of a marked row."""
    total = list_marks(marks, words, held, PLACES, WORDS)
    tl.debug_barrier()
    if (total < limit) | (total > PLACES):
        written = choose_long(
            out, width, members, scores, held, begin, end, limit, key, total, base, listed, window,
            LISTED, APPENDED, REPEAT, False, BLOCK,
        )  # fmt: skip
    elif total <= CAP:
        written = choose_short(
            out, width, members, scores, held, 0, total, limit, base, listed, window,
            LISTED, APPENDED, REPEAT, True, CAP,
        )  # fmt: skip
    else:
        written = choose_long(
            out, width, members, scores, held, 0, total, limit, key, total, base, listed, window,
            LISTED, APPENDED, REPEAT, True, BLOCK,
        )  # fmt: skip
    return written


@triton.jit
def finish(
    out, width, members, written, window, last, APPENDED: tl.constexpr, REPEAT: tl.constexpr
):  # fmt: skip
    """Write the positions [window, last) after the others (APPENDED), and -1 into what is left of a row."""
    if APPENDED:
        for start in range(window, last, 128):
            i = start + tl.arange(0, 128)
            put(out, width, members, written + i - window, i, i < last, REPEAT)
        written += last - window
    for start in range(written, width, 1024):
        i = start + tl.arange(0, 1024)
        put(out, width, members, i, tl.full([1024], -1, tl.int32), i < width, REPEAT)


@triton.jit
def threshold_kernel(
    scores, stride, table, lo, hi, step, limit, thresholds,
    RUNS: tl.constexpr, RUN: tl.constexpr, CAP: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A threshold for each row: reads RUNS * RUN scores of it."""
    row = tl.program_id(0)
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    tl.store(thresholds + row, threshold_of(scores + row.to(tl.int64) * stride, begin, end, limit, RUNS, RUN, CAP))


@triton.jit
def mark_kernel(
    scores, stride, table, lo, hi, step, thresholds, marks, tiles,
    TILE: tl.constexpr, PADDED: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). The marks of a tile: reads TILE scores, writes TILE / 32 words."""
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    key = tl.load(thresholds + row)
    if key != WHOLE:
        marks += row.to(tl.int64) * tiles * (TILE // 32)
        mark(scores + row.to(tl.int64) * stride, begin, end, key, marks, tile, TILE, PADDED)


@triton.jit
def choose_kernel(
    scores, stride, table, lo, hi, step, limit, thresholds, marks, words, held,
    lists, list_stride, list_rows, out, width, out_rows, window, last,
    CAP: tl.constexpr, PLACES: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr, MARKED: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). The best `limit` positions of each row, ascending, with a tail of -1.

    They go to rows REPEAT * row ... of out [out_rows, width]. MARKED: A row of more than CAP columns comes with marks.
    LISTED: Column c is position lists[row // list_rows, c]. APPENDED: Positions [window, last) follow, and none of them
    is written before.
    """
    row = tl.program_id(0)
    base, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    window = number_of(row, table, window, step, 4, FIELDS, TABLE)
    last = number_of(row, table, last, step, 5, FIELDS, TABLE)
    members = out_rows - row * REPEAT
    listed = lists
    if LISTED:
        listed += (row // list_rows).to(tl.int64) * list_stride
    scores += row.to(tl.int64) * stride
    out += row.to(tl.int64) * REPEAT * width
    if MARKED:
        key = tl.load(thresholds + row)
        if key == WHOLE:
            written = choose_short(
                out, width, members, scores, out, begin, end, limit, base, listed, window,
                LISTED, APPENDED, REPEAT, False, CAP,
            )  # fmt: skip
        else:
            written = choose_marked(
                out, width, members, scores, marks + row.to(tl.int64) * words, words, held + row.to(tl.int64) * PLACES,
                begin, end, limit, key, base, listed, window, LISTED, APPENDED, REPEAT, CAP, PLACES, WORDS, BLOCK,
            )  # fmt: skip
    else:
        written = choose_short(
            out, width, members, scores, out, begin, end, limit, base, listed, window,
            LISTED, APPENDED, REPEAT, False, CAP,
        )  # fmt: skip
    finish(out, width, members, written, window, last, APPENDED, REPEAT)


@triton.jit
def few_kernel(
    scores, stride, table, lo, hi, step, limit, arrived, marks, words, tiles, held,
    lists, list_stride, list_rows, out, width, out_rows, window, last,
    RUNS: tl.constexpr, RUN: tl.constexpr, TILE: tl.constexpr, PADDED: tl.constexpr,
    CAP: tl.constexpr, PLACES: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). The same of few rows: each program marks a tile, and the last of a row's chooses.

    All programs of a row find the same threshold. arrived [rows] are zeros.
    """
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    base, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    window = number_of(row, table, window, step, 4, FIELDS, TABLE)
    last = number_of(row, table, last, step, 5, FIELDS, TABLE)
    members = out_rows - row * REPEAT
    listed = lists
    if LISTED:
        listed += (row // list_rows).to(tl.int64) * list_stride
    scores += row.to(tl.int64) * stride
    out += row.to(tl.int64) * REPEAT * width
    marks += row.to(tl.int64) * words
    key = threshold_of(scores, begin, end, limit, RUNS, RUN, CAP)
    if key == WHOLE:
        if tile == 0:
            written = choose_short(
                out, width, members, scores, out, begin, end, limit, base, listed, window,
                LISTED, APPENDED, REPEAT, False, CAP,
            )  # fmt: skip
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
    else:
        mark(scores, begin, end, key, marks, tile, TILE, PADDED)
        tl.debug_barrier()  # all that this program has written comes before its arrival
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") == tiles - 1:
            tl.debug_barrier()
            written = choose_marked(
                out, width, members, scores, marks, words, held + row.to(tl.int64) * PLACES,
                begin, end, limit, key, base, listed, window, LISTED, APPENDED, REPEAT, CAP, PLACES, WORDS, BLOCK,
            )  # fmt: skip
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
