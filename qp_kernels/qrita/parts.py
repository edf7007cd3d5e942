"""What the Qrita kernels are made of: device functions on one row, or on the candidates gathered from it.

A *source* is where entries lie: a row of logits in its own dtype and stride, or (HELD) candidates in scratch memory,
8 bytes each. A function here reads a source once, in blocks, and returns scalars.

Entries are compared as *keys*: int32 images of fp32 values that have the values' order. All counts and masses are
integers, so no result depends on how a source is cut into blocks, nor on which thread adds first.
"""

import os

import triton
import triton.language as tl

# Key of -inf, given to NaN as well: never eligible. The key above every other one.
NOTHING = tl.constexpr(-(2**31) + 0x7FFFFF)
BEYOND = tl.constexpr(2**31 - 1)
INF = tl.constexpr(float("inf"))
# In the interpreter a reduction of several tensors at once takes minutes.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# A candidate that is none: -inf in the last column there can be.
EMPTY = tl.constexpr((-(2**23) << 32) | 0x7FFFFFFF)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load(row, start, lane, end, stride):
    """Entries start + lane of a row as fp32; those from `end` on become -inf."""
    place = row + tl.cast(start, tl.int64) * stride
    return tl.load(place + lane.to(tl.int64) * stride, mask=lane < end - start, other=-INF).to(tl.float32)


@triton.jit
def load_whole(row, start, lane, there, stride):
    """The same of a block within the row; of none, whatever it was, unless it is `there`.

    One predicate is for all, and one address.
    """
    place = row + tl.cast(start, tl.int64) * stride
    return tl.load(place + lane.to(tl.int64) * stride, mask=there).to(tl.float32)


@triton.jit
def without_nan(values):
    """Values with -inf for NaN."""
    if INTERPRETED:  # its maximum hands NaN on, a GPU's does not
        values = tl.where(values == values, values, -INF)
    else:
        values = tl.maximum(values, -INF)
    return values


