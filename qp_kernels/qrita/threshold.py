"""The Gaussian threshold of Qrita: where it lies, what is above it, and whether the answer is (a hit).

Source: arXiv 2602.01518 (threshold of top-k and of top-p, `rule="paper"`). `rule="sigma"` takes the margin in units of
the row's standard deviation, so that it does not move when all logits shift.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import reference
from .checks import Limits
from .tiling import chunks, tiles

INF = float("inf")
# How far the kernels lower the threshold, as a share of delta.
MARGIN = 0.2
# Candidates from which on a row overflows. (The kernels' buffers are smaller: see `configs.py`.)
CANDIDATE_BUFFER = 16_384
# Below this vocabulary nothing is truncated.
SMALL_VOCABULARY = 512
# Top-p looks at this many entries at least: beyond sigma = sqrt(2 ln V) the mass sits in outliers.
NUCLEUS_CANDIDATES = 256
# Where a cut lies too deep, the kernels look at about this many entries around it.
WINDOW = 4_000
WHOLE_ROW, RUNS, RUN = 8_192, 64, 128
# Magnitude of the sample's fixed-point values: 2**13 squares of differences below 2**23 stay below 2**60.
SAMPLE_BITS = 22


class TruncationStats(NamedTuple):
    """Truncation of each row: [B] each, 0-d for one row.

    Attributes:
        mean, std: Of a fixed sample of the row's finite entries, float32; NaN where there is none.
        delta: Distance of the threshold from the mean in standard deviations before the margin, float32; -inf where
            k and p are off.
        threshold: t in logit units, float32; -inf where nothing is truncated.
        kept: Entries >= t, int32.
        mass: Share of the row's probability at or above t, float32; 0 where nothing is eligible.
        hit: bool, whether the entries >= t are enough for k and p. (The kernels check t against the sample first, and
            gather from another one where the sample contradicts it; their buffers are smaller than `CANDIDATE_BUFFER`.)
        overflow: bool, whether `kept` exceeds `CANDIDATE_BUFFER`.
    """

    mean: Tensor
    std: Tensor
    delta: Tensor
    threshold: Tensor
    kept: Tensor
    mass: Tensor
    hit: Tensor
    overflow: Tensor


def truncate(logits: Tensor, limits: Limits, margin: float, rule: str) -> TruncationStats:
    """The statistics of logits [B, V]."""
    mean, std, delta, value = locate(logits, limits, margin, rule)
    kept, mass = above(logits, value)
    return TruncationStats(
        mean.float(),
        std.float(),
        delta.float(),
        value,
        kept.int(),
        mass.float(),
        is_hit(kept, mass, limits, logits.shape[-1]),
        kept > CANDIDATE_BUFFER,
    )


def locate(logits: Tensor, limits: Limits, margin: float, rule: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, std, delta (float64) and t (float32) of each row, [B] each, from the sample alone."""
    mean, std = finite_moments(sample_columns(logits))
    delta = quantile_distance(std, limits, logits.shape[-1])
    value = threshold(mean, std, delta, margin, rule)
    if logits.shape[-1] <= SMALL_VOCABULARY:
        value = torch.full_like(value, -INF)
    return mean, std, delta, value.float()


def sample_columns(logits: Tensor) -> Tensor:
    """The whole row up to V = 8,192, else 64 runs of 128 neighbours, run r starting at r * (V // 64)."""
    return sample_view(logits).flatten(1)


def sample_view(logits: Tensor) -> Tensor:
    """The same where it lies in the rows [B, V]: [B, V], or [B, 64, 128]."""
    vocab = logits.shape[-1]
    if vocab <= WHOLE_ROW:
        return logits
    step = vocab // RUNS
    return logits[:, : RUNS * step].unflatten(1, (RUNS, step))[..., :RUN]


