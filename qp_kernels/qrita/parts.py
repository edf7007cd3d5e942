"""What the Qrita kernels are made of: device functions on one row, or on the candidates gathered from it.

A *source* is where entries lie: a row of logits in its own dtype and stride, or fp32 candidates in scratch memory. A
function here reads a source once (or twice where it says so), in blocks, and returns scalars.

Entries are compared as *keys*: int32 images of fp32 values that have the values' order. All counts and masses are
integers, so no result depends on how a source is cut into blocks, nor on which thread adds first.
"""

import triton
import triton.language as tl

from . import threshold as thresholds

# Key of -inf, given to NaN as well: never eligible. The key above every other one.
NOTHING = tl.constexpr(-(2**31) + 0x7FFFFF)
BEYOND = tl.constexpr(2**31 - 1)
INF = tl.constexpr(float("inf"))
LOG2_E = tl.constexpr(1.4426950408889634)
# The fixed sample: the whole row up to SAMPLE entries, else RUNS runs of RUN neighbours.
SAMPLE, RUNS, RUN = tl.constexpr(thresholds.WHOLE_ROW), tl.constexpr(thresholds.RUNS), tl.constexpr(thresholds.RUN)
SAMPLE_BITS = tl.constexpr(thresholds.SAMPLE_BITS)


