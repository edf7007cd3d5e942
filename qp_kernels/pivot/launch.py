"""Host side of the index selection kernels: which rows are scored together, how much at once, and what selects.

Nothing here reads a device value: bounds are on the host. Memory is allocated per call, on the caller's stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import backend as backends
from ..machine import limits, power_of_two, run, upload
from . import checks, scan_kernels, selection
from . import ranges as bounds
from .checks import Problem
from .groups import Groups
from .ranges import FIELDS, Blocks, Ranges
from .reference import in_float32

# Query heads that stay with a program, by bytes of a number; keys of a tile; tiles on their way at once.
MOST_HEADS, MOST_KEYS, STAGES = {1: 128, 2: 256}, 64, 3
# Of shared memory, for sums.
SPARE_BYTES = 4 << 10
# fp32 products use no tensor cores: smaller tiles, in registers.
FP32_HEADS, FP32_KEYS = 64, 32
# Keys that a program scans at most, and where that makes fewer than WAVES programs for each multiprocessor.
SPAN, SHORT_SPAN, WAVES = 4_096, 1_024, 16
# Rows whose scores are selected in one launch; chunks have a multiple of ALIGNED rows; heads of a program of proxies.
FEW_ROWS, ALIGNED, PROXY_HEADS, PROXY_WARPS = 16, 64, 16, 4
# Of max_bytes, for proxies and lists of candidates: one part in so many.
GROUPS_SHARE = 8
# Of a re-scored candidate. Times that a kernel writes a row: more are copied afterwards, since each is unrolled.
LIST_BYTES, MOST_REPEATED = 4, 16
# Keys that are summed at once.
BLOCK_KEYS = 32
# Rows of scores start at whole tiles of the selection.
PAD = selection.TILE


def dense(problem: Problem) -> Tensor:
    """Every row's best topk keys: [T, topk] int32, ascending, with a tail of -1."""
    result = result_of(problem)
    best(problem, ranges_of(problem, problem.topk), result)
    return result


def result_of(problem: Problem) -> Tensor:
    return torch.empty(len(problem), problem.topk, dtype=torch.int32, device=problem.q.device)


def ranges_of(problem: Problem, limit) -> Ranges:
    return bounds.ranges(problem.lo.numpy(), problem.hi.numpy(), limit, problem.q.device)


