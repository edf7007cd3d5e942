"""The floors: the fastest of a few simple ways to copy a matrix, and to read it, on the same rows, in the same mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import backend
from ..timing import Timing

# Entries of a program, and its warps.
BLOCKS = ((2_048, 4), (8_192, 8), (16_384, 16))

Way = Callable[[Tensor], object]


def fastest(name: str, batch: Tensor, measure: Callable[[Way], Timing]) -> tuple[str, Timing]:
    """The way that took least, and its time.

    Args:
        name: "floor_read_write" or "floor_read". batch: [B, V], contiguous: what the ways are for.
        measure: Times a way on such batches.
    """
    timed = [(words, measure(way)) for words, way in WAYS[name](batch)]
    return min(timed, key=lambda found: found[1].median_us)


def number(name: str, device: torch.device) -> int:
    """How many ways there are on a device."""
    return sum(1 for _ in WAYS[name](torch.empty(1, 1, device=device)))


def _read_write(batch: Tensor) -> Iterator[tuple[str, Way]]:
    target = torch.empty_like(batch)
    yield "torch copy_", target.copy_
    if _has_triton(batch):
        from .floor_kernels import copy_kernel

        for block, warps in BLOCKS:
            yield f"triton, blocks of {block}", _launch(copy_kernel, batch, target, block, warps)


def _read(batch: Tensor) -> Iterator[tuple[str, Way]]:
    largest = torch.empty(len(batch), dtype=batch.dtype, device=batch.device)
    yield "torch amax", lambda x: torch.amax(x, -1, out=largest)
    if batch.device.type == "cpu" and batch.dtype is not torch.bfloat16:
        yield "numpy max", lambda x: x.numpy().max()  # on one thread, where torch waits for others on small matrices
    if _has_triton(batch):
        from .floor_kernels import read_kernel

        for block, warps in BLOCKS:
            found = torch.empty(-(-batch.numel() // block), dtype=torch.float32, device=batch.device)
            yield f"triton, blocks of {block}", _launch(read_kernel, batch, found, block, warps)


def _launch(kernel, batch: Tensor, target: Tensor, block: int, warps: int) -> Way:
    entries = batch.numel()
    grid = (-(-entries // block),)
    return lambda x: kernel[grid](x, target, entries, BLOCK=block, num_warps=warps)


def _has_triton(batch: Tensor) -> bool:
    return backend.resolve(batch).name == "triton"


WAYS: dict[str, Callable[[Tensor], Iterator[tuple[str, Way]]]] = {"floor_read_write": _read_write, "floor_read": _read}
