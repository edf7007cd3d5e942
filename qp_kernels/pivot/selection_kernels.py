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

from ..qrita.parts import BEYOND
from .selection_parts import (
    LEAST,
    NONE,
    WHOLE,
    bounds_of,
    compact,
    compacted,
    cut_of,
    gather,
    held_at,
    keys_at,
    number_of,
    pivots,
    threshold_of,
)

# A row's places are read instead of the row where they are at most one for so many columns.
SPARSE = tl.constexpr(2)
# Of other values nothing is compiled: they change from one step of a decode to the next.
NUMBERS = [
    *("lo", "hi", "step", "limit", "list_rows", "width", "out_rows", "window", "last", "tiles", "spans"),
]


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
    out, width, members, keys, columns, limit, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the best `limit` of keys in registers; how many are written."""
    cut, n, ties = cut_of(keys, limit, 0)
    _, _, dropped = write_block(
        out, width, members, keys, columns, cut, ties, 0, 0, base, listed, window, LISTED, APPENDED, REPEAT
    )
    return tl.minimum(n, limit) - dropped


@triton.jit
def block_of(
    scores, held, starts, tiles, start, stop, begin, end,
    HELD: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and columns from `start` up to `stop`: of a row, or (HELD) of its places."""
    if HELD:
        return held_at(scores, held, starts, tiles, start, stop, begin, end, PLACES < TILE, TILE, PLACES, BLOCK)
    else:
        return keys_at(scores, start, stop, BLOCK)


