"""A row's sample, and what the Qrita kernels take from it: the Gaussian threshold, and whether the sample agrees.

The Gaussian threshold is two moments of the sample and a formula. A row that is not Gaussian, or masked, shows it in
the same sample: far too few or far too many of its entries reach the threshold. Then the kernels gather from a
quantile of the sample on, which holds for every shape. Where the cut lies among more entries than can be held, the
sample says about where, and the row is left to `wide_kernel`.

All sums are of integers, so what a sample says is the same in every batch.
"""

import triton
import triton.language as tl

from . import threshold as thresholds
from .parts import INF, INTERPRETED, LOG2_E, keys_of, value_of, weights

# Nothing is truncated in smaller vocabularies.
SMALL_VOCABULARY = tl.constexpr(thresholds.SMALL_VOCABULARY)
MARGIN = tl.constexpr(thresholds.MARGIN)
# The fixed sample: the whole row up to SAMPLE entries, else RUNS runs of RUN neighbours.
SAMPLE, RUNS, RUN = tl.constexpr(thresholds.WHOLE_ROW), tl.constexpr(thresholds.RUNS), tl.constexpr(thresholds.RUN)
SAMPLE_BITS = tl.constexpr(thresholds.SAMPLE_BITS)
# What `rounded` adds: the bits of 1.5 * 2**23.
ROUNDED = tl.constexpr(0x4B400000)
# The largest fp32 number.
LARGEST = tl.constexpr(3.4028234663852886e38)
# The weight of the largest entry of a sample, where only shares matter.
SHARE_FIX = tl.constexpr(2.0**30)
# The formula for p is believed if the share of the sample's mass below its cut is within this factor of 1 - p.
BELIEVED = tl.constexpr(2.5)
# Shares of what can be held that a quantile of the sample may leave: by far enough room, and just enough.
EASILY, JUST = tl.constexpr(0.6), tl.constexpr(0.9)
# Shares of 1 - p that the sample's mass below a value may be, for what is above it to hold p clearly, or perhaps.
CLEARLY, PERHAPS = tl.constexpr(0.8), tl.constexpr(2.0)
# Entries that a window around an expected cut holds.
WINDOW = tl.constexpr(thresholds.WINDOW)
# A search in a sample ends after so many halvings.
HALVINGS = tl.constexpr(24)


