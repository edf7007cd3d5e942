"""Keys as bars on the axis of positions: what part of each stretch of keys a selection takes."""

from __future__ import annotations

import numpy as np

BINS = 200  # of the position axis, at most
STEPS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)  # ends of an axis of shares
BAR = {"type": "bar", "hovertemplate": "near key %{x:,.0f}: %{y:.1%} of the keys (%{fullData.name})<extra></extra>"}


def binned(n_keys: int, **keys: np.ndarray) -> dict[str, dict]:
    """For each name properties of a trace of bars: the share of every stretch of positions that these keys are.

    Stretches without any are left out: a browser draws and styles a bar of no height like any other.
    """
    start, held = _stretches(n_keys)
    bars = {"x": start + (held - 1) / 2, "width": held.astype(np.float64)}
    out = {}
    for name, some in keys.items():
        bar = {**bars, "y": np.bincount(some // held[0], minlength=len(held)) / held}
        out[name] = {key: values[bar["y"] > 0] for key, values in bar.items()}
    return out


def highest(n_keys: int, *keys: np.ndarray) -> float:
    """The highest stack of bars of disjoint keys."""
    _, held = _stretches(n_keys)
    return float(np.max(np.bincount(np.concatenate(keys) // held[0], minlength=len(held)) / held, initial=0))


def _stretches(n_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Where stretches of keys start and how many keys each holds; the first ones are the widest."""
    edges = np.arange(0, n_keys, max(1, -(-n_keys // BINS)))
    return edges, np.diff(edges, append=n_keys)


def ends(highest: float) -> list[float]:
    """The range of an axis of shares: a round step that holds the highest, so that it rests while a slider moves."""
    return [0, 1.05 * min(step for step in STEPS if step >= min(highest, 1.0))]
