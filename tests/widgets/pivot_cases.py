"""Settings and attention for the tests of PivotExplorer, and what a panel shows as the public functions give it."""

from dataclasses import replace

import numpy as np
import torch

RIVALS = ("hisa", "misa", "misa_rerank", "index_cache", "pivot_cache")


def with_mass(capture, seed=0):
    """Attention that falls on visible keys."""
    mass = np.random.default_rng(seed).random((len(capture), len(capture.k))) ** 8
    mass *= np.arange(len(capture.k)) < capture.hi.numpy()[:, None]
    return replace(capture, mass=torch.from_numpy((mass / mass.sum(1, keepdims=True)).astype(np.float32)))


def given(capture):
    return (capture.q, capture.k, capture.w), {"lo": capture.lo, "hi": capture.hi}


def shown(panel, name=None):
    """[T, k] int32 as the public functions give it: what the panel shows of a system."""
    view = panel._view
    positions = view.systems[name or view.at.mode].positions
    far = torch.iinfo(torch.int64).max
    found = positions.masked_fill(positions < 0, far).sort(1).values
    found = found.masked_fill(found == far, -1).int()
    return torch.nn.functional.pad(found, (0, view.at.k - found.shape[1]), value=-1)


def set_all(panel, **values):
    for name, value in values.items():
        getattr(panel, name).value = value
    panel.wait()
