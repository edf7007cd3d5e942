"""What the contract says, by a float64 sort in numpy, sharing no code with the package.

Everything is per row: `row` is an array [V]; kept entries are indices.
"""

import math

import numpy as np

TOLERANCE = 1e-6


def row_order(row):
    """Eligible indices, value descending, index ascending; -0.0 equals 0.0."""
    row = np.asarray(row, dtype=np.float64)
    eligible = np.flatnonzero(row > -np.inf)  # NaN compares false
    return eligible[np.lexsort((eligible, -(row[eligible] + 0.0)))]


def masses(row, order, temperature=1.0):
    """Probabilities of the entries in `order`, normalised over `order`, float64. Temperature 0: the first alone."""
    values = np.asarray(row, dtype=np.float64)[order]
    if not len(values):
        return values
    if temperature == 0:
        return np.arange(len(values)) == 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(values == values[0], 1.0, np.exp((values - values[0]) / temperature))
    return weights / math.fsum(weights)


def is_off(k, p, vocab):
    return (k is None or k in (0, -1) or k >= vocab), (p is None or p == 1)


def through_ties(values, count):
    """Length of the prefix of descending values with everything equal to its last entry."""
    return int(np.searchsorted(-values, -values[count - 1], side="right")) if count else 0


def nuclei(probabilities, p):
    """Every n with S(n) >= p - 1e-6, and n = 1 or S(n - 1) < p + 1e-6."""
    mass = np.cumsum(probabilities)
    below = np.concatenate([[-1.0], mass[:-1]])
    return np.flatnonzero((mass >= p - TOLERANCE) & (below < p + TOLERANCE)) + 1


def allowed_counts(row, k=None, p=None, order="k_then_p", ties="index", temperature=1.0):
    """The sizes of the kept set that the contract allows for a row."""
    ranked = row_order(row)
    values = np.asarray(row, dtype=np.float64)[ranked]
    k_off, p_off = is_off(k, p, len(row))
    extend = (lambda n: through_ties(values, n)) if ties == "all" else int
    most = len(ranked) if k_off else extend(min(k, len(ranked)))
    if p_off or not len(ranked):
        return {most}
    base = ranked if order == "joint" else ranked[:most]
    return {min(most, extend(n)) for n in nuclei(masses(row, base, temperature), p)}


def check_kept(row, kept, **limits):
    """Assert that `kept` (ascending indices) is a set the contract allows for this row."""
    counts = allowed_counts(row, **limits)
    assert len(kept) in counts, f"{len(kept)} kept, allowed {sorted(counts)[:5]}, {limits}"
    assert sorted(row_order(row)[: len(kept)]) == list(kept), f"not a prefix of the row order, {limits}"
