"""How large inputs are cut up: chunks of rows bound the working memory, tiles of columns keep steps small on a CPU.

A tile has at most as many elements as torch works on without splitting a step among threads. A split step waits for
its slowest thread, and beside a busy browser that is a time slice of the system, for every step; a tile also stays in
the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# A multiple of every vector width torch has for float64, unrolled twice.
LANES = 32
# Elements worked on at once, about 40 bytes each; on a CPU torch splits a step of 2**15.
TILE = {"cpu": (1 << 15) - LANES, "cuda": 1 << 26}
# Values looked up at once; on a CPU torch splits a search for more.
SEARCH = {"cpu": 200, "cuda": 1 << 26}


def chunks(logits: Tensor) -> Iterator[slice]:
    """Slices of the rows of logits [B, V]: a tile of short rows, or one long row; one empty slice for B = 0."""
    device = logits.device.type
    rows = max(1, min(TILE[device] // logits.shape[-1], SEARCH[device]))
    return (slice(start, start + rows) for start in range(0, max(len(logits), 1), rows))


def tiles(rows: Tensor) -> Iterator[slice]:
    """Slices of the columns of rows [b, V]; on a GPU one."""
    columns = rows.shape[-1] if rows.is_cuda else max(1, TILE["cpu"] // max(len(rows), 1))
    return (slice(start, start + columns) for start in range(0, rows.shape[-1], columns))


def tiled(function: Callable[[Tensor], Tensor], rows: Tensor, dtype: torch.dtype) -> Tensor:
    """function(rows) as a contiguous [b, V] tensor of that dtype, for an element-wise function, tile by tile."""
    result = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    for tile in tiles(rows):
        result[:, tile] = function(rows[:, tile])
    return result


def search(ascending: Tensor, values: Tensor) -> Tensor:
    """`torch.searchsorted` of values [b, C] in ascending rows [b, V], tile by tile."""
    columns = max(1, SEARCH[values.device.type] // max(len(values), 1))
    parts = [torch.searchsorted(ascending, part.contiguous()) for part in values.split(columns, dim=1)]
    return torch.cat(parts, dim=1)


def exp(values: Tensor) -> Tensor:
    """e to the power of float64 values, with bits that do not depend on where a value stands.

    On a CPU torch's exp may go through a library that splits even short steps among threads, so this is exp2, whose
    vector and scalar forms differ in the last bit: padding leaves no remainder to the scalar one.
    """
    if values.is_cuda:
        return values.exp()
    flat = values.reshape(-1) * math.log2(math.e)
    size = flat.numel()
    if size % LANES:
        flat = torch.nn.functional.pad(flat, (0, -size % LANES))
    return flat.exp2_()[:size].view(values.shape)