def best(problem: Problem, of: Ranges, result: Tensor, *, appended: bool = False, repeat: int = 1) -> None:
    """Write the best keys of each row within its range, in chunks of rows whose scores fit max_bytes.

    Args:
        result: [n, width] int32: positions ascending, with a tail of -1. It has every row `repeat` times, the last one
            up to row n.
    """
    fit = max(1, int(problem.max_bytes // (selection.bytes_a_score(of) * padded(of.columns))))
    for chunk in evenly(of.rows, fit):
        whole = slice(0, of.rows)
        part = of if chunk == whole else of.part(chunk)
        mine = problem if chunk == whole else problem.rows(chunk)
        arrived = None
        if part.rows <= FEW_ROWS:
            arrived = torch.empty(part.rows, dtype=torch.int32, device=problem.q.device)
        scores = scan_rows(mine, part, arrived)
        out = result[chunk.start * repeat : chunk.stop * repeat]
        selection.select(scores, part, out, appended=appended, repeat=repeat, arrived=arrived)
        del scores  # before those of the next chunk


def evenly(rows: int, most: int) -> list[slice]:
    """Rows in chunks of about the same size, at most `most`, and where that is more than few a multiple of ALIGNED."""
    n = -(-rows // most)
    step = -(-rows // max(n, 1))
    if step > ALIGNED and most >= -(-step // ALIGNED) * ALIGNED:
        step = -(-step // ALIGNED) * ALIGNED
    return [slice(start, min(start + step, rows)) for start in range(0, rows, max(step, 1))]


def padded(columns: int) -> int:
    """Columns of a row of scores in memory."""
    return max(1, -(-columns // PAD)) * PAD if columns > 16 else 16


@in_float32
def scan(q, k, w, *, q_scale=None, k_scale=None, lo=None, hi=None) -> Tensor:
    """Scores of every row, as `dense_topk` takes them: [T, columns] float32; column c of row t is key lo[t] + c.

    Undefined beyond a row's hi. All at once: memory is T * N * 4 bytes.
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": "triton", "max_bytes": 1}
    checked = checks.problem(q, k, w, 1, **options)
    of = ranges_of(checked, 1)
    return scan_rows(checked, of)[:, : of.columns]


def scan_rows(problem: Problem, of: Ranges, arrived: Tensor | None = None) -> Tensor:
    """Scores of every row against the keys from its lo on: [rows, columns], padded."""
    device = problem.q.device
    out = torch.empty(of.rows, padded(of.columns), dtype=torch.float32, device=device)
    sizes = sizes_of(problem, bounds.most_sharing(of))
    blocks = bounds.scan_blocks(of, sizes["ROWS"], device)
    span = span_of(of.columns, blocks.count, sizes["BLOCK"], device)
    launch(problem, out, blocks, of, of.columns, span, sizes, arrived=arrived)
    return out


def rescored(problem: Problem, lists: Tensor, starts: np.ndarray, stops: np.ndarray, result: Tensor) -> None:
    """Write the topk of rows [starts[i], stops[i]) among the positions lists[i], which ascend: result [T, topk] int32.

    A list may hold -1 anywhere. Rows are those of the lists, one after the other. One gathered tile of keys serves all
    rows of a list.
    """
    rows, width = len(problem), lists.shape[1]
    step = min(rows, max(1, int(problem.max_bytes // (LIST_BYTES * padded(width)))))
    first = 0
    while first < len(starts):
        # Whole lists, at least one.
        last = max(first + 1, int(np.searchsorted(stops, starts[first] + step, side="right")))
        chunk = slice(int(starts[first]), int(stops[last - 1]))
        begins, ends = starts[first:last] - chunk.start, stops[first:last] - chunk.start
        part = problem if chunk == slice(0, rows) else problem.rows(chunk)
        _rescored(part, lists[first:last], begins, ends, result[chunk])
        first = last


def _rescored(problem: Problem, lists: Tensor, starts: np.ndarray, stops: np.ndarray, result: Tensor) -> None:
    device, width = problem.q.device, lists.shape[1]
    scores = torch.empty(len(problem), padded(width), dtype=torch.float32, device=device)
    counts = stops - starts
    sizes = sizes_of(problem, int(counts.max()))
    blocks = bounds.list_blocks(starts, stops, sizes["ROWS"], device)
    own = ranges_of(problem, problem.topk)
    span = span_of(width, blocks.count, sizes["BLOCK"], device)
    launch(problem, scores, blocks, own, width, span, sizes, lists)
    # Rows find their list by their number, so lists of unequal groups are repeated for each.
    per = bounds.even_count(starts, stops)
    if not per:
        lists, per = repeated(lists, counts), 1
    of = bounds.ranges(0, np.full(len(problem), width), problem.topk, device)
    selection.select(scores, of, result, lists=lists, list_rows=per)


def repeated(rows: Tensor, counts: np.ndarray) -> Tensor:
    """Row i of a tensor counts[i] times."""
    there = upload(torch.from_numpy(counts), rows.device)
    return rows.repeat_interleave(there, dim=0, output_size=int(counts.sum()))


def sizes_of(problem: Problem, rows: int) -> dict[str, Any]:
    """Shapes of a tile, for at most `rows` rows that share keys."""
    _, heads, width = problem.q.shape
    item = problem.q.element_size()
    depth = power_of_two(width, 32 if item == 1 else 16)
    most_heads, most_keys, stages = (FP32_HEADS, FP32_KEYS, 2) if item == 4 else (MOST_HEADS[item], MOST_KEYS, STAGES)
    room = limits(problem.q.device)[1] - SPARE_BYTES
    while (most_heads + stages * most_keys) * depth * item > room and most_heads > 16:
        most_heads //= 2
    part = min(power_of_two(heads), most_heads)
    shared = max(min(most_heads // part, power_of_two(max(rows, 1))), 16 // part, 1)
    return {
        "H": heads,
        "D": width,
        "ROWS": shared,
        "HEADS": part,
        "DEPTH": depth,
        "BLOCK": most_keys,
        "STAGES": stages,
    }


def warps_of(sizes: dict[str, Any]) -> int:
    """Warps of a program: 4 hold the sums of 128 query heads."""
    return 8 if sizes["BLOCK"] == FP32_KEYS or sizes["ROWS"] * sizes["HEADS"] > 128 else 4


def span_of(columns: int, blocks: int, block: int, device: torch.device) -> int:
    """Keys that a program scans: few enough that all multiprocessors have work, to the end."""
    keys, cores = columns * max(blocks, 1), limits(device)[0]
    share = -(-keys // (2 * cores))
    most = SPAN if keys >= WAVES * SPAN * cores else SHORT_SPAN
    return max(block, min(most, -(-share // block) * block))


def launch(
    problem: Problem,
    out: Tensor,
    blocks: Blocks,
    of: Ranges,
    columns: int,
    span: int,
    sizes: dict,
    lists: Tensor | None = None,
    arrived: Tensor | None = None,
) -> None:
    """Run `scores_kernel` for blocks of rows."""
    if not of.rows or not columns:
        return
    weights = problem.w
    if problem.q_scale is not None:
        weights = weights * problem.q_scale
    with backends.current(problem.q.device):
        run(
            scan_kernels.scores_kernel,
            (blocks.count, -(-columns // span)),
            (
                problem.q,
                weights.contiguous(),
                problem.k,
                problem.k_scale,
                out,
                out.stride(0),
                blocks.table,
                of.rows,
                blocks.per,
                blocks.parts,
                problem.keys,
                of.lo,
                of.hi,
                of.step,
                span,
                lists,
                0 if lists is None else lists.stride(0),
                columns,
                of.table,
                arrived,
            ),
            {
                **sizes,
                "SCALED": problem.k_scale is not None,
                "LISTED": lists is not None,
                "BLOCKED": blocks.table is not None,
                "TABLED": of.table is not None,
                "COUNTED": arrived is not None,
                "FIELDS": FIELDS,
            },
            warps_of(sizes),
        )


def proxies(problem: Problem, groups: Groups, kind: str) -> Problem:
    """One query a group (see `reference_groups.proxies`), which may select its first member's keys."""
    lo, hi = torch.from_numpy(groups.lo), torch.from_numpy(groups.hi)
    if kind != "mean":
        rows = groups.start if kind == "first" else groups.stop - 1
        return replace(problem.rows(torch.from_numpy(rows)), lo=lo, hi=hi)
    (_, heads, width), device = problem.q.shape, problem.q.device
    q = torch.empty(len(groups), heads, width, dtype=problem.q.dtype, device=device)
    w = torch.empty(len(groups), heads, dtype=torch.float32, device=device)
    scale = torch.empty_like(w)
    per = bounds.even_count(groups.start, groups.stop)
    table = None
    if per == 0:
        counts = groups.stop - groups.start
        table = upload(torch.from_numpy(np.stack([groups.start, counts], 1).astype(np.int32)), device)
    with backends.current(device):
        run(
            scan_kernels.proxy_kernel,
            (len(groups), -(-heads // PROXY_HEADS)),
            (problem.q, problem.w.contiguous(), problem.q_scale, q, w, scale, table, len(problem), per),
            {
                "H": heads,
                "D": width,
                "HEADS": PROXY_HEADS,
                "DEPTH": power_of_two(width, 16),
                "SCALED": problem.q_scale is not None,
                "TABLE": table is not None,
            },
            PROXY_WARPS,
            fused=False,  # a sum that is one bit off may round to another float8 number
        )
    is_8_bit = problem.q.dtype == torch.float8_e4m3fn
    return replace(problem, q=q, w=w, q_scale=scale if is_8_bit else None, lo=lo, hi=hi)


def reuse(problem: Problem, groups: Groups, kind: str) -> Tensor:
    """Every member takes its proxy's topk: [T, topk] int32."""
    result = result_of(problem)
    for part, some, rows in over_groups(problem, groups, 0):
        proxy, per = proxies(part, some, kind), bounds.even_count(some.start, some.stop)
        of = ranges_of(proxy, part.topk)
        if 0 < per <= MOST_REPEATED:
            best(proxy, of, result[rows], repeat=per)
            continue
        chosen = result_of(proxy)
        best(proxy, of, chosen)
        result[rows] = repeated(chosen, some.stop - some.start)
    return result


def refine(problem: Problem, groups: Groups, kind: str, budget: int, window: int, phase: str) -> Tensor:
    """Every member takes its own topk of its proxy's candidates, in which the window always is: [T, topk] int32."""
    window, budget = min(window, problem.keys), min(budget, 2 * problem.keys)  # more is every key
    longest = int((groups.hi_last - np.maximum(groups.lo, groups.hi - window)).max())
    # In prefill the window counts inside the budget, and the proxy ranks what is outside.
    width = min(max(budget, longest) if phase == "prefill" else budget + longest, problem.keys)
    result = result_of(problem)
    for part, some, rows in over_groups(problem, groups, 4 * width):
        starts = np.maximum(some.lo, some.hi - window)
        if phase == "prefill":
            hi, room = starts, np.maximum(budget - (some.hi_last - starts), 0)
        else:
            hi, room = some.hi, np.full(len(some), budget)
        of = bounds.ranges(some.lo, hi, room, problem.q.device, window=starts, last=some.hi_last)
        lists = torch.empty(len(some), width, dtype=torch.int32, device=problem.q.device)
        best(proxies(part, some, kind), of, lists, appended=True)
        rescored(part, lists, some.start, some.stop, result[rows])
    return result


def over_groups(problem: Problem, groups: Groups, list_bytes: int) -> Iterator[tuple[Problem, Groups, slice]]:
    """(rows as a problem, groups, their rows) in chunks whose proxies and lists take a share of max_bytes."""
    proxy_bytes = problem.q[0].nbytes if len(problem) else 1
    step = max(1, int(problem.max_bytes // (GROUPS_SHARE * (proxy_bytes + list_bytes))))
    for first in range(0, len(groups), step):
        some = groups if step >= len(groups) else groups.part(slice(first, first + step))
        rows = slice(int(groups.start[first]), int(groups.stop[min(first + step, len(groups)) - 1]))
        yield problem if rows == slice(0, len(problem)) else problem.rows(rows), some, rows


def rescored_each(problem: Problem, lists: Tensor) -> Tensor:
    """Every row's topk of its own list of positions [T, c] int32, ascending, -1 anywhere: [T, topk] int32."""
    rows, result = np.arange(len(problem)), result_of(problem)
    rescored(problem, lists, rows, rows + 1, result)
    return result


def block_sums(problem: Problem, start: int, block: int) -> tuple[Tensor, Tensor | None]:
    """The sums of the full blocks of keys from `start` on, as keys: [n, D] in the dtype of k, and their scales [n]."""
    width, device = problem.q.shape[2], problem.q.device
    n = (problem.keys - start) // block
    sums = torch.empty(n, width, dtype=problem.k.dtype, device=device)
    scale = torch.empty(n, dtype=torch.float32, device=device)
    k_scale = None if problem.k_scale is None else problem.k_scale[start:]
    if n:
        constants = {"D": width, "DEPTH": power_of_two(width, 16), "KEYS": min(power_of_two(block), BLOCK_KEYS)}
        constants["SCALED"] = k_scale is not None
        with backends.current(device):
            arguments = (problem.k[start:], k_scale, sums, scale, block)
            run(scan_kernels.block_sums_kernel, (n,), arguments, constants, PROXY_WARPS, fused=False)
    return sums, scale if problem.k.dtype == torch.float8_e4m3fn else None
