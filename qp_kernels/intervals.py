"""Intervals that say how sure a measured mean or share is. Pure numbers; knows nothing of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


def wilson(right: int, of: int, *, level: float = LEVEL) -> tuple[float, float]:
    """The Wilson score interval of a share: low and high, in [0, 1].

    Args:
        right: How many of `of` trials succeeded.
        level: Confidence in (0, 1).
    Raises:
        ValueError: no trial, more successes than trials, or a level outside.
    Source: Wilson, JASA 22 (1927).

    >>> [round(end, 3) for end in wilson(10, 10)]
    [0.722, 1.0]
    """
    _level(level)
    if of < 1 or not 0 <= right <= of:
        raise ValueError(f"there must be trials, and at most as many successes, got {right} of {of}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = right / of, z * z / of
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    # The ends of no success and of nothing else are exact, whatever is rounded.
    low = (middle - half) / (1 + spread) if right else 0.0
    return low, (middle + half) / (1 + spread) if right < of else 1.0


def bootstrap(
    groups: Sequence[Sequence[float]], *, level: float = LEVEL, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of the groups' means: low and high.

    Args:
        groups: One group of values, or several, each of which is drawn anew by itself (a stratified bootstrap): then
            every group counts alike, however many values it has.
        level: Confidence in (0, 1). draws: How often. seed: Of the draws.
    Raises:
        ValueError: no group, an empty one, a value that is not finite, a level outside, no draw.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    >>> bootstrap([[1.0, 1.0], [3.0]])
    (2.0, 2.0)
    """
    _level(level)
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or draws < 1 or any(array.ndim != 1 or not len(array) for array in arrays):
        raise ValueError("there must be draws and groups, each with at least one value")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("the values must be finite")
    random = np.random.default_rng(seed)
    means = sum(array[random.integers(len(array), size=(draws, len(array)))].mean(1) for array in arrays) / len(arrays)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
