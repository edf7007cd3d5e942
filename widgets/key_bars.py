"""Keys as bars on the axis of positions: what part of each stretch of keys a selection takes."""

from __future__ import annotations

import numpy as np

BINS = 200  # of the position axis, at most
STEPS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)  # ends of an axis of shares
BAR = {"type": "bar", "hovertemplate": "near key %{x:,.0f}: %{y:.1%} of the keys (%{fullData.name})<extra></extra>"}


def binned(n_keys: int, **keys: np.ndarray) -> dict[str, dict]:
    """For each name properties of a trace of bars: the share of every stretch of positions that these keys are."""
    width = max(1, -(-n_keys // BINS))
    edges = np.arange(0, n_keys + width, width)
    held = np.minimum(edges[1:], n_keys) - edges[:-1]
    bar = {"x": edges[:-1] + (held - 1) / 2, "width": held.astype(np.float64)}
    return {name: {**bar, "y": np.bincount(some // width, minlength=len(held)) / held} for name, some in keys.items()}


def ends(shares: np.ndarray) -> list[float]:
    """The range of an axis of shares: a round step that holds the highest, so that it rests while a slider moves."""
    highest = float(np.max(shares, initial=0))
    return [0, 1.05 * min(step for step in STEPS if step >= min(highest, 1.0))]
