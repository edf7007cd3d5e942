"""Exact selection of columns in Triton: host side of `selection_kernels`. Knows scores and ranges; no queries."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import backend as backends
from ..machine import run
from . import ranges as bounds
from . import selection_kernels as kernels
from .ranges import FIELDS, Ranges


class Line(NamedTuple):
    """For limits up to `limit`: `cap` scores of a row are searched in registers, by `warps`."""

    limit: float
    cap: int
    warps: int


# A threshold leaves some 1.5 times as many scores as are wanted; where that is more than `cap`, reads are of memory.
TABLE = (Line(2_560, 4_096, 8), Line(float("inf"), 8_192, 16))
# Rows of at most as many columns are searched in registers, whatever the limit.
SHORT = 8_192
# Most registers of a thread, so that several programs share a multiprocessor.
REGISTERS = 64
# Scores of a program of `choose_kernel` for each of its warps, where rows are short; most warps.
A_WARP, MOST_WARPS = 512, 16
# A sample are runs of neighbours: how many, of how many, read by how many warps. Of few rows it is smaller.
RUNS, RUN, SAMPLE_WARPS = 1_024, 8, 8
FEW_RUNS, FEW_RUN = 1_024, 4
# Scores of a tile, the warps that gather them, and how many can be held: more are searched for in the row.
TILE, TILE_WARPS, PLACES = 4_096, 4, 2_048
# Tiles whose numbers are summed at once; gathered scores that are searched at once where they do not fit registers.
TILES, BLOCK = 128, 1_024
# A score, and what is held of it.
BYTES_A_SCORE = 4 + 8 * PLACES // TILE


def topk_of_scores(scores: Tensor, limit: int, lo: Tensor | None = None, hi: Tensor | None = None) -> Tensor:
    """The best columns of each row of a score matrix.

    Args:
        scores: [R, N] float32 on a CUDA device (or with TRITON_INTERPRET=1), columns next to each other.
        limit: Columns selected, >= 1.
        lo, hi: [R] integers on the host: row r may select lo[r] <= column < hi[r]; None is all.
    Returns:
        [R, limit] int32: columns ascending, unique, with a tail of -1.
    Raises:
        ValueError: scores of another type or layout; limit < 1.

    Ties: lowest column. NaN is never selected.
    """
    if scores.ndim != 2 or scores.dtype != torch.float32 or scores.stride(1) != 1 and scores.shape[1] > 1:
        raise ValueError(f"scores must be [R, N] float32 with neighbouring columns, got {list(scores.shape)}")
    if limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    rows, columns = scores.shape
    lo = torch.zeros(rows, dtype=torch.int64) if lo is None else lo.clamp(0, columns)
    hi = torch.full((rows,), columns, dtype=torch.int64) if hi is None else hi.clamp(0, columns)
    return select(scores, bounds.ranges(lo.numpy(), hi.numpy(), limit, scores.device, base=0), limit)


def select(
    scores: Tensor,
    of: Ranges,
    width: int,
    *,
    lists: Tensor | None = None,
    list_rows: int = 1,
    appended: bool = False,
    repeat: int = 1,
    out_rows: int | None = None,
    arrived: Tensor | None = None,
) -> Tensor:
    """The best positions of each row of scores [R, columns]: [out_rows, width] int32, ascending, with a tail of -1.

    Args:
        of: A row's columns; column c is position lo + c, or lists[row // list_rows, c] int32.
        appended: The positions of a row's window follow, and are not written before.
        repeat, out_rows: The result has every row `repeat` times, the last one fewer; None is each row once.
        arrived: [R] int32 zeros, where few rows are to be split over programs in one launch.
    """
    rows, device = of.rows, scores.device
    out_rows = rows if out_rows is None else out_rows
    out = torch.empty(out_rows, width, dtype=torch.int32, device=device)
    if rows == 0 or width == 0:
        return out
    line = next(line for line in TABLE if of.limit <= line.limit)
    is_long = of.columns > max(SHORT, line.cap)
    numbers = (scores, scores.stride(0), of.table, of.lo, of.hi, of.step, of.limit)
    list_stride = 0 if lists is None else lists.stride(0)
    results = (lists, list_stride, list_rows, out, width, out_rows, of.window, of.last)
    fields: dict[str, Any] = {"FIELDS": FIELDS, "TABLE": of.table is not None}
    choice = {"LISTED": lists is not None, "APPENDED": appended, "REPEAT": repeat, **fields}
    with backends.current(device):
        if not is_long:
            cap = max(16, 1 << (max(of.columns, 1) - 1).bit_length())
            none = (None, None, None, None, 0)
            sizes = {"CAP": cap, "PLACES": PLACES, "TILES": TILES, "BLOCK": BLOCK, "GATHERED": False}
            warps = min(MOST_WARPS, max(1, cap // A_WARP))
            run(kernels.choose_kernel, (rows,), (*numbers, *results, *none), sizes | choice, warps, REGISTERS)
            return out
        tiles = -(-of.columns // TILE)
        held = torch.empty(rows, tiles, PLACES, dtype=torch.int64, device=device)
        sums = torch.empty(rows * (2 * tiles + 1), dtype=torch.int32, device=device)
        starts, counts = sums[rows * tiles :], sums[: rows * tiles]
        tile = {"TILE": TILE, "PLACES": PLACES, "PADDED": scores.stride(0) % TILE == 0}
        sizes = {"CAP": line.cap, "TILES": TILES, "BLOCK": BLOCK}
        if arrived is not None:
            places = (arrived, held, starts, counts, tiles)
            sample = {"RUNS": FEW_RUNS, "RUN": FEW_RUN}
            constants = sample | tile | sizes | choice
            run(kernels.select_kernel, (tiles * rows,), (*numbers, *results, *places), constants, line.warps)
            return out
        thresholds = torch.empty(rows, dtype=torch.int32, device=device)
        sample = {"RUNS": RUNS, "RUN": RUN, "CAP": line.cap}
        run(kernels.threshold_kernel, (rows,), (*numbers, thresholds), sample | fields, SAMPLE_WARPS)
        places = (thresholds, held, counts, tiles)
        run(kernels.gather_kernel, (tiles * rows,), (*numbers[:-1], *places), tile | fields, TILE_WARPS)
        places = (thresholds, held, starts, counts, tiles)
        constants = sizes | choice | {"GATHERED": True, "PLACES": PLACES}
        run(kernels.choose_kernel, (rows,), (*numbers, *results, *places), constants, line.warps, REGISTERS)
    return out
