"""Exact selection of columns in Triton: host side of `selection_kernels`. Knows scores and ranges; no queries."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import backend as backends
from ..machine import power_of_two, run
from . import ranges as bounds
from . import selection_kernels as kernels
from .ranges import FIELDS, Ranges


class Line(NamedTuple):
    """`cap` scores of a row are searched in registers, by `warps`."""

    cap: int
    warps: int


# Where a threshold leaves more than the last `cap`, reads are of memory.
TABLE = (Line(4_096, 8), Line(8_192, 16))
# Rows of at most as many columns are searched in registers, whatever the limit.
SHORT = 8_192
# Most registers of a thread, so that several programs share a multiprocessor.
REGISTERS = 64
# Scores of a program of `choose_kernel` for each of its warps, where rows are short; most warps.
A_WARP, MOST_WARPS = 512, 16
# A sample are runs of neighbours: how many, of how many, read by how many warps. Of few rows it is smaller; where it
# has less than one of SPREAD columns there are more runs, up to MOST_SAMPLED scores.
RUNS, RUN, SAMPLE_WARPS = 1_024, 8, 8
FEW_RUNS, FEW_RUN = 512, 8
SPREAD, MOST_SAMPLED = 32, 16_384
# Scores of a tile, the warps that gather them; tiles of a program, and how many are on their way at once.
TILE, TILE_WARPS, EACH, STAGES = 4_096, 8, 8, 2
# Scores of a tile that can be held, at least, and over what is expected; where there are more, the tile is read again.
PLACES, ROOM = 512, 4
# What is gathered may take so much more than the scores, of which max_bytes speaks.
EXTRA = 1 / 4
# Tiles whose numbers are summed at once; gathered scores that are searched at once where they do not fit registers.
TILES, BLOCK = 128, 1_024


class Plan(NamedTuple):
    """How long rows are selected: a sample of `runs` runs of `run`, a line of the table, `places` of a tile."""

    runs: int
    run: int
    line: Line
    places: int


def plan(columns: int, limit: int, few: bool) -> Plan:
    """By how much a threshold from a sample is likely to leave: see `threshold_of`."""
    runs, run = (FEW_RUNS, FEW_RUN) if few else (RUNS, RUN)
    while columns > SPREAD * runs * run and runs * run < MOST_SAMPLED:
        runs *= 2
    expected = limit * runs * run / columns
    wanted = expected + 4 * math.sqrt(expected) + 3
    gathered = (1 + 1 / 16) * wanted * columns / (runs * run)
    likely = gathered * (1 + 2 / math.sqrt(wanted))
    line = next((line for line in TABLE if likely <= line.cap), TABLE[-1])
    places = power_of_two(math.ceil(ROOM * likely * TILE / columns), PLACES)
    return Plan(runs, run, line, TILE if few else min(places, TILE))


def bytes_a_score(of: Ranges) -> float:
    """A score in memory, and what is gathered of a row beyond its share."""
    return max(4, (4 + 8 * plan(max(of.columns, 1), of.limit, False).places / TILE) / (1 + EXTRA))


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
    for name, ends in (("lo", lo), ("hi", hi)):
        if ends.device.type != "cpu" or ends.shape != (rows,):
            raise ValueError(f"{name} must be [{rows}] on the host, got {list(ends.shape)} on {ends.device}")
    out = torch.empty(rows, limit, dtype=torch.int32, device=scores.device)
    select(scores, bounds.ranges(lo.numpy(), hi.numpy(), limit, scores.device, base=0), out)
    return out


def select(
    scores: Tensor,
    of: Ranges,
    out: Tensor,
    *,
    lists: Tensor | None = None,
    list_rows: int = 1,
    appended: bool = False,
    repeat: int = 1,
    arrived: Tensor | None = None,
) -> None:
    """Write the best positions of each row of scores [R, columns], ascending, with a tail of -1.

    Args:
        of: A row's columns; column c is position lo + c, or lists[row // list_rows, c] int32.
        out: [n, width] int32: every row `repeat` times, the last one up to row n.
        appended: The positions of a row's window follow, and are not written before.
        arrived: [R] int32 zeros, where few rows are to be split over programs in one launch.
    """
    rows, device, width = of.rows, scores.device, out.shape[1]
    if rows == 0 or width == 0:
        return
    numbers = (scores, scores.stride(0), of.table, of.lo, of.hi, of.step, of.limit)
    list_stride = 0 if lists is None else lists.stride(0)
    results = (lists, list_stride, list_rows, out, width, len(out), of.window, of.last)
    fields: dict[str, Any] = {"FIELDS": FIELDS, "TABLE": of.table is not None}
    choice = {"LISTED": lists is not None, "APPENDED": appended, "REPEAT": repeat, **fields}
    with backends.current(device):
        if of.columns <= SHORT:
            cap = power_of_two(max(of.columns, 1), 16)
            none = (None, None, None, None, None, 0)
            sizes = {"CAP": cap, "TILE": TILE, "PLACES": TILE, "TILES": TILES, "BLOCK": BLOCK, "GATHERED": False}
            warps = min(MOST_WARPS, max(1, cap // A_WARP))
            run(kernels.choose_kernel, (rows,), (*numbers, *results, *none), sizes | choice, warps, REGISTERS)
            return
        runs, length, line, places = plan(of.columns, of.limit, arrived is not None)
        tiles = -(-of.columns // TILE)
        held = torch.empty(rows, tiles, places, dtype=torch.int64, device=device)
        sums = torch.empty(rows * (2 * tiles + 1), dtype=torch.int32, device=device)
        starts, counts = sums[rows * tiles :], sums[: rows * tiles]
        packed = torch.empty(rows, line.cap if places < TILE else 0, dtype=torch.int64, device=device)
        tile = {"TILE": TILE, "PLACES": places, "PADDED": scores.stride(0) % TILE == 0}
        sizes = {"CAP": line.cap, "TILES": TILES, "BLOCK": BLOCK}
        sample = {"RUNS": runs, "RUN": length}
        if arrived is not None:
            gathered = (arrived, held, packed, starts, counts, tiles)
            constants = sample | tile | sizes | choice
            run(kernels.select_kernel, (tiles * rows,), (*numbers, *results, *gathered), constants, line.warps)
            return
        thresholds = torch.empty(rows, dtype=torch.int32, device=device)
        constants = sample | {"CAP": line.cap} | fields
        run(kernels.threshold_kernel, (rows,), (*numbers, thresholds), constants, SAMPLE_WARPS)
        spans = -(-tiles // EACH)
        gathered = (thresholds, held, counts, tiles, spans)
        constants = tile | {"EACH": EACH, "STAGES": STAGES} | fields
        run(kernels.gather_kernel, (spans * rows,), (*numbers[:-1], *gathered), constants, TILE_WARPS, REGISTERS)
        gathered = (thresholds, held, packed, starts, counts, tiles)
        constants = sizes | choice | {"GATHERED": True, "TILE": TILE, "PLACES": places}
        run(kernels.choose_kernel, (rows,), (*numbers, *results, *gathered), constants, line.warps, REGISTERS)
