"""What the selection kernels are made of: device functions on a row of scores, or on what was gathered of it.

Scores are compared as int32 keys with their order; -0.0 equals 0.0. NaN has a key of its own, and is never selected.
"""

import triton
import triton.language as tl

from ..qrita.parts import BEYOND, INTERPRETED, keys_of, pack, value_of

# The key of what is none: below the key of -inf.
NONE = tl.constexpr(-(2**31))
# Key of -inf.
LEAST = tl.constexpr(-(2**31) + 0x7FFFFF)
# Scores of 32 bytes.
SECTOR = tl.constexpr(8)
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
def pivots(q, above):
    """Keys that cut [q, above) into quarters; the second is above q wherever one can be."""
    width = (above - q).to(tl.uint32)  # which 2**31 and more fit
    half, fourth = (width >> 1).to(tl.int32), (width >> 2).to(tl.int32)
    return q + fourth, q + half, q + half + fourth


@triton.jit
def merge_two(a, b, a_2, b_2):
    return a + a_2, b + b_2


@triton.jit
def count_three(keys, q1, q2, q3):
    """How many keys, at most 32,767, reach each of three pivots."""
    a = (keys >= q1).to(tl.int32) + ((keys >= q2).to(tl.int32) << 16)
    b = (keys >= q3).to(tl.int32)
    if INTERPRETED:
        a, b = tl.sum(a, axis=0), tl.sum(b, axis=0)
    else:
        a, b = tl.reduce((a, b), 0, merge_two)
    return a & 0xFFFF, a >> 16, b


@triton.jit
def cut_of(keys, limit, slack):
    """(q, n, ties): n keys reach q, and what is above q with the first `ties` of what equals it are the first `limit`.

    With slack, q may be lower: the search ends where n <= limit + slack. Fewer keys than `limit` are all kept.
    """
    q, largest, n = extremes(keys)
    ties = limit
    above, n_above = largest + 1, 0
    while (n > limit + slack) & (q < above - 1):
        q1, q2, q3 = pivots(q, above)
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

    The sample are RUNS runs of RUN neighbours, one in each of RUNS equal parts of the row. A run starts where 32 bytes
    do, if the row does, since memory is read in such pieces.
    """
    length = end - begin
    key = length * 0 + WHOLE
    if length > CAP:
        i = tl.arange(0, RUNS * RUN)
        part = i // RUN
        size = length // RUNS
        jitter = ((part * 40503) & 0xFFFF) * tl.maximum(size - RUN + 1, 1) >> 16
        first = (begin + part * size + jitter) // SECTOR * SECTOR
        keys = ordered(tl.load(scores + tl.minimum(tl.maximum(first, begin) + i % RUN, end - 1)))
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
    scores, begin, end, key, held, counts, start, stop,
    TILE: tl.constexpr, PLACES: tl.constexpr, PADDED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the scores of tiles [start, stop) of a row that reach the key, with their columns, in order.

    counts [tiles]: How many reach it; nothing is held of a tile with more than PLACES. PADDED: Rows are aligned, so
    that tiles inside [begin, end) need no mask, and are read 16 bytes at once, STAGES of them at a time.
    """
    first, last = start, start
    if PADDED:
        first, last = tl.maximum((begin + TILE - 1) // TILE, start), tl.minimum(end // TILE, stop)
        for tile in tl.range(first, last, num_stages=STAGES):
            n = gather_tile(scores, begin, end, key, held + tile * PLACES, tile * TILE, TILE, PLACES, False)
            tl.store(counts + tile, n)
    for tile in range(start, stop):
        if (tile < first) | (tile >= last):
            n = gather_tile(scores, begin, end, key, held + tile * PLACES, tile * TILE, TILE, PLACES, True)
            tl.store(counts + tile, n)


@triton.jit
def gather_tile(
    scores, begin, end, key, held, first, TILE: tl.constexpr, PLACES: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """The same of a tile with or without columns that do not count; how many reach the key."""
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
def locate(starts, i, tiles):
    """The tile in which the i-th place of a row lies, and its first place: starts [tiles + 1] are all first places."""
    tile, size = tl.zeros_like(i), 1
    while size < tiles:
        size *= 2
    while size > 1:
        size = size // 2
        middle = tile + size
        is_there = (middle < tiles) & (tl.load(starts + tl.minimum(middle, tiles)) <= i)
        tile = tl.where(is_there, middle, tile)
    return tile, tl.load(starts + tile)


@triton.jit
def keys_at(scores, start, stop, BLOCK: tl.constexpr):
    """Keys and columns of a row from column `start` on; NONE from `stop` on."""
    column = start + tl.arange(0, BLOCK)
    return ordered(tl.load(scores + column, mask=column < stop, other=float("nan"))), column


@triton.jit
def held_at(
    scores, held, starts, tiles, start, stop, begin, end,
    CROWDED: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and columns of a row's places from `start` on; NONE from `stop` on.

    Places are what was gathered of each tile, or (CROWDED) all TILE columns of a tile with more than PLACES.
    """
    place = start + tl.arange(0, BLOCK)
    there = place < stop
    tile, first = locate(starts, tl.minimum(place, stop - 1), tiles)
    place -= first
    if CROWDED:
        whole = there & (tl.load(starts + tile + 1) - first == TILE)
        there &= ~whole
    packed = tl.load(held + tile * PLACES + place, mask=there, other=0)
    column = packed.to(tl.int32)
    keys = tl.where(there, ordered((packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)), NONE)
    if CROWDED:
        of_row = tile * TILE + place
        counts = whole & (of_row >= begin) & (of_row < end)
        keys = tl.where(whole, ordered(tl.load(scores + of_row, mask=counts, other=float("nan"))), keys)
        column = tl.where(whole, of_row, column)
    return keys, column


@triton.jit
def compact(
    scores, held, starts, tiles, places, begin, end, key, to,
    TILE: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what reaches the key of a row some of whose tiles are crowded, in order: keys and columns, packed."""
    written = 0
    for first in range(0, places, BLOCK):
        keys, columns = held_at(scores, held, starts, tiles, first, places, begin, end, True, TILE, PLACES, BLOCK)
        there = keys >= key
        rank = tl.cumsum(there.to(tl.int32), axis=0)
        packed = (keys.to(tl.int64) << 32) | columns.to(tl.int64)
        tl.store(to + written + rank - 1, packed, mask=there)
        written += tl.max(rank, axis=0)
    tl.debug_barrier()


@triton.jit
def compacted(packed, n, BLOCK: tl.constexpr):
    """Keys and columns of what `compact` wrote; NONE from n on."""
    i = tl.arange(0, BLOCK)
    both = tl.load(packed + i, mask=i < n, other=0)
    return tl.where(i < n, (both >> 32).to(tl.int32), NONE), both.to(tl.int32)