@triton.jit
def entries(source, start, n, stride, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK entries of a source from `start` on as fp32, and their columns; NaN and what is beyond n become -inf."""
    columns = start + tl.arange(0, BLOCK)
    if HELD:
        packed = tl.load(source + columns, mask=columns < n, other=EMPTY)
        values, columns = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True), packed.to(tl.int32)
    else:
        values = without_nan(load(source, start, tl.arange(0, BLOCK), n, stride))
    return values, columns


@triton.jit
def pack(values, columns):
    """A candidate in scratch memory: the bits of its fp32 value, and its column."""
    return (values.to(tl.int32, bitcast=True).to(tl.int64) << 32) | columns.to(tl.uint32).to(tl.int64)


@triton.jit
def keys_of(values):
    """Keys of fp32 values without NaN. -0.0 has the key of 0.0."""
    bits = values.to(tl.int32, bitcast=True)
    bits = tl.where(values == 0.0, 0, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """The fp32 value of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def exp2(x):
    """2**x as fp32, 0 below 2**-126: a weight that small is none."""
    if INTERPRETED:
        x = tl.exp2(x)
    else:
        x = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return x


@triton.jit
def weights(values, top, rate, FIX: tl.constexpr):
    """2**((value - top) rate) as int64 multiples of 1 / FIX; the top itself weighs FIX, also where it is inf."""
    share = tl.where(values == top, 1.0, exp2((values - top) * rate))
    return (share * FIX).to(tl.int64)


@triton.jit
def amounts(
    row, vocab, stride, pivots, top, rate,
    MASS: tl.constexpr, FIX: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """How many entries of a row are at or above each pivot [P], int64, and their mass (zeros unless MASS).

    Each lane sums for itself; a block is read in pieces of LANES that are all on their way at once.
    """
    counts, masses = tl.zeros([P, LANES], tl.int32), tl.zeros([P, LANES], tl.int64)
    for start in range(0, vocab, BLOCK):
        for part in tl.static_range(BLOCK // LANES):
            values, _ = entries(row, start + part * LANES, vocab, stride, False, LANES)
            above = keys_of(values)[None, :] >= pivots[:, None]
            counts += above.to(tl.int32)
            if MASS:
                masses += tl.where(above, weights(values, top, rate, FIX)[None, :], 0)
    return tl.sum(counts, axis=1).to(tl.int64), tl.sum(masses, axis=1)


@triton.jit
def mass_from(
    source, n, stride, lowest, top, rate, HELD: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Mass of the entries whose key is at least `lowest`, int64."""
    lanes = tl.zeros([BLOCK], tl.int64)
    for start in range(0, n, BLOCK):
        values, _ = entries(source, start, n, stride, HELD, BLOCK)
        lanes += tl.where(keys_of(values) >= lowest, weights(values, top, rate, FIX), 0)
    return tl.sum(lanes, axis=0)


@triton.jit
def count_from(source, n, stride, lowest, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """How many entries have a key of at least `lowest`, int64."""
    lanes = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, _ = entries(source, start, n, stride, HELD, BLOCK)
        lanes += (keys_of(values) >= lowest).to(tl.int32)
    return tl.sum(lanes, axis=0).to(tl.int64)


@triton.jit
def survey(source, n, stride, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key, NOTHING where nothing is eligible, and how many entries are eligible (int64)."""
    tops = tl.full([BLOCK], NOTHING, tl.int32)
    eligible = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, _ = entries(source, start, n, stride, HELD, BLOCK)
        keys = keys_of(values)
        tops = tl.maximum(tops, keys)
        eligible += (keys > NOTHING).to(tl.int32)
    return tl.max(tops, axis=0), tl.sum(eligible, axis=0).to(tl.int64)


@triton.jit
def gather(
    row, begin, end, stride, lo, hi, rate, held,
    TAIL: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Copy the entries of columns [begin, end) with values in [lo, hi) (hi = NaN: no upper end), in any order.

    Reads them once. A lane sees every LANES-th entry and queues what it finds in DEPTH places of its own, so no lane
    waits for another: with as many lanes as the program has threads a queue's end is a register. At the end the queues
    are closed up. While a block is compared, the three after it are on their way.
    Returns how many there are, -1 where a queue was too short; the largest value of all columns; and (TAIL) the mass of
    the entries below lo, in units of the weight of lo.
    """
    ends, lane = tl.arange(0, LANES)[None, :], tl.arange(0, BLOCK)
    tops, masses = tl.full([BLOCK], -INF, tl.float32), tl.zeros([1, LANES], tl.int64)
    rest = begin + (end - begin) // (4 * BLOCK) * (4 * BLOCK)
    # Loop variables in turn: to hand one on to the next would wait for what is still on its way.
    a, b = (
        load_whole(row, begin, lane, begin < rest, stride),
        load_whole(row, begin + BLOCK, lane, begin < rest, stride),
    )
    c = load_whole(row, begin + 2 * BLOCK, lane, begin < rest, stride)
    d = load_whole(row, begin + 3 * BLOCK, lane, begin < rest, stride)
    for start in range(begin, rest, 4 * BLOCK):
        then = start + 4 * BLOCK
        ends, tops, masses = take(a, start, lo, hi, rate, held, ends, tops, masses, TAIL, FIX, BLOCK, LANES, DEPTH)
        a = load_whole(row, then, lane, then < rest, stride)
        start += BLOCK
        ends, tops, masses = take(b, start, lo, hi, rate, held, ends, tops, masses, TAIL, FIX, BLOCK, LANES, DEPTH)
        b = load_whole(row, then + BLOCK, lane, then < rest, stride)
        start += BLOCK
        ends, tops, masses = take(c, start, lo, hi, rate, held, ends, tops, masses, TAIL, FIX, BLOCK, LANES, DEPTH)
        c = load_whole(row, then + 2 * BLOCK, lane, then < rest, stride)
        start += BLOCK
        ends, tops, masses = take(d, start, lo, hi, rate, held, ends, tops, masses, TAIL, FIX, BLOCK, LANES, DEPTH)
        d = load_whole(row, then + 3 * BLOCK, lane, then < rest, stride)
    for start in range(rest, end, BLOCK):
        a = load(row, start, lane, end, stride)
        ends, tops, masses = take(a, start, lo, hi, rate, held, ends, tops, masses, TAIL, FIX, BLOCK, LANES, DEPTH)
    n, found = finish(held, ends, LANES, DEPTH)
    # What was found has counted as lo.
    return n, tl.max(tops, axis=0), tl.sum(masses) - found.to(tl.int64) * tl.full([], FIX, tl.float64).to(tl.int64)


@triton.jit
def take(
    values, start, lo, hi, rate, held, ends, tops, masses,
    TAIL: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of `gather`; masses are those of all entries, where none weighs more than lo."""
    values = without_nan(values)
    ends = queue(values, start, lo, hi, held, ends, BLOCK, LANES, DEPTH)
    if TAIL:
        exponent = (values - lo) * rate
        exponent = tl.where(exponent < 0.0, exponent, 0.0)  # inf - inf and 0 * inf are no numbers
        weight = tl.reshape((exp2(exponent) * FIX).to(tl.int64), [BLOCK // LANES, LANES])
        masses += tl.sum(weight, axis=0, keep_dims=True)
    return ends, tl.maximum(tops, values), masses


@triton.jit
def gather_and_weigh(
    row, vocab, stride, lo, hi, unit, rate, held,
    MASS: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """As `gather` on a whole row; and how many entries are at or above hi and (MASS) their mass and the row's, int64.

    Returns how many are in [lo, hi), -1 where they do not fit; number and mass from hi on; the row's mass and maximum.
    """
    ends, lane = tl.arange(0, LANES)[None, :], tl.arange(0, BLOCK)
    above, whole, n_above = (
        tl.zeros([1, LANES], tl.int64),
        tl.zeros([1, LANES], tl.int64),
        tl.zeros([1, LANES], tl.int32),
    )
    tops = tl.full([BLOCK], -INF, tl.float32)
    rest = vocab // (4 * BLOCK) * (4 * BLOCK)
    a, b = load_whole(row, 0, lane, rest > 0, stride), load_whole(row, BLOCK, lane, rest > 0, stride)
    c, d = load_whole(row, 2 * BLOCK, lane, rest > 0, stride), load_whole(row, 3 * BLOCK, lane, rest > 0, stride)
    for start in range(0, rest, 4 * BLOCK):
        then = start + 4 * BLOCK
        ends, tops, n_above, above, whole = take_and_weigh(
            a, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole, MASS, FIX, BLOCK, LANES, DEPTH
        )
        a = load_whole(row, then, lane, then < rest, stride)
        start += BLOCK
        ends, tops, n_above, above, whole = take_and_weigh(
            b, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole, MASS, FIX, BLOCK, LANES, DEPTH
        )
        b = load_whole(row, then + BLOCK, lane, then < rest, stride)
        start += BLOCK
        ends, tops, n_above, above, whole = take_and_weigh(
            c, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole, MASS, FIX, BLOCK, LANES, DEPTH
        )
        c = load_whole(row, then + 2 * BLOCK, lane, then < rest, stride)
        start += BLOCK
        ends, tops, n_above, above, whole = take_and_weigh(
            d, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole, MASS, FIX, BLOCK, LANES, DEPTH
        )
        d = load_whole(row, then + 3 * BLOCK, lane, then < rest, stride)
    for start in range(rest, vocab, BLOCK):
        a = load(row, start, lane, vocab, stride)
        ends, tops, n_above, above, whole = take_and_weigh(
            a, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole, MASS, FIX, BLOCK, LANES, DEPTH
        )
    n, _ = finish(held, ends, LANES, DEPTH)
    return n, tl.sum(n_above).to(tl.int64), tl.sum(above), tl.sum(whole), tl.max(tops, axis=0)


@triton.jit
def take_and_weigh(
    values, start, lo, hi, unit, rate, held, ends, tops, n_above, above, whole,
    MASS: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of `gather_and_weigh`. Unit and rate are finite: no weight asks whether its value is the unit."""
    values = without_nan(values)
    ends = queue(values, start, lo, hi, held, ends, BLOCK, LANES, DEPTH)
    is_above = tl.reshape(values >= hi, [BLOCK // LANES, LANES])
    n_above += tl.sum(is_above.to(tl.int32), axis=0, keep_dims=True)
    if MASS:
        weight = tl.reshape((exp2((values - unit) * rate) * FIX).to(tl.int64), [BLOCK // LANES, LANES])
        above += tl.sum(tl.where(is_above, weight, 0), axis=0, keep_dims=True)
        whole += tl.sum(weight, axis=0, keep_dims=True)
    return ends, tl.maximum(tops, values), n_above, above, whole


@triton.jit
def finish(held, ends, LANES: tl.constexpr, DEPTH: tl.constexpr):
    """Close the queues up; how many candidates they hold, -1 where one was too short, and how many there are."""
    lengths = ends // LANES
    n, longest = tl.sum(lengths), tl.max(lengths)
    # Most queues are far shorter than they may be.
    SHORT: tl.constexpr = DEPTH if DEPTH < 8 else 8
    MEDIUM: tl.constexpr = DEPTH if DEPTH < 16 else 16
    if longest <= SHORT:
        close_up(held, lengths, LANES, SHORT)
    elif longest <= MEDIUM:
        close_up(held, lengths, LANES, MEDIUM)
    elif longest <= DEPTH:
        close_up(held, lengths, LANES, DEPTH)
    return tl.where(longest <= DEPTH, n, -1), n


@triton.jit
def queue(
    values, start, lo, hi, held, ends, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Append the values in [lo, hi) of a block to the queues of their lanes; where the queues end after it.

    The i-th entry of lane l goes to place i * LANES + l; what is beyond DEPTH is counted and lost.
    """
    found = (values >= lo) & ~(values >= hi)
    steps = tl.reshape(tl.where(found, LANES, 0), [BLOCK // LANES, LANES])
    place = tl.reshape(ends + (tl.cumsum(steps, axis=0) - steps), [BLOCK])
    columns = start + tl.arange(0, BLOCK)
    tl.store(held + place, pack(values, columns), mask=found & (place < DEPTH * LANES))
    return ends + tl.sum(steps, axis=0, keep_dims=True)


@triton.jit
def close_up(held, lengths, LANES: tl.constexpr, DEPTH: tl.constexpr):
    """Move what is in the queues to the first places."""
    PLACES: tl.constexpr = DEPTH * LANES
    tl.debug_barrier()
    i, lane = tl.arange(0, DEPTH)[:, None], tl.arange(0, LANES)[None, :]
    # Flat, for Triton deals scattered stores of two dimensions out to other threads.
    inside = tl.reshape(i < lengths, [PLACES])
    packed = tl.load(held + tl.reshape(i * LANES + lane, [PLACES]), mask=inside, other=0)
    tl.debug_barrier()
    target = tl.reshape(tl.cumsum(lengths, axis=1) - lengths + i, [PLACES])
    tl.store(held + target, packed, mask=inside)
    tl.debug_barrier()
