"""What the Qrita kernels are made of: device functions on one row, or on the candidates gathered from it.

A *source* is where entries lie: a row of logits in its own dtype and stride, or (HELD) candidates in scratch memory,
8 bytes each. A function here reads a source once, in blocks, and returns scalars.

Entries are compared as *keys*: int32 images of fp32 values that have the values' order. All counts and masses are
integers, so no result depends on how a source is cut into blocks, nor on which thread adds first.
"""

import os

import triton
import triton.language as tl

from . import threshold as thresholds

# Key of -inf, given to NaN as well: never eligible. The key above every other one.
NOTHING = tl.constexpr(-(2**31) + 0x7FFFFF)
BEYOND = tl.constexpr(2**31 - 1)
INF = tl.constexpr(float("inf"))
# In the interpreter a reduction of several tensors at once takes minutes.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# A candidate that is none: -inf in the last column there can be.
EMPTY = tl.constexpr((-(2**23) << 32) | 0x7FFFFFFF)
LOG2_E = tl.constexpr(1.4426950408889634)
# The fixed sample: the whole row up to SAMPLE entries, else RUNS runs of RUN neighbours.
SAMPLE, RUNS, RUN = tl.constexpr(thresholds.WHOLE_ROW), tl.constexpr(thresholds.RUNS), tl.constexpr(thresholds.RUN)
SAMPLE_BITS = tl.constexpr(thresholds.SAMPLE_BITS)


@triton.jit
def load(row, columns, vocab, stride):
    """Entries of a row as fp32; what is beyond it becomes -inf."""
    return tl.load(row + columns.to(tl.int64) * stride, mask=columns < vocab, other=-INF).to(tl.float32)


