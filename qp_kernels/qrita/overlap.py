"""Does memory overlap? Exact for the strides of 1-D and 2-D tensors. Knows addresses, never contents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Steps numpy's exact solver may take; past them two tensors count as overlapping.
MAX_WORK = 1_000_000


def check_out(out: Any, logits: Tensor) -> None:
    """Refuse an `out` that cannot hold the result of `logits`, before anything is written.

    Raises:
        TypeError: no dense tensor, or another dtype.
        ValueError: another shape or device; elements of `out` share memory with each other; `out` shares some
            memory with `logits` without being the same view.
    """
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a torch.Tensor, got {type(out).__name__}")
    if out.layout != torch.strided:
        raise TypeError(f"out must be a dense tensor, got layout {out.layout}")
    if out.dtype != logits.dtype:
        raise TypeError(f"out must be {logits.dtype} as logits are, got {out.dtype}")
    if out.shape != logits.shape:
        raise ValueError(f"out must have shape {list(logits.shape)}, got {list(out.shape)}")
    if out.device != logits.device:
        raise ValueError(f"out must be on {logits.device} as logits are, got {out.device}")
    if overlaps_itself(out):
        raise ValueError(f"out must not overlap itself, got shape {list(out.shape)} with strides {out.stride()}")
    if not same_view(out, logits) and share_memory(out, logits):
        raise ValueError("out must be logits itself or share no memory with it, got a view that partly overlaps it")


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of a 1-D or 2-D tensor lie at one address."""
    if tensor.numel() == 0:
        return False
    steps = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    if any(stride == 0 for _, stride in steps):
        return True
    if len(steps) < 2:
        return False
    # i * s + j * t = i' * s + j' * t first happens at i - i' = t / gcd and j' - j = s / gcd.
    (rows, s), (columns, t) = steps
    common = math.gcd(s, t)
    return t // common < rows and s // common < columns


def same_view(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold element i of both at one address, for every i."""
    steps = [s == t for size, s, t in zip(a.shape, a.stride(), b.stride(), strict=True) if size > 1]
    return a.data_ptr() == b.data_ptr() and all(steps)


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether any byte belongs to both."""
    if a.device != b.device or 0 in (a.numel(), b.numel()):
        return False
    try:
        return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)), max_work=MAX_WORK)
    except np.exceptions.TooHardError:
        return True


class _Addresses:
    """The addresses of a tensor as numpy sees an array; what lies there is never read."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }
