"""Which keys the rows of a launch may select, as the kernels take it: a few numbers, or a table. Nothing runs here.

Rows whose bounds rise evenly, as those of one sequence do, need no table: no copy to the device, so that such a call
can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..machine import upload

# Of a table: lo, where column 0 lies; lo and hi of the row; its limit; its window [from, end).
FIELDS = 6


@dataclass(frozen=True)
class Ranges:
    """Row r may select positions lo <= s < hi + step * r, its best `limit`; [window, last) + step * r are appended.

    Attributes:
        rows: Rows. columns: Most keys that a row may select. limit: The largest.
        table: [rows, FIELDS] int32 on the device, which stands for the numbers; None where they do.
        los, his: [rows] int64 on the host.
    """

    rows: int
    columns: int
    limit: int
    lo: int
    hi: int
    step: int
    window: int
    last: int
    table: Tensor | None
    los: np.ndarray
    his: np.ndarray

    def part(self, rows: slice) -> Ranges:
        """The ranges of some of the rows."""
        moved = {name: getattr(self, name) + self.step * rows.start for name in ("hi", "window", "last")}
        table = None if self.table is None else self.table[rows]
        los, his = self.los[rows], self.his[rows]
        columns = max(0, int((his - los).max(initial=0)))
        return replace(self, rows=len(his), columns=columns, table=table, los=los, his=his, **moved)


def ranges(lo, hi, limit, device: torch.device, window=None, last=None, base=None) -> Ranges:
    """Ranges of rows from arrays [rows] on the host, or numbers that hold for all.

    Column 0 of a row is its lo, or position `base`.
    """
    hi = np.asarray(hi, dtype=np.int64)
    rows = len(hi)
    lo = np.broadcast_to(np.asarray(lo, dtype=np.int64), rows)
    bases = lo if base is None else np.full(rows, base, np.int64)
    columns = max(0, int((hi - bases).max(initial=0)))
    limit = min(limit, columns) if isinstance(limit, int) else np.minimum(limit, columns)  # no row has more
    limit = np.broadcast_to(np.asarray(limit, np.int64), rows)
    most = int(limit.max(initial=0))
    if rows == 0:
        return Ranges(0, 0, most, 0, 0, 0, 0, 0, None, lo, hi)
    step = int(hi[1] - hi[0]) if rows > 1 else 0
    rising = [(hi, step), (lo, 0), (limit, 0), *((ends, step) for ends in (window, last) if ends is not None)]
    even = (bases == lo).all() and step >= 0 and all(_rises(*pair) for pair in rising)
    window, last = (np.zeros(rows, np.int64) if ends is None else ends for ends in (window, last))
    table = None
    if not even:
        fields = np.stack([bases, lo, hi, limit, window, last], axis=1).astype(np.int32)
        table = upload(torch.from_numpy(fields), device)
    numbers = (int(values[0]) for values in (lo, hi))
    return Ranges(rows, columns, most, *numbers, step, int(window[0]), int(last[0]), table, lo, hi)


def _rises(values: np.ndarray, step: int) -> bool:
    return bool((np.diff(values) == step).all())


@dataclass(frozen=True)
class Blocks:
    """Rows that a program scores together: `count` blocks of at most `size` rows.

    Attributes:
        per, parts: Block b is part b % parts of `per` rows from b // parts * per on.
        table: [count, 5] int32 (first row, rows, list, lo, end) on the device, or None where these numbers do.
    """

    count: int
    size: int
    per: int
    parts: int
    table: Tensor | None


def scan_blocks(of: Ranges, size: int, device: torch.device) -> Blocks:
    """Blocks of neighbouring rows that share lo."""
    if of.table is None:
        return Blocks(-(-of.rows // size), size, size, 1, None)
    starts, stops = _sharing(of)
    return _cut(starts, stops, np.arange(len(starts)), size, device, of)


def most_sharing(of: Ranges) -> int:
    """The most neighbouring rows that share lo."""
    if of.table is None:
        return of.rows
    starts, stops = _sharing(of)
    return int((stops - starts).max())


def _sharing(of: Ranges) -> tuple[np.ndarray, np.ndarray]:
    """Rows [starts[i], stops[i]) share lo, and the next one has another."""
    starts = np.flatnonzero(np.concatenate([[True], np.diff(of.los) != 0]))
    return starts, np.append(starts[1:], of.rows)


def even_count(starts: np.ndarray, stops: np.ndarray) -> int:
    """How many rows each of [starts[i], stops[i]) has, where all have as many but for a smaller last one, and they
    follow each other; else 0."""
    counts = stops - starts
    per = int(counts[0])
    is_even = (counts[:-1] == per).all() and counts[-1] <= per and (np.diff(starts) == per).all()
    return per if is_even else 0


def list_blocks(starts: np.ndarray, stops: np.ndarray, size: int, device: torch.device) -> Blocks:
    """Blocks of rows that share a list: rows [starts[i], stops[i]) have list i."""
    per = even_count(starts, stops)
    if per:
        parts = -(-per // size)
        return Blocks(len(starts) * parts, size, per, parts, None)
    return _cut(starts, stops, np.arange(len(starts)), size, device, None)


def _cut(starts, stops, lists, size: int, device: torch.device, of: Ranges | None) -> Blocks:
    parts = -(-(stops - starts) // size)
    owner = np.repeat(np.arange(len(starts)), parts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = starts[owner] + part * size
    count = np.minimum(stops[owner] - first, size)
    fields = np.zeros((len(owner), 5), np.int32)
    fields[:, 0], fields[:, 1], fields[:, 2] = first, count, lists[owner]
    if of is not None:
        fields[:, 3] = of.los[first]
        fields[:, 4] = np.maximum.reduceat(of.his, first)
    return Blocks(len(owner), size, size, 1, upload(torch.from_numpy(fields), device))
