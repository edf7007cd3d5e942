"""Triton kernels that select: the exact best columns of each row of a score matrix, ascending.

Three steps, the truncation idea of Qrita on scores, whose tails are long, so that no bell curve tells the threshold:

1. A sample of a long row tells a threshold that a few more than `limit` of its scores reach.
2. One read of the row, by many programs: each gathers the scores of a tile that reach the threshold, in order.
3. The few that were gathered are searched in registers for the exact cut, and the positions that are kept are written.

`threshold_kernel`, `gather_kernel` and `choose_kernel` take a step each. Where rows are few, `select_kernel` takes all
three: each of its programs gathers a tile, and the one of a row that ends last goes on. Short rows need the third step
only. Where a threshold left too few or too many, the row itself is searched, in full reads.

Scores are compared as int32 keys with their order; -0.0 equals 0.0. Equal scores: lowest column. NaN is never selected.
A row's result does not depend on the sample, the tiles or the other rows.
"""

import triton
import triton.language as tl

from ..qrita.parts import BEYOND, INTERPRETED, keys_of, pack, value_of
from ..qrita.searches import quarter

# The key of what is none: below the key of -inf.
NONE = tl.constexpr(-(2**31))
# Key of -inf.
LEAST = tl.constexpr(-(2**31) + 0x7FFFFF)
# The threshold of a row that is not gathered, because it is short.
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
def merge_three(a, b, c, a_2, b_2, c_2):
    return a + a_2, b + b_2, c + c_2


@triton.jit
def count_three(keys, q1, q2, q3):
    """How many keys reach each of three pivots."""
    a, b, c = (keys >= q1).to(tl.int32), (keys >= q2).to(tl.int32), (keys >= q3).to(tl.int32)
    if INTERPRETED:
        return tl.sum(a, axis=0), tl.sum(b, axis=0), tl.sum(c, axis=0)
    else:
        return tl.reduce((a, b, c), 0, merge_three)


@triton.jit
def cut_of(keys, limit, slack):
    """(q, n, ties): n keys reach q, and what is above q with the first `ties` of what equals it are the first `limit`.

    With slack, q may be lower: the search ends where n <= limit + slack. Fewer keys than `limit` are all kept.
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
        jitter = ((part * 40503) & 0xFFFF) * tl.maximum(size - RUN + 1, 1) >> 16
        keys = ordered(tl.load(scores + tl.minimum(begin + part * size + jitter + i % RUN, end - 1)))
        expected = limit.to(tl.float32) * (RUNS * RUN) / length.to(tl.float32)
        wanted = (expected + 4.0 * tl.sqrt(expected) + 3.0).to(tl.int32)
        q, n, _ = cut_of(keys, wanted, wanted // 16)
        # Where many scores equal q, it is likely the cut: only what is above is gathered (`choose_tied`).
        key = tl.where(n < wanted, LEAST, tl.where(n > 2 * wanted, q + 1, q))
    return key


@triton.jit
def hold(held, place, values, columns, least):
    """Store the scores that reach `least`, packed with their columns, at their places.

    As tl.store does, which would first move everything through shared memory: it wants a layout of its own.
    """
    if INTERPRETED:
        tl.store(held + place, pack(values, columns), mask=values >= least)
    else:
        tl.inline_asm_elementwise(
            """{
            .reg .pred reaches;
            .reg .b64 address;
            setp.ge.f32 reaches, $3, $5;
            mad.wide.s32 address, $2, 8, $1;
            @reaches st.global.v2.b32 [address], {$4, $3};
            mov.b32 $0, $2;
            }""",
            "=r,l,r,f,r,f",
            [held.to(tl.int64) + tl.zeros_like(place), place, values, columns, least + tl.zeros_like(values)],
            tl.int32,
            False,
            1,
        )


@triton.jit
def gather(
    scores, begin, end, key, held, tile, TILE: tl.constexpr, PLACES: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """Write the scores of a tile that reach the key, with their columns, in order; how many reach it.

    Nothing is written where they are more than PLACES. PADDED: Rows are aligned, so that whole tiles need no mask, and
    are read 16 bytes at once.
    """
    first = tile * TILE
    if PADDED:
        if (first >= begin) & (first + TILE <= end):
            total = gather_tile(scores, begin, end, key, held, first, TILE, PLACES, False)
        else:
            total = gather_tile(scores, begin, end, key, held, first, TILE, PLACES, True)
    else:
        total = gather_tile(scores, begin, end, key, held, first, TILE, PLACES, True)
    return total


@triton.jit
def gather_tile(
    scores, begin, end, key, held, first, TILE: tl.constexpr, PLACES: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """The same of a tile with or without columns that do not count."""
    line, lane = tl.arange(0, TILE // 32), tl.arange(0, 32)
    column = first + line[:, None] * 32 + lane[None, :]
    if MASKED:
        values = tl.load(scores + column, mask=(column >= begin) & (column < end), other=float("nan"))
    else:
        values = tl.load(scores + column)
    least = value_of(key)
    keep = (values >= least).to(tl.int32)
    # Ranks within lines of 32, and of the lines: a scan of all scores would take longer than the read.
    rank = tl.cumsum(keep, axis=1)
    n = tl.sum(keep, axis=1)
    total = tl.sum(n, axis=0)
    if total <= PLACES:
        hold(held, (tl.cumsum(n, axis=0) - n - 1)[:, None] + rank, values, column, least)
    return total


@triton.jit
def locate(starts, i, tiles, PLACES: tl.constexpr):
    """Where the i-th gathered score of a row lies: starts [tiles + 1] are the numbers gathered before each tile."""
    tile, size = tl.zeros_like(i), 1
    while size < tiles:
        size *= 2
    while size > 1:
        size = size // 2
        middle = tile + size
        is_there = (middle < tiles) & (tl.load(starts + tl.minimum(middle, tiles)) <= i)
        tile = tl.where(is_there, middle, tile)
    return tile * PLACES + i - tl.load(starts + tile)


@triton.jit
def keys_at(scores, held, starts, tiles, start, end, HELD: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """Keys and columns from `start` on: of the row, or (HELD) of what was gathered; NONE from `end` on."""
    column = start + tl.arange(0, BLOCK)
    there = column < end
    if HELD:
        packed = tl.load(held + locate(starts, tl.minimum(column, end - 1), tiles, PLACES), mask=there, other=0)
        column = packed.to(tl.int32)
        keys = tl.where(there, ordered((packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)), NONE)
    else:
        keys = ordered(tl.load(scores + column, mask=there, other=float("nan")))
    return keys, column


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

    Kept: keys above the cut, and of those equal to it the first `ties`. APPENDED: Positions from `window` on are not
    written.
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
    out, width, members, scores, held, starts, tiles, begin, end, limit, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    HELD: tl.constexpr, PLACES: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Write the best `limit` of a row, or of what is held of it, of at most CAP scores; how many are written."""
    keys, columns = keys_at(scores, held, starts, tiles, begin, end, HELD, PLACES, CAP)
    cut, n, ties = cut_of(keys, limit, 0)
    _, _, dropped = write_block(
        out, width, members, keys, columns, cut, ties, 0, 0, base, listed, window, LISTED, APPENDED, REPEAT
    )
    return tl.minimum(n, limit) - dropped


