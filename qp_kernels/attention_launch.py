"""Host side of attention over selected keys: shapes of the blocks, and over how many programs a row is split.

Nothing here reads a device value, so a call can be captured in a CUDA graph. Scratch memory is allocated per call, on
the caller's stream: at most the sums of one program for each core of the device.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from . import backend as backends
from .attention_kernels import attend_kernel, merge_kernel
from .machine import limits, power_of_two

# A program merges at most so many splits, for so many columns.
MOST_SPLITS = 64
MERGE_COLUMNS = 128
# The widest columns of q and k that a program holds at once, in 16-bit numbers, and of v, whose sums are registers.
WIDEST_KEY = 640
WIDEST_VALUE = 512
# Of the memory that programs share, Triton takes some for shares, positions and sums.
SPARE_BYTES = 9 << 10


@dataclass(frozen=True)
class Blocks:
    """What a program works on at once.

    Attributes:
        main, rest: Columns of q and k, powers of two; rest may be 0.
        whole: All columns at once; else main columns of many.
        shared: The values are the main columns of the keys.
        heads, keys, values: Query heads of a kv head, selected keys, columns of v.
    """

    main: int
    rest: int
    whole: bool
    shared: bool
    heads: int
    keys: int
    values: int
    warps: int
    stages: int


def attend(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float) -> Tensor:
    """[T, Hq, Dv] of the dtype of q; no size of the arguments is 0."""
    (rows, heads, width), (keys, kv_heads, values) = q.shape, v.shape
    topk, device = indices.shape[1], q.device
    slots, shared_bytes = limits(device)
    blocks = blocks_of(k, v, heads // kv_heads, shared_bytes - SPARE_BYTES)
    programs = rows * kv_heads * -(-(heads // kv_heads) // blocks.heads) * -(-values // blocks.values)
    span, splits = cut_of(topk, blocks.keys, programs, slots)
    out = torch.empty(rows, heads, values, dtype=q.dtype, device=device)
    sums, tops, totals = out, None, None
    if splits > 1:
        sums = torch.empty(splits, rows, heads, values, dtype=torch.float32, device=device)
        tops, totals = torch.empty(2, splits, rows, heads, dtype=torch.float32, device=device)
    with backends.current(device):
        attend_kernel[(programs, splits)](
            q,
            k,
            v,
            indices,
            sums,
            tops,
            totals,
            *q.stride(),
            *k.stride(),
            *v.stride(),
            *indices.stride(),
            float(scale),
            rows,
            kv_heads,
            heads // kv_heads,
            keys,
            topk,
            span,
            D=width,
            DV=values,
            MAIN=blocks.main,
            REST=blocks.rest,
            WHOLE=blocks.whole,
            SHARED=blocks.shared,
            SPLIT=splits > 1,
            BLOCK_H=blocks.heads,
            BLOCK_K=blocks.keys,
            BLOCK_V=blocks.values,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
        if splits > 1:
            columns = min(MERGE_COLUMNS, power_of_two(values))
            merge_kernel[(rows * heads, -(-values // columns))](
                sums,
                tops,
                totals,
                out,
                rows * heads,
                splits,
                DV=values,
                SPLITS=power_of_two(splits),
                BLOCK_V=columns,
                num_warps=4,
            )
    return out


def blocks_of(k: Tensor, v: Tensor, group: int, most_bytes: int) -> Blocks:
    """Blocks for keys k [N, Hkv, D], values v [N, Hkv, Dv] and `group` query heads of a kv head.

    With 16-bit numbers as many heads, then as many keys, as fit into `most_bytes` of shared memory.
    """
    width, values = k.shape[2], min(WIDEST_VALUE, power_of_two(v.shape[2], 16))
    if k.dtype == torch.float32:  # without tensor cores: few columns at a time, so that they stay in registers
        heads = min(32, power_of_two(group, 16))
        warps = 8 if heads * values > 4096 else 4
        return Blocks(min(32, power_of_two(width, 16)), 0, False, False, heads, 32, values, warps, 2)
    main, rest = columns_of(width)
    whole = main + rest <= WIDEST_KEY
    if not whole:
        main, rest = 64, 0
    steps = zip(v.shape, k.stride(), v.stride(), strict=True)
    same = k.data_ptr() == v.data_ptr() and all(size == 1 or of_k == of_v for size, of_k, of_v in steps)
    shared = whole and same and main == values == v.shape[2]
    row = 2 * (main + rest)
    for heads, keys in itertools.product((64, 32, 16), (64, 32, 16)):
        # wgmma, from 64 heads on, reads its operands where they are loaded to, while the next ones arrive.
        buffers = 2 if heads == 64 else 1
        held = heads * row + buffers * keys * (row + (0 if shared else 2 * values))
        if heads <= power_of_two(group, 16) and held <= most_bytes:
            break
    warps = 8 if values == WIDEST_VALUE or heads * values >= 16384 else 4
    return Blocks(main, rest, whole, shared, heads, keys, values, warps, 3)


def columns_of(width: int) -> tuple[int, int]:
    """Powers of two from 16 on that cover the width: 576 is 512 + 64; one alone where two would be as wide."""
    above = power_of_two(width, 16)
    main = above // 2
    if width <= 16 or width > main + main // 2:
        return above, 0
    return main, power_of_two(width - main, 16)


def cut_of(topk: int, block: int, programs: int, slots: int) -> tuple[int, int]:
    """How many of topk keys a program takes, whole blocks, and in how many splits: as many as fill `slots`."""
    n = -(-topk // block)  # blocks of keys
    splits = max(1, min(n, slots // programs, MOST_SPLITS))
    span = -(-n // splits) * block
    return span, -(-topk // span)