@triton.jit
def entries(source, start, n, stride, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK entries of a source from `start` on as fp32, and their columns; NaN and what is beyond n become -inf."""
    columns = start + tl.arange(0, BLOCK)
    if HELD:
        packed = tl.load(source + columns, mask=columns < n, other=EMPTY)
        values, columns = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True), packed.to(tl.int32)
    else:
        values = load(source, columns, n, stride)
        values = tl.where(values == values, values, -INF)
    return values, columns


@triton.jit
def pack(values, columns):
    """A candidate in scratch memory: the bits of its fp32 value, and its column."""
    return (values.to(tl.int32, bitcast=True).to(tl.int64) << 32) | columns.to(tl.int64)


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
def weights(values, top, rate, FIX: tl.constexpr):
    """2**((value - top) rate) as int64 multiples of 1 / FIX; the top itself weighs FIX, also where it is inf."""
    share = tl.where(values == top, 1.0, tl.exp2((values - top) * rate))
    return (share * FIX).to(tl.int64)


@triton.jit
def power_of_two(exponent):
    """2**exponent as fp32, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_sample(row, vocab, stride):
    """The row's fixed sample, and which of its entries are there and finite."""
    run, step = tl.arange(0, RUNS)[:, None], tl.where(vocab <= SAMPLE, RUN, vocab // RUNS)
    columns = run * step + tl.arange(0, RUN)[None, :]
    values = tl.load(row + columns.to(tl.int64) * stride, mask=columns < vocab, other=INF).to(tl.float32)
    values = tl.reshape(values, [SAMPLE])
    finite = tl.abs(values) < INF
    return tl.where(finite, values, 0.0), finite


@triton.jit
def fixed_point_of(values, shift):
    """Values times 2**shift, rounded to int32, for |values| 2**shift < 2**31; the shift is from -149 to 149."""
    first = tl.minimum(tl.maximum(shift, -100), 100)
    return tl.floor(values * power_of_two(first) * power_of_two(shift - first) + 0.5).to(tl.int32)


@triton.jit
def merge_largest(a, b, a2, b2):
    return tl.maximum(a, a2), tl.maximum(b, b2)


@triton.jit
def two_largest(a, b):
    """The maxima of two tensors, in one reduction."""
    if INTERPRETED:
        a, b = tl.max(a, axis=0), tl.max(b, axis=0)
    else:
        a, b = tl.reduce((a, b), 0, merge_largest)
    return a, b


@triton.jit
def merge_sums(a, b, c, a2, b2, c2):
    return a + a2, b + b2, c + c2


@triton.jit
def three_sums(a, b, c):
    """The sums of three tensors, in one reduction."""
    if INTERPRETED:
        a, b, c = tl.sum(a, axis=0), tl.sum(b, axis=0), tl.sum(c, axis=0)
    else:
        a, b, c = tl.reduce((a, b, c), 0, merge_sums)
    return a, b, c


@triton.jit
def sample_moments(row, vocab, stride):
    """Mean and standard deviation (fp64) of the finite entries of the row's fixed sample; NaN where there is none.

    Entries become integers relative to the largest magnitude, whose exact sums have no order. Reads at most 8,192
    entries once.
    """
    values, finite = load_sample(row, vocab, stride)
    magnitude, top = two_largest(tl.abs(values), tl.where(finite, values, -INF))
    shift = SAMPLE_BITS - 1 - ((magnitude.to(tl.int32, bitcast=True) >> 23) - 127)
    highest = fixed_point_of(tl.where(top > -INF, top, 0.0), shift)
    gap = tl.where(finite, fixed_point_of(values, shift) - highest, 0)
    wide = gap.to(tl.int64)
    count, total, square = three_sums(finite.to(tl.int32), wide, wide * wide)
    number, total, square = tl.maximum(count, 1).to(tl.float64), total.to(tl.float64), square.to(tl.float64)
    unit = ((1023 - shift).to(tl.int64) << 52).to(tl.float64, bitcast=True)  # 2**-shift
    mean = (highest.to(tl.float64) + total / number) * unit
    variance = (square - total * total / number) / number
    std = tl.sqrt(tl.where(variance > 0, variance, 0.0)) * unit
    return tl.where(count > 0, mean, float("nan")), tl.where(count > 0, std, float("nan"))


@triton.jit
def threshold(mean, std, delta, margin, paper):
    """t of a row as fp32: -inf for a constant row, one without finite entries, and where delta is -inf."""
    sign = tl.where(delta > 0, 1.0, tl.where(delta < 0, -1.0, 0.0))
    value = mean + delta * (1.0 - margin * sign) * std
    if paper:
        value = mean + delta * std
        value = value - margin * tl.abs(value)
    return tl.where((std > 0) & (delta > -INF), value, -INF).to(tl.float32)


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
    waits for another: with as many lanes as the program has threads a queue's length is a register. At the end the
    queues are closed up. While a block is compared, the next one is on its way.
    Returns how many there are, -1 where a queue was too short; the largest value of all columns; and (TAIL) the mass of
    the entries below lo, in units of the weight of lo.
    """
    lengths = tl.zeros([1, LANES], tl.int32)
    masses = tl.zeros([BLOCK], tl.int64)
    tops = tl.full([BLOCK], -INF, tl.float32)
    lane = tl.arange(0, BLOCK)
    # Two loop variables in turn: to hand one on to the other would wait for what is still on its way.
    even, odd = load(row, begin + lane, end, stride), load(row, begin + BLOCK + lane, end, stride)
    for start in range(begin, end, 2 * BLOCK):
        lengths = queue(even, start, lo, hi, held, lengths, BLOCK, LANES, DEPTH)
        tops = tl.where(even > tops, even, tops)
        if TAIL:
            masses += tl.where(even < lo, weights(tl.minimum(even, lo), lo, rate, FIX), 0)
        even = load(row, start + 2 * BLOCK + lane, end, stride)
        lengths = queue(odd, start + BLOCK, lo, hi, held, lengths, BLOCK, LANES, DEPTH)
        tops = tl.where(odd > tops, odd, tops)
        if TAIL:
            masses += tl.where(odd < lo, weights(tl.minimum(odd, lo), lo, rate, FIX), 0)
        odd = load(row, start + 3 * BLOCK + lane, end, stride)
    n, longest, top = tl.sum(lengths), tl.max(lengths), tl.max(tops, axis=0)
    if longest <= DEPTH:
        close_up(held, lengths, LANES, DEPTH)
    return tl.where(longest <= DEPTH, n, -1), top, tl.sum(masses, axis=0)


@triton.jit
def estimates(
    row, vocab, stride, pivots, reference, rate, P: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """How many entries are at or above each pivot [P], int32; about how much they weigh (fp32); and the largest key.

    Reads the row once. A lane keeps sums of its own, in fp32 and in units of the weight of the reference: good enough
    to choose where to look, and cheap.
    """
    counts, masses = tl.zeros([P, LANES], tl.int32), tl.zeros([P, LANES], tl.float32)
    tops = tl.full([LANES], NOTHING, tl.int32)
    for start in range(0, vocab, BLOCK):
        for part in tl.static_range(BLOCK // LANES):
            values = load(row, start + part * LANES + tl.arange(0, LANES), vocab, stride)
            keys = keys_of(tl.where(values == values, values, -INF))
            tops = tl.maximum(tops, keys)
            weight = tl.exp2(tl.minimum((values - reference) * rate, 100.0))
            above = keys[None, :] >= pivots[:, None]
            counts += above.to(tl.int32)
            masses += tl.where(above, weight[None, :], 0.0)
    return tl.sum(counts, axis=1), tl.sum(masses, axis=1), tl.max(tops, axis=0)


@triton.jit
def gather_and_weigh(
    row, vocab, stride, lo, hi, top, rate, held,
    FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """As `gather` on a whole row, with the counts and masses (int64) from hi on and from lo on, and the row's mass."""
    lengths = tl.zeros([1, LANES], tl.int32)
    n_above = tl.zeros([BLOCK], tl.int32)
    whole, from_lo, from_hi = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    ahead = load(row, tl.arange(0, BLOCK), vocab, stride)
    for start in range(0, vocab, BLOCK):
        values = ahead
        ahead = load(row, start + BLOCK + tl.arange(0, BLOCK), vocab, stride)
        lengths = queue(values, start, lo, hi, held, lengths, BLOCK, LANES, DEPTH)
        n_above += (values >= hi).to(tl.int32)
        weight = tl.where(values > -INF, weights(values, top, rate, FIX), 0)
        whole += weight
        from_lo += tl.where(values >= lo, weight, 0)
        from_hi += tl.where(values >= hi, weight, 0)
    n, longest = tl.sum(lengths), tl.max(lengths)
    if longest <= DEPTH:
        close_up(held, lengths, LANES, DEPTH)
    n_above = tl.sum(n_above, axis=0).to(tl.int64)
    n = tl.where(longest <= DEPTH, n, -1)
    return n, n_above, tl.sum(from_hi, axis=0), tl.sum(from_lo, axis=0), tl.sum(whole, axis=0)


@triton.jit
def queue(
    values, start, lo, hi, held, lengths, BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Append the values in [lo, hi) of a block to the queues of their lanes; the queues' lengths after it.

    The i-th entry of lane l goes to place i * LANES + l; what is beyond DEPTH is counted and lost.
    """
    found = (values >= lo) & ~(values >= hi)
    ones = tl.reshape(found.to(tl.int32), [BLOCK // LANES, LANES])
    i = lengths + tl.cumsum(ones, axis=0) - ones
    place = tl.reshape(i * LANES + tl.arange(0, LANES)[None, :], [BLOCK])
    columns = start + tl.arange(0, BLOCK)
    tl.store(held + place, pack(values, columns), mask=found & (place < DEPTH * LANES))
    return lengths + tl.sum(ones, axis=0, keep_dims=True)


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