@triton.jit
def power_of_two(exponent):
    """2**exponent as fp32, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_sample(row, vocab, stride):
    """The row's fixed sample, [SAMPLE] fp32, with NaN for what is not there. Reads at most 8,192 entries."""
    run, lane = tl.arange(0, RUNS)[:, None], tl.arange(0, RUN)[None, :]
    if vocab > SAMPLE:
        values = tl.load(row + (run * (vocab // RUNS) + lane).to(tl.int64) * stride).to(tl.float32)
    else:
        columns = run * RUN + lane
        values = tl.load(row + columns.to(tl.int64) * stride, mask=columns < vocab, other=float("nan")).to(tl.float32)
    return tl.reshape(values, [SAMPLE])


@triton.jit
def rounded(values, shift):
    """Values times 2**shift, rounded to int32, plus ROUNDED; for |values| 2**shift < 2**22 and |shift| < 150.

    Adding 1.5 * 2**23 leaves the nearest integer in the low bits of an fp32 number.
    """
    first = tl.minimum(tl.maximum(shift, -100), 100)
    return (values * power_of_two(first) * power_of_two(shift - first) + 12582912.0).to(tl.int32, bitcast=True)


@triton.jit
def merge_largest(a, b, a2, b2):
    return tl.maximum(a, a2), tl.maximum(b, b2, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(values):
    """The largest value (NaN apart) and the largest magnitude (NaN if there is one), in one reduction."""
    if INTERPRETED:
        a = tl.max(tl.where(values == values, values, -INF), axis=0)
        b = tl.max(tl.where(values == values, tl.abs(values), INF), axis=0)
    else:
        a, b = tl.reduce((values, tl.abs(values)), 0, merge_largest)
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
def moments(sample, LANES: tl.constexpr):
    """A sample with -inf for what is not finite; its largest entry (fp32), mean and standard deviation (fp64).

    They are -inf and NaN where the sample holds nothing. Entries become integers relative to the largest magnitude,
    whose exact sums have no order. LANES: threads, which sum their entries for themselves first.
    """
    top, magnitude = largest(sample)
    if magnitude < INF:
        count, total, square, highest, shift = sums(sample, top, magnitude, True, LANES)
    else:
        sample = tl.where(tl.abs(sample) < INF, sample, -INF)
        top, magnitude = tl.max(sample, axis=0), tl.max(tl.where(sample > -INF, tl.abs(sample), 0.0), axis=0)
        count, total, square, highest, shift = sums(sample, top, magnitude, False, LANES)
    share = 1.0 / tl.maximum(count, 1).to(tl.float64)
    average, square = total.to(tl.float64) * share, square.to(tl.float64) * share
    unit = ((1023 - shift).to(tl.int64) << 52).to(tl.float64, bitcast=True)  # 2**-shift
    mean, variance = (highest.to(tl.float64) + average) * unit, square - average * average
    mean = tl.minimum(tl.maximum(mean, -LARGEST), LARGEST)  # the largest number may have been rounded up
    std = tl.sqrt(tl.where(variance > 0, variance, 0.0)) * unit
    return sample, top, tl.where(count > 0, mean, float("nan")), tl.where(count > 0, std, float("nan"))


@triton.jit
def sums(sample, top, magnitude, FINITE: tl.constexpr, LANES: tl.constexpr):
    """Number, sum and sum of squares (int64) of a sample less its largest entry, as multiples of 2**-shift."""
    shift = SAMPLE_BITS - 1 - ((magnitude.to(tl.int32, bitcast=True) >> 23) - 127)
    highest = rounded(tl.where(top > -INF, top, 0.0), shift)
    if FINITE:
        gap = rounded(sample, shift) - highest
        counts = tl.full([LANES], SAMPLE // LANES, tl.int32)
    else:
        finite = sample > -INF
        gap = tl.where(finite, rounded(tl.where(finite, sample, 0.0), shift) - highest, 0)
        counts = tl.sum(tl.reshape(finite.to(tl.int32), [SAMPLE // LANES, LANES]), axis=0)
    gap = tl.reshape(gap, [SAMPLE // LANES, LANES])
    wide = gap.to(tl.int64)
    count, total, square = three_sums(counts, tl.sum(gap, axis=0).to(tl.int64), tl.sum(wide * wide, axis=0))
    return count, total, square, highest - ROUNDED, shift


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
def gaussian_threshold(
    mean, std, vocab, delta_k, p, quantile_p, cold, least_delta, margin, joint, paper, TOKEN_ONLY: tl.constexpr
):  # fmt: skip
    """delta (fp64) and t (fp32) of a row with these moments; cold: 1 / T."""
    floor_p = tl.full([], least_delta, tl.float64)
    delta_p = std * cold - quantile_p
    delta_p = tl.where(delta_p > floor_p, floor_p, delta_p)  # without a finite entry NaN
    delta_p = tl.where(p < 1.0, delta_p, -INF)
    delta = tl.where(delta_k > -INF, delta_k, delta_p)
    if joint:
        delta = tl.where(delta_k > delta_p, delta_k, delta_p)
    if TOKEN_ONLY:  # nothing is cut, but a draw seldom looks beyond the head
        delta = tl.where(delta > -INF, delta, floor_p)
    value = threshold(mean, std, delta, tl.full([], margin, tl.float64), paper)
    return delta, tl.where(vocab <= SMALL_VOCABULARY, -INF, value)


@triton.jit
def count_of(sample, value):
    """How many entries of a sample are at or above a value."""
    return tl.sum((sample >= value).to(tl.int32), axis=0)


@triton.jit
def smallest(sample):
    """The least of a sample's entries."""
    return tl.min(tl.where(sample > -INF, sample, INF), axis=0)


@triton.jit
def share_of(sample, value, top, rate):
    """The share of a sample's mass at or above a value, fp32."""
    weight = weights(sample, top, rate, SHARE_FIX)
    above, total = tl.sum(tl.where(sample >= value, weight, 0), axis=0), tl.sum(weight, axis=0)
    return above.to(tl.float32) / total.to(tl.float32)


@triton.jit
def quantile(sample, lowest, top, rate, target, slack, MASS: tl.constexpr):
    """Two values that most nearly enclose where a count of the sample's entries, or a share of its mass, is reached.

    At or above the first it is (by less than slack too much, if that can be had), at or above the second it is not; and
    how many entries the two leave. Halves what lies between `lowest` and the largest entry, by value and by bits in
    turn: a mask may be -1e38.
    """
    lo = keys_of(lowest)
    hi, found = keys_of(top) + 1, target * 0 + INF
    step = 0
    while (found > target + slack) & (step < HALVINGS) & (lo + 1 < hi):
        middle = (lo >> 1) + (hi >> 1)
        if step % 2 == 0:
            middle = keys_of(value_of(lo) * 0.5 + value_of(hi) * 0.5)
        middle = tl.minimum(tl.maximum(middle, lo + 1), hi - 1)
        if MASS:
            at_middle = share_of(sample, value_of(middle), top, rate)
        else:
            at_middle = count_of(sample, value_of(middle)).to(tl.float32)
        enough = at_middle >= target
        lo, hi, found = tl.where(enough, middle, lo), tl.where(enough, hi, middle), tl.where(enough, at_middle, found)
        step += 1
    return value_of(lo), value_of(hi), count_of(sample, value_of(lo)), count_of(sample, value_of(hi))


@triton.jit
def agree(sample, top, t, k, p, joint, rate, vocab, most):
    """t, or what the sample says instead; and whether what lies above the cut is too much to gather (`most`).

    For k, t is believed while the sample has a few more entries above it than k needs, and not more than `most`. A
    quantile of the sample takes its place: for k the rank with a margin of five standard deviations; for p a rank that
    can easily be held, if the sample's mass above it clearly reaches p, or the highest one, if it perhaps does. (A
    sample seldom holds a row's largest entries, and takes the share above any value for less than it is.)
    """
    by_k, by_p = k < vocab, p < 1.0
    p_counts = by_p & ((joint != 0) | (k >= vocab))
    p_share = p.to(tl.float32)
    size = tl.minimum(vocab, SAMPLE)
    expected = k.to(tl.float32) * (size / vocab.to(tl.float32))
    root = tl.sqrt(expected)
    fewest = tl.where(by_k, expected + 3.0 * root + 4.0, 4.0)
    rank = tl.where(by_k, expected + 5.0 * root + 8.0, most * EASILY)
    too_many, found = tl.full([], False, tl.int1), count_of(sample, t).to(tl.float32)
    too_few = (t > -INF) & (found < fewest)
    if too_few & by_k & p_counts:
        too_few = share_of(sample, t, top, rate) < p_share
    if too_few | ((t > -INF) & (found > most)):
        # All there is, if that is little: most of the row is masked.
        if count_of(sample, -LARGEST).to(tl.float32) <= tl.minimum(rank, most):
            t = tl.full([], -INF, tl.float32)
        else:
            gaussian, fits = t, by_k & (rank <= most)
            t, n = at_rank(sample, gaussian, found, top, rate, tl.where(rank <= most, rank, most * EASILY), most)
            too_many = (by_k | by_p) & (fits == 0)
            if too_many & p_counts:
                left = 1.0 - share_of(sample, t, top, rate)
                if left > (1.0 - p_share) * CLEARLY:
                    t, n = at_rank(sample, gaussian, found, top, rate, most * JUST, most)
                    left = 1.0 - share_of(sample, t, top, rate)
                too_many = left > (1.0 - p_share) * PERHAPS
            too_many = too_many | (n > 1.5 * most)  # equal entries at the top
    return t, too_many


@triton.jit
def at_rank(sample, gaussian, found, top, rate, rank, most):
    """A value that about `rank` of a sample's entries reach, and how many do."""
    lowest = gaussian
    if found < rank:
        lowest = smallest(sample)
    lo, hi, n_lo, n_hi = quantile(sample, lowest, top, rate, rank, 0.1 * rank, False)
    # Where nearly all is masked by one low number, what is above that is all that counts.
    below = (n_lo > 1.5 * most) & (n_hi > 0)
    return tl.where(below, hi, lo), tl.where(below, n_hi, n_lo)


@triton.jit
def window(sample, top, mean, std, delta, k, p, rate, vocab):
    """Where the cut is expected, as two values that enclose about WINDOW entries of the row.

    For k it is the sample's quantile. For p it is the closed form of a Gaussian row, which knows the tail better than
    a sample does, unless the sample contradicts it.
    """
    size = tl.minimum(vocab, SAMPLE)
    cut = (mean + delta * std).to(tl.float32)
    if k < vocab:
        expected = k.to(tl.float32) * (size / vocab.to(tl.float32))
        cut, _, _, _ = quantile(sample, smallest(sample), top, rate, tl.maximum(expected, 1.0), 0.01 * expected, False)
    else:
        left, wanted = 1.0 - share_of(sample, cut, top, rate), 1.0 - p.to(tl.float32)
        if (left > wanted * BELIEVED) | (left * BELIEVED < wanted):
            cut, _, _, _ = quantile(sample, smallest(sample), top, rate, p.to(tl.float32), 0.01 * wanted, True)
    spread, z = std.to(tl.float32), ((cut - mean) / std).to(tl.float32)
    density = tl.exp2(z * z * (-0.5 * LOG2_E)) * 0.39894228 * vocab  # entries per standard deviation
    half = spread * tl.minimum((1.0 / density) * (0.5 * WINDOW), 0.5)
    return cut - half, tl.minimum(cut + half, top)