def finite_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (ddof 0) of the finite entries of each row [B, N], float64; NaN for none.

    Entries become integers relative to the largest magnitude, 2**22 (less for N > 8,192): exact sums have no order, so
    a row has the same bits in every batch and in the kernels.
    """
    values = values.float()
    finite = values.isfinite()
    values = values.where(finite, 0.0)
    bits = min(SAMPLE_BITS, (62 - (values.shape[-1] - 1).bit_length()) // 2 - 1)
    exponent = (values.abs().amax(-1, keepdim=True).view(torch.int32) >> 23) - 127
    shift = bits - 1 - exponent
    first = shift.clamp(-100, 100)  # the shift may be 2**149: in two factors
    # The sum with 1.5 * 2**23 has the nearest integer in its low bits: torch's own rounding splits even short steps.
    scaled = values * _power_of_two(first) * _power_of_two(shift - first) + 1.5 * 2**23
    fixed = scaled.view(torch.int32).long() - 0x4B400000
    highest = fixed.where(finite, -(2**62)).amax(-1, keepdim=True)
    gap = (fixed - highest).where(finite, 0)
    count = finite.sum(-1)
    size, total, squares = count.clamp(min=1).double(), gap.sum(-1).double(), (gap * gap).sum(-1).double()
    unit = torch.exp2(-shift[:, 0].double())
    largest = torch.finfo(torch.float32).max  # it may have been rounded up
    mean = ((highest[:, 0].double() + total / size) * unit).clamp(-largest, largest)
    std = ((squares - total * total / size) / size).clamp(min=0.0).sqrt() * unit
    return mean.where(count > 0, math.nan), std.where(count > 0, math.nan)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent as float32, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).view(torch.float32)


@functools.lru_cache(maxsize=4096)
def quantile(p: float) -> float:
    """The normal quantile of a number."""
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))


def least_delta(vocab: int) -> float:
    """The distance that leaves `NUCLEUS_CANDIDATES` entries of a Gaussian row, or all."""
    return quantile(max(0.0, 1.0 - NUCLEUS_CANDIDATES / vocab))


def quantile_distance(std: Tensor, limits: Limits, vocab: int) -> Tensor:
    """delta of each row, [B] float64: how many standard deviations above the mean the cut is expected."""
    delta_k = delta_p = torch.full_like(std, -INF)
    if limits.k is not None:
        # Off is k = V. CUDA divides by a number through its reciprocal, and 1 - V / V is not always 0.
        delta_k = torch.special.ndtri(1.0 - limits.k.double() / vocab).where(limits.k < vocab, -INF)
    if limits.p is not None:
        distance = (std - torch.special.ndtri(limits.p)).clamp(max=least_delta(vocab))
        delta_p = torch.where(limits.p < 1, distance, -INF)
    if limits.order == "joint":
        return delta_k.maximum(delta_p)
    return torch.where(delta_k > -INF, delta_k, delta_p)


def threshold(mean: Tensor, std: Tensor, delta: Tensor, margin: float, rule: str) -> Tensor:
    """t of each row, [B] float64; -inf for a constant row, one without finite entries, and where delta is -inf."""
    if rule == "sigma":
        value = mean + delta * (1.0 - margin * delta.sign()) * std
    else:
        value = mean + delta * std
        value = value - margin * value.abs()
    return torch.where((std > 0) & (delta > -INF), value, -INF)


def above(logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """How many entries are >= value [B], and their share of the row's mass (float64, 0 where nothing is eligible)."""
    vocab, counts, shares = logits.shape[-1], [], []
    for chunk in chunks(logits):
        rows, cut = logits[chunk], value[chunk, None]
        keys = reference.row_keys(rows)
        top = -torch.stack([keys[:, tile].amin(-1, keepdim=True) for tile in tiles(keys)]).amin(0)
        count = total = mass = 0
        for tile in tiles(keys):
            is_above = rows[:, tile].float() >= cut
            weights = reference.fixed_weights(keys[:, tile], top, vocab)
            count, total = count + is_above.sum(-1), total + weights.sum(-1)
            mass = mass + (weights * is_above).sum(-1)
        counts.append(count)
        shares.append(mass.double() / total.clamp(min=1).double())
    return torch.cat(counts), torch.cat(shares)


def is_hit(kept: Tensor, mass: Tensor, limits: Limits, vocab: int) -> Tensor:
    """[B] bool: kept >= k; p alone: mass >= p; joint: either; both off: always."""
    has_k = torch.zeros_like(kept, dtype=torch.bool) if limits.k is None else limits.k < vocab
    has_p = torch.zeros_like(has_k) if limits.p is None else limits.p < 1
    enough_k = has_k if limits.k is None else has_k & (kept >= limits.k)
    enough_p = has_p if limits.p is None else has_p & (mass >= limits.p)
    if limits.order == "k_then_p":  # p then counts within the k largest
        enough_p = enough_p & ~has_k
    return enough_k | enough_p | ~(has_k | has_p)