@triton.jit
def load(source, start, n, stride, BLOCK: tl.constexpr):
    """BLOCK entries from `start` on as fp32, and their columns; NaN and what is beyond n become -inf."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(source + columns.to(tl.int64) * stride, mask=columns < n, other=-INF).to(tl.float32)
    return tl.where(values == values, values, -INF), columns


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
def load_sample(row, start, vocab, stride, BLOCK: tl.constexpr):
    """BLOCK entries of the row's fixed sample from place `start` on, and which of them are there and finite."""
    place = start + tl.arange(0, BLOCK)
    columns = tl.where(vocab <= SAMPLE, place, (place // RUN) * (vocab // RUNS) + place % RUN)
    inside = (columns < vocab) & (place < SAMPLE)
    values = tl.load(row + columns.to(tl.int64) * stride, mask=inside, other=INF).to(tl.float32)
    finite = tl.abs(values) < INF
    return tl.where(finite, values, 0.0), finite


@triton.jit
def fixed_point_of(values, shift):
    """Values times 2**shift, rounded to int32, for |values| 2**shift < 2**31; the shift is from -149 to 149."""
    first = tl.minimum(tl.maximum(shift, -100), 100)
    return tl.floor(values * power_of_two(first) * power_of_two(shift - first) + 0.5).to(tl.int32)


@triton.jit
def sample_moments(row, vocab, stride, BLOCK: tl.constexpr):
    """Mean and standard deviation (fp64) of the finite entries of the row's fixed sample; NaN where there is none.

    Entries become integers relative to the largest magnitude, whose exact sums have no order. Reads at most 8,192
    entries twice.
    """
    size = tl.minimum(vocab, SAMPLE)
    magnitudes = tl.zeros([BLOCK], tl.float32)
    tops = tl.full([BLOCK], -INF, tl.float32)
    for start in range(0, size, BLOCK):
        values, finite = load_sample(row, start, vocab, stride, BLOCK)
        magnitudes = tl.maximum(magnitudes, tl.abs(values))
        tops = tl.maximum(tops, tl.where(finite, values, -INF))
    magnitude, top = tl.max(magnitudes, axis=0), tl.max(tops, axis=0)
    shift = SAMPLE_BITS - 1 - ((magnitude.to(tl.int32, bitcast=True) >> 23) - 127)
    highest = fixed_point_of(tl.where(top > -INF, top, 0.0), shift)
    counts = tl.zeros([BLOCK], tl.int32)
    totals, squares = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for start in range(0, size, BLOCK):
        values, finite = load_sample(row, start, vocab, stride, BLOCK)
        gap = tl.where(finite, fixed_point_of(values, shift) - highest, 0).to(tl.int64)
        counts += finite.to(tl.int32)
        totals += gap
        squares += gap * gap
    count = tl.sum(counts, axis=0)
    number = tl.maximum(count, 1).to(tl.float64)
    total, square = tl.sum(totals, axis=0).to(tl.float64), tl.sum(squares, axis=0).to(tl.float64)
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
    source, n, stride, pivots, top, rate, MASS: tl.constexpr, FIX: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):
    """How many entries are at or above each pivot [P], int64, and their mass (zeros unless MASS)."""
    counts = tl.zeros([P], tl.int32)
    masses = tl.zeros([P], tl.int64)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        above = keys_of(values)[None, :] >= pivots[:, None]  # [P, BLOCK]
        counts += tl.sum(above.to(tl.int32), axis=1)
        if MASS:
            masses += tl.sum(tl.where(above, weights(values, top, rate, FIX)[None, :], 0), axis=1)
    return counts.to(tl.int64), masses


@triton.jit
def mass_from(source, n, stride, lowest, top, rate, FIX: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of the entries whose key is at least `lowest`, int64."""
    lanes = tl.zeros([BLOCK], tl.int64)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        lanes += tl.where(keys_of(values) >= lowest, weights(values, top, rate, FIX), 0)
    return tl.sum(lanes, axis=0)


@triton.jit
def count_from(source, n, stride, lowest, BLOCK: tl.constexpr):
    """How many entries have a key of at least `lowest`, int64."""
    lanes = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        lanes += (keys_of(values) >= lowest).to(tl.int32)
    return tl.sum(lanes, axis=0).to(tl.int64)


@triton.jit
def largest(source, n, stride, BLOCK: tl.constexpr):
    """The largest key; NOTHING where nothing is eligible."""
    lanes = tl.full([BLOCK], NOTHING, tl.int32)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        lanes = tl.maximum(lanes, keys_of(values))
    return tl.max(lanes, axis=0)


@triton.jit
def survey(source, n, stride, BLOCK: tl.constexpr):
    """The largest key, NOTHING where nothing is eligible, and how many entries are eligible (int64)."""
    tops = tl.full([BLOCK], NOTHING, tl.int32)
    eligible = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        keys = keys_of(values)
        tops = tl.maximum(tops, keys)
        eligible += (keys > NOTHING).to(tl.int32)
    return tl.max(tops, axis=0), tl.sum(eligible, axis=0).to(tl.int64)


@triton.jit
def probe(
    source, n, stride, lo, pivots, top, rate, MASS: tl.constexpr, FIX: tl.constexpr, P: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A step of a search: the smallest key at or above `lo`, its multiplicity, and the amounts at the pivots."""
    lowest, copies = tl.full([BLOCK], BEYOND, tl.int32), tl.zeros([BLOCK], tl.int32)
    found = tl.zeros([P], tl.int64)
    for start in range(0, n, BLOCK):
        values, _ = load(source, start, n, stride, BLOCK)
        keys = keys_of(values)
        # Each lane keeps its smallest key so far and how often it met it.
        is_lower = (keys >= lo) & (keys < lowest)
        copies = tl.where(is_lower, 1, copies + (keys == lowest).to(tl.int32))
        lowest = tl.where(is_lower, keys, lowest)
        above = keys[None, :] >= pivots[:, None]  # [P, BLOCK]
        if MASS:
            found += tl.sum(tl.where(above, weights(values, top, rate, FIX)[None, :], 0), axis=1)
        else:
            found += tl.sum(above.to(tl.int32), axis=1)
    key = tl.min(lowest, axis=0)
    return key, tl.sum(tl.where(lowest == key, copies, 0), axis=0).to(tl.int64), found


@triton.jit
def gather(
    row,
    vocab,
    stride,
    lo,
    hi,
    below,
    rate,
    values_ptr,
    columns_ptr,
    counter,
    CAPACITY: tl.constexpr,
    TAIL: tl.constexpr,
    FIX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy the entries with keys in [lo, hi), in any order, with their columns. Reads the row once.

    Returns how many there are, of which the first CAPACITY are stored, and (TAIL) the mass of all entries below lo,
    in units of the weight of the value `below`.
    """
    tl.store(counter, 0)
    tl.debug_barrier()
    lanes = tl.zeros([BLOCK], tl.int64)
    slots = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        values, columns = load(row, start, vocab, stride, BLOCK)
        keys = keys_of(values)
        found = (keys >= lo) & (keys < hi)
        slot = tl.atomic_add(counter + slots, 1, mask=found, sem="relaxed")
        found = found & (slot < CAPACITY)
        tl.store(values_ptr + slot, values, mask=found)
        tl.store(columns_ptr + slot, columns, mask=found)
        if TAIL:
            lanes += tl.where(keys < lo, weights(tl.minimum(values, below), below, rate, FIX), 0)
    tl.debug_barrier()
    return tl.atomic_add(counter, 0), tl.sum(lanes, axis=0)