@triton.jit
def search_row(
    scores, held, starts, tiles, start, stop, begin, end, limit, key, reached, short,
    HELD: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The exact cut of a row, or of its places, by full reads: (cut, how many keys equal to it are kept).

    key, reached: A threshold and how many scores reach it: fewer than `limit` where `short`, else more than fit.
    """
    q = tl.where(short, LEAST, key)
    above = tl.where(short, key, BEYOND)
    n, n_above = tl.where(short, 2147483647, reached), tl.where(short & (key > LEAST), reached, 0)
    is_first = n == n
    while (q < above - 1) & (n != limit):
        q1, q2, q3 = pivots(q, above)
        # A threshold that many scores equal is often the cut itself.
        q1 = tl.where(is_first, q + 1, q1)
        is_first = n != n
        c0, c1 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        c2, c3 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        for first in range(start, stop, BLOCK):
            keys, _ = block_of(scores, held, starts, tiles, first, stop, begin, end, HELD, TILE, PLACES, BLOCK)
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
    out, width, members, scores, held, starts, tiles, places, begin, end, limit, key, reached, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    HELD: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same in memory: of a row of any length, or of more places than fit registers."""
    start, stop = begin, end
    if HELD:
        start, stop = 0, places
    cut, ties = search_row(
        scores, held, starts, tiles, start, stop, begin, end, limit, key, reached, reached < limit,
        HELD, TILE, PLACES, BLOCK,
    )  # fmt: skip
    written, tied, dropped = 0, 0, 0
    for first in range(start, stop, BLOCK):
        keys, columns = block_of(scores, held, starts, tiles, first, stop, begin, end, HELD, TILE, PLACES, BLOCK)
        written, tied, out_of = write_block(
            out, width, members, keys, columns, cut, ties, written, tied, base, listed, window, LISTED, APPENDED, REPEAT
        )
        dropped += out_of
    return written - dropped


@triton.jit
def choose_tied(
    out, width, members, scores, held, starts, tiles, places, begin, end, limit, key, reached, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr,
    TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what reaches the key, fewer than `limit`, and the first scores that lie just below it, if they suffice.

    Returns (how many are written, whether they do). The row is read until there are enough of them, which are many if
    they are the cut, so that its first block must have one; what is above them in what is left of it was gathered.
    """
    ties = limit - reached
    start = begin
    written, tied, dropped = 0, 0, 0
    while (tied < ties) & (start < end) & ((tied > 0) | (start == begin)):
        keys, columns = keys_at(scores, start, end, BLOCK)
        written, tied, out_of = write_block(
            out, width, members, keys, columns, key - 1, ties, written, tied, base, listed, window,
            LISTED, APPENDED, REPEAT,
        )  # fmt: skip
        dropped += out_of
        start += BLOCK
    if tied >= ties:
        for first in range(0, places, BLOCK):
            keys, columns = block_of(scores, held, starts, tiles, first, places, begin, end, True, TILE, PLACES, BLOCK)
            keys = tl.where(columns >= start, keys, NONE)
            written, tied, out_of = write_block(
                out, width, members, keys, columns, key - 1, ties, written, tied, base, listed, window,
                LISTED, APPENDED, REPEAT,
            )  # fmt: skip
            dropped += out_of
    return written - dropped, tied >= ties


@triton.jit
def choose_gathered(
    out, width, members, scores, held, packed, starts, counts, tiles, begin, end, limit, key, base, listed, window,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, CAP: tl.constexpr,
    TILE: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of a row that was gathered: counts [tiles] reach the key; starts [tiles + 1] is written.

    packed [CAP] is written where tiles are crowded.
    """
    reached, places, most = 0, 0, 0
    for first in range(0, tiles, TILES):
        tile = first + tl.arange(0, TILES)
        n = tl.load(counts + tile, mask=tile < tiles, other=0)
        room = tl.where(n > PLACES, TILE, n)
        tl.store(starts + tile, places + tl.cumsum(room, axis=0) - room, mask=tile < tiles)
        reached += tl.sum(n, axis=0)
        places += tl.sum(room, axis=0)
        most = tl.maximum(most, tl.max(n, axis=0))
    tl.store(starts + tiles, places)
    tl.debug_barrier()
    written, done = 0, places < 0
    if (reached < limit) & (key > LEAST):
        written, done = choose_tied(
            out, width, members, scores, held, starts, tiles, places, begin, end, limit, key, reached, base, listed,
            window, LISTED, APPENDED, REPEAT, TILE, PLACES, BLOCK,
        )  # fmt: skip
    if not done:
        if (reached < limit) | (places * SPARSE > end - begin):
            written = choose_long(
                out, width, members, scores, held, starts, tiles, places, begin, end, limit, key, reached, base, listed,
                window, LISTED, APPENDED, REPEAT, False, TILE, PLACES, BLOCK,
            )  # fmt: skip
        elif reached <= CAP:
            if most > PLACES:
                compact(scores, held, starts, tiles, places, begin, end, key, packed, TILE, PLACES, BLOCK)
                keys, columns = compacted(packed, reached, CAP)
            else:
                keys, columns = held_at(scores, held, starts, tiles, 0, places, begin, end, False, TILE, PLACES, CAP)
            written = choose_short(
                out, width, members, keys, columns, limit, base, listed, window, LISTED, APPENDED, REPEAT
            )
        else:
            written = choose_long(
                out, width, members, scores, held, starts, tiles, places, begin, end, limit, key, reached, base, listed,
                window, LISTED, APPENDED, REPEAT, True, TILE, PLACES, BLOCK,
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
def ends_of(row, table, lo, hi, step, limit, window, last, FIELDS: tl.constexpr, TABLE: tl.constexpr):
    """A row's base and columns (`bounds_of`), its limit, and its window [from, end)."""
    base, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    window = number_of(row, table, window, step, 4, FIELDS, TABLE)
    last = number_of(row, table, last, step, 5, FIELDS, TABLE)
    return base, begin, end, limit, window, last


@triton.jit(do_not_specialize=NUMBERS)
def threshold_kernel(
    scores, stride, table, lo, hi, step, limit, thresholds,
    RUNS: tl.constexpr, RUN: tl.constexpr, CAP: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A threshold for each row: reads RUNS * RUN scores of it."""
    row = tl.program_id(0)
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    limit = number_of(row, table, limit, 0, 3, FIELDS, TABLE)
    tl.store(thresholds + row, threshold_of(scores + row.to(tl.int64) * stride, begin, end, limit, RUNS, RUN, CAP))


@triton.jit(do_not_specialize=NUMBERS)
def gather_kernel(
    scores, stride, table, lo, hi, step, thresholds, held, counts, tiles, spans,
    TILE: tl.constexpr, PLACES: tl.constexpr, PADDED: tl.constexpr, EACH: tl.constexpr, STAGES: tl.constexpr,
    FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * spans). Reads EACH tiles of a row once; keeps the scores that reach its threshold, 8 bytes each.

    They go to held [rows, tiles, PLACES]. counts [rows, tiles] tells how many they are, which may be more than PLACES.
    """
    row, start = tl.program_id(0) // spans, tl.program_id(0) % spans * EACH
    _, begin, end = bounds_of(row, table, lo, hi, step, FIELDS, TABLE)
    key = tl.load(thresholds + row)
    if key != WHOLE:
        scores += row.to(tl.int64) * stride
        held += row.to(tl.int64) * tiles * PLACES
        stop = tl.minimum(start + EACH, tiles)
        gather(scores, begin, end, key, held, counts + row * tiles, start, stop, TILE, PLACES, PADDED, STAGES)


@triton.jit(do_not_specialize=NUMBERS)
def choose_kernel(
    scores, stride, table, lo, hi, step, limit, lists, list_stride, list_rows, out, width, out_rows, window, last,
    thresholds, held, packed, starts, counts, tiles,
    GATHERED: tl.constexpr, CAP: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows). The best `limit` positions of each row, ascending, with a tail of -1.

    GATHERED: A row of more than CAP columns comes with what reaches its threshold. The result goes to rows REPEAT * row
    ... of out [out_rows, width]. LISTED: Column c is position lists[row // list_rows, c]. APPENDED: Positions [window,
    last) follow, and none of them is written before.
    """
    row = tl.program_id(0)
    base, begin, end, limit, window, last = ends_of(row, table, lo, hi, step, limit, window, last, FIELDS, TABLE)
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
        packed += row * CAP
        if key == WHOLE:
            keys, columns = keys_at(scores, begin, end, CAP)
            written = choose_short(
                out, width, members, keys, columns, limit, base, listed, window, LISTED, APPENDED, REPEAT
            )
        else:
            written = choose_gathered(
                out, width, members, scores, held, packed, starts, counts, tiles, begin, end, limit, key, base, listed,
                window, LISTED, APPENDED, REPEAT, CAP, TILE, PLACES, TILES, BLOCK,
            )  # fmt: skip
    else:
        keys, columns = keys_at(scores, begin, end, CAP)
        written = choose_short(
            out, width, members, keys, columns, limit, base, listed, window, LISTED, APPENDED, REPEAT
        )
    finish(out, width, members, written, window, last, APPENDED, REPEAT)


@triton.jit(do_not_specialize=NUMBERS)
def select_kernel(
    scores, stride, table, lo, hi, step, limit, lists, list_stride, list_rows, out, width, out_rows, window, last,
    arrived, held, packed, starts, counts, tiles,
    RUNS: tl.constexpr, RUN: tl.constexpr, TILE: tl.constexpr, PADDED: tl.constexpr,
    CAP: tl.constexpr, PLACES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr, APPENDED: tl.constexpr, REPEAT: tl.constexpr, FIELDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles). The same of few rows: a program gathers a tile, and the one of a row that ends last chooses.

    All programs of a row find the same threshold. arrived [rows] are zeros.
    """
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    base, begin, end, limit, window, last = ends_of(row, table, lo, hi, step, limit, window, last, FIELDS, TABLE)
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
    packed += row * CAP
    if key == WHOLE:
        if tile == 0:
            keys, columns = keys_at(scores, begin, end, CAP)
            written = choose_short(
                out, width, members, keys, columns, limit, base, listed, window, LISTED, APPENDED, REPEAT
            )
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
    else:
        gather(scores, begin, end, key, held, counts, tile, tile + 1, TILE, PLACES, PADDED, 1)
        tl.debug_barrier()  # all that this program has written comes before its arrival
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") == tiles - 1:
            tl.debug_barrier()
            written = choose_gathered(
                out, width, members, scores, held, packed, starts, counts, tiles, begin, end, limit, key, base, listed,
                window, LISTED, APPENDED, REPEAT, CAP, TILE, PLACES, TILES, BLOCK,
            )  # fmt: skip
            finish(out, width, members, written, window, last, APPENDED, REPEAT)
