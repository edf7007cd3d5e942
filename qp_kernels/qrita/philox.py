"""Philox 4x32-10, the counter-based generator of Triton's `tl.rand`, in torch integer operations.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
# Largest scale for which (2**31 - 1) * scale rounds below 1 in fp32; the one Triton uses.
TO_UNIT = 4.6566127342e-10


def philox_4x32(counter: list[Tensor], key: list[Tensor], rounds: int = 10) -> list[Tensor]:
    """Encrypt 4 counter words under 2 key words.

    Args:
        counter, key: int64 tensors of one shape, each value in [0, 2**32).
    Returns:
        4 int64 tensors of that shape, values in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        # A product of two 32-bit words wraps in int64, but keeps its 64 bits: shift and mask read both halves.
        left, right = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = ((right >> 32) & MASK) ^ c1 ^ k0, ((left >> 32) & MASK) ^ c3 ^ k1
        c1, c3 = right & MASK, left & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return [c0, c1, c2, c3]


def uniform(seeds: Tensor) -> Tensor:
    """`tl.rand(seed, 0)` for each seed, bit for bit.

    Args:
        seeds: int64, any shape; negative values are read as their unsigned bits.
    Returns:
        float32 in [0, 1), same shape.

    >>> uniform(torch.tensor([0, 1, -1])).tolist()
    [0.7980929017066956, 0.21948163211345673, 0.8956440091133118]
    """
    zero = torch.zeros_like(seeds)
    word = philox_4x32([zero] * 4, [seeds & MASK, (seeds >> 32) & MASK])[0]
    # As a signed 32-bit integer w, the magnitude used is w, or -w - 1 where w is negative.
    magnitude = torch.where(word > 0x7FFFFFFF, MASK - word, word)
    return magnitude.float() * TO_UNIT