@triton.jit
def search_row(
    scores, held, starts, tiles, begin, end, limit, key, reached, short,
    HELD: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
            keys, _ = keys_at(scores, held, starts, tiles, start, end, HELD, PLACES, BLOCK)
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
    out, width, members, scores, held, starts, tiles, begin, end, limit, key, reached, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    HELD: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same in memory: of a row of any length, or of more than fit registers of what is held of it."""
    cut, ties = search_row(
        scores, held, starts, tiles, begin, end, limit, key, reached, reached < limit, HELD, PLACES, BLOCK
    )
    written, tied, dropped = 0, 0, 0
    for start in range(begin, end, BLOCK):
        keys, columns = keys_at(scores, held, starts, tiles, start, end, HELD, PLACES, BLOCK)
        written, tied, out_of = write_block(
            out, width, members, keys, columns, cut, ties, written, tied, base, listed, window, LISTED, APPENDED, REPEAT
        )
        dropped += out_of
    return written - dropped


@triton.jit
def choose_tied(
    out, width, members, scores, held, starts, tiles, begin, end, limit, key, reached, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what reaches the key, fewer than `limit`, and the first scores that lie just below it, if they suffice.

    Returns (how many are written, whether they do). The row is read until there are enough of them; what is above them
    in what is left of it was gathered.
    """
    ties = limit - reached
    start = begin
    written, tied, dropped = 0, 0, 0
    while (tied < ties) & (start < end):
        keys, columns = keys_at(scores, held, starts, tiles, start, end, False, PLACES, BLOCK)
        written, tied, out_of = write_block(
            out, width, members, keys, columns, key - 1, ties, written, tied, base, listed, window,
            LISTED, APPENDED, REPEAT,
        )  # fmt: skip
        dropped += out_of
        start += BLOCK
    if tied >= ties:
        for first in range(0, reached, BLOCK):
            keys, columns = keys_at(scores, held, starts, tiles, first, reached, True, PLACES, BLOCK)
            keys = tl.where(columns >= start, keys, NONE)
            written, tied, out_of = write_block(
                out, width, members, keys, columns, key - 1, ties, written, tied, base, listed, window,
                LISTED, APPENDED, REPEAT,
            )  # fmt: skip
            dropped += out_of
    return written - dropped, tied >= ties


@triton.jit
def choose_gathered(
    out, width, members, scores, held, starts, counts, tiles, begin, end, limit, key, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    CAP: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of a row that was gathered: counts [tiles] reach the key; starts [tiles + 1] is written."""
    total, most = 0, 0
    for first in range(0, tiles, TILES):
        tile = first + tl.arange(0, TILES)
        n = tl.load(counts + tile, mask=tile < tiles, other=0)
        tl.store(starts + tile, total + tl.cumsum(n, axis=0) - n, mask=tile < tiles)
        total += tl.sum(n, axis=0)
        most = tl.maximum(most, tl.max(n, axis=0))
    tl.store(starts + tiles, total)
    tl.debug_barrier()
    written, done = 0, total < 0
    if (total < limit) & (most <= PLACES) & (key > LEAST):
        written, done = choose_tied(
            out, width, members, scores, held, starts, tiles, begin, end, limit, key, total, base, listed, window,
            LISTED, APPENDED, REPEAT, PLACES, BLOCK,
        )  # fmt: skip
    if not done:
        if (total < limit) | (most > PLACES):
            written = choose_long(
                out, width, members, scores, held, starts, tiles, begin, end, limit, key, total, base, listed, window,
                LISTED, APPENDED, REPEAT, False, PLACES, BLOCK,
            )  # fmt: skip
        elif total <= CAP:
            written = choose_short(
                out, width, members, scores, held, starts, tiles, 0, total, limit, base, listed, window,
                LISTED, APPENDED, REPEAT, True, PLACES, CAP,
            )  # fmt: skip
        else:
            written = choose_long(
                out, width, members, scores, held, starts, tiles, 0, total, limit, key, total, base, listed, window,
                LISTED, APPENDED, REPEAT, True, PLACES, BLOCK,
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
def gather_kernel(
    scores, stride, table, lo, hi, step, thresholds, held, counts, tiles,
    TILE: tl.constexpr, PLACES: tl.constexpr, PADDED: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). Reads TILE scores of a row once; keeps those that reach its threshold, 8 bytes each.

    They go to held [rows, tiles, PLACES]. counts [rows, tiles] tells how many they are, which may be more than PLACES.
    """
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    key = tl.load(thresholds + row)
    if key != WHOLE:
        scores += row.to(tl.int64) * stride
        held += (row.to(tl.int64) * tiles + tile) * PLACES
        tl.store(counts + row * tiles + tile, gather(scores, begin, end, key, held, tile, TILE, PLACES, PADDED))


@triton.jit
def choose_kernel(
    scores, stride, table, lo, hi, step, limit, lists, list_stride, list_rows, out, width, out_rows, window, last,
    thresholds, held, starts, counts, tiles,
    GATHERED: tl.constexpr, CAP: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). The best `limit` positions of each row, ascending, with a tail of -1.

    GATHERED: A row of more than CAP columns comes with what reaches its threshold. The result goes to rows REPEAT * row
    ... of out [out_rows, width]. LISTED: Column c is position lists[row // list_rows, c]. APPENDED: Positions [window,
    last) follow, and none of them is written before.
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
    if GATHERED:
        key = tl.load(thresholds + row)
        counts += row * tiles
        starts += row * (tiles + 1)
        held += row.to(tl.int64) * tiles * PLACES
        if key == WHOLE:
            written = choose_short(
                out, width, members, scores, held, starts, tiles, begin, end, limit, base, listed, window,
                LISTED, APPENDED, REPEAT, False, PLACES, CAP,
            )  # fmt: skip
        else:
            written = choose_gathered(
                out, width, members, scores, held, starts, counts, tiles, begin, end, limit, key, base, listed, window,
                LISTED, APPENDED, REPEAT, CAP, PLACES, TILES, BLOCK,
            )  # fmt: skip
    else:
        written = choose_short(
            out, width, members, scores, out, out, 0, begin, end, limit, base, listed, window,
            LISTED, APPENDED, REPEAT, False, PLACES, CAP,
        )  # fmt: skip
    finish(out, width, members, written, window, last, APPENDED, REPEAT)


@triton.jit
def select_kernel(
    scores, stride, table, lo, hi, step, limit, lists, list_stride, list_rows, out, width, out_rows, window, last,
    arrived, held, starts, counts, tiles,
    RUNS: tl.constexpr, RUN: tl.constexpr, TILE: tl.constexpr, PADDED: tl.constexpr,
    CAP: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). The same of few rows: a program gathers a tile, and the one of a row that ends last chooses.

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
    key = threshold_of(scores, begin, end, limit, RUNS, RUN, CAP)
    counts += row * tiles
    starts += row * (tiles + 1)
    held += row.to(tl.int64) * tiles * PLACES
    if key == WHOLE:
        if tile == 0:
            written = choose_short(
                out, width, members, scores, held, starts, tiles, begin, end, limit, base, listed, window,
                LISTED, APPENDED, REPEAT, False, PLACES, CAP,
            )  # fmt: skip
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
    else:
        n = gather(scores, begin, end, key, held + tile * PLACES, tile, TILE, PLACES, PADDED)
        tl.store(counts + tile, n)
        tl.debug_barrier()  # all that this program has written comes before its arrival
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") == tiles - 1:
            tl.debug_barrier()
            written = choose_gathered(
                out, width, members, scores, held, starts, counts, tiles, begin, end, limit, key, base, listed, window,
                LISTED, APPENDED, REPEAT, CAP, PLACES, TILES, BLOCK,
            )  # fmt: skip
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
