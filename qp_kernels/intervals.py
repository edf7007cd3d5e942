"""Intervals that say how sure a measured mean or share is. Pure numbers; knows nothing of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


def wilson(right: float, of: float, *, level: float = LEVEL) -> tuple[float, float]:
    """The Wilson score interval of a share: low and high, in [0, 1].

    Args:
        right: How many of `of` trials succeeded; parts of one where trials are weighted.
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
    Few values: of 12 it leaves out the true mean in about one of ten cases instead of one of twenty; see `student`.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    >>> bootstrap([[1.0, 1.0], [3.0]])
    (2.0, 2.0)
    """
    _level(level)
    arrays = _arrays(groups)
    if draws < 1:
        raise ValueError(f"there must be draws, got {draws}")
    random = np.random.default_rng(seed)
    means = sum(array[random.integers(len(array), size=(draws, len(array)))].mean(1) for array in arrays) / len(arrays)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def student(groups: Sequence[Sequence[float]], *, level: float = LEVEL) -> tuple[float, float]:
    """Student's t interval of the mean of the groups' means: low and high. It holds its level with few values as well.

    Degrees of freedom of several groups are Welch's and Satterthwaite's. Values far from normal cost some of the level:
    of 12 exponential ones the interval leaves out the true mean in 7 to 8 of a hundred cases.

    Args:
        groups: One group of values, or several: then every group counts alike, however many values it has. A group of
            one value says nothing of its spread, and widens nothing.
        level: Confidence in (0, 1).
    Raises:
        ValueError: no group, an empty one, a value that is not finite, a level outside.
    Source: Welch, Biometrika 34 (1947).

    >>> [round(end, 3) for end in student([[1.0, 2.0, 3.0]])]
    [-0.484, 4.484]
    """
    _level(level)
    arrays = _arrays(groups)
    mean = sum(array.mean() for array in arrays) / len(arrays)
    spread = [(array.var(ddof=1) / len(array), len(array) - 1) for array in arrays if len(array) > 1]
    variance = sum(one for one, _ in spread)
    if variance == 0:
        return float(mean), float(mean)
    freedom = 1 / sum((one / variance) ** 2 / free for one, free in spread)
    half = _student_quantile(freedom, level) * math.sqrt(variance) / len(arrays)
    return float(mean - half), float(mean + half)


def _student_quantile(freedom: float, level: float) -> float:
    """t such that a variable of Student's distribution lies in [-t, t] with probability `level`."""
    # With t = sqrt(freedom) tan(angle) the density is cos(angle) ** (freedom - 1), on a bounded range. Beyond 1,000
    # degrees t is the normal distribution's to three digits.
    freedom = min(freedom, 1000.0)
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(level, mass / mass[-1], angles))


def _arrays(groups: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Checked: at least one group, none of them empty, all values finite."""
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or any(array.ndim != 1 or not len(array) for array in arrays):
        raise ValueError("there must be groups, each with at least one value")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("the values must be finite")
    return arrays


def _level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
