"""Logits made up, in the shapes that matter to a cut, and `index`. The same arguments give the same bits.

Drawn with numpy's PCG64 in float64, then rounded to float32: torch's generators differ between devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from .synthetic_index import index

__all__ = ["KINDS", "index", "logits"]


def _gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.normal(0.0, 2.5, shape)


def _zipf(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    ranks = rng.permuted(np.broadcast_to(np.arange(1, shape[1] + 1), shape), axis=1)
    return -np.log(ranks)


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.uniform(-5.0, 5.0, shape)


def _laplace(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.laplace(0.0, 1.5, shape)


def _heavy_tail(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.clip(rng.standard_t(3, shape), -60.0, 60.0)


def _ties(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.round(_gaussian(rng, shape) * 8) / 8


def _peaked(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    values = rng.normal(0.0, 1.0, shape)
    values[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] = 30.0
    return values


def _flat(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.zeros(shape)


def _bimodal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    values = rng.normal(0.0, 4.0, shape)
    lump = max(1, shape[1] * 6242 // 262144)
    values[:, -lump:] = rng.normal(-27.0, 0.3, (shape[0], lump))
    return values


KINDS: dict[str, Callable] = {
    "gaussian": _gaussian,
    "zipf": _zipf,
    "uniform": _uniform,
    "laplace": _laplace,
    "heavy_tail": _heavy_tail,
    "ties": _ties,
    "peaked": _peaked,
    "flat": _flat,
    "bimodal": _bimodal,
}


def logits(kind: str, batch: int, vocab: int, *, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[batch, vocab] logits on the CPU.

    Args:
        kind: "gaussian" N(0, 2.5²), what truncation assumes · "zipf" −ln rank, shuffled · "uniform" in [−5, 5),
            bounded · "laplace" scale 1.5 · "heavy_tail" Student t, 3 degrees of freedom, within ±60 · "ties" gaussian
            in steps of 1/8 · "peaked" N(0, 1) and one token at 30 · "flat" all zero · "bimodal" N(0, 4²) and, as
            Gemma's `<unused…>` tokens do, 2.4 % at the end together near −27.
        batch, vocab: At least 1.
        seed: Non-negative.
        dtype: float32, or float16 or bfloat16 rounded from it.
    Raises:
        ValueError: an unknown kind, or a number out of range.
        TypeError: a dtype that is no logit dtype.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    for name, value, least in (("batch", batch, 1), ("vocab", vocab, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"dtype must be float32, float16 or bfloat16, got {dtype}")
    values = KINDS[kind](np.random.default_rng(seed), (batch, vocab))
    return torch.from_numpy(values.astype(np.float32)).to(dtype)
