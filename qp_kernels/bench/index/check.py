"""Right or wrong, before anything is timed: ours on all rows, compared with the reference on some of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .cases import Case
from .inputs import Inputs, draw
from .providers import Run, inside, scores_of, selected

# Rows of each of three stretches: the first, middle and last ones.
STRETCH = 8


def stretches(rows: int, group: int) -> list[slice]:
    """Rows that are compared, in stretches that start at a group and end with one; rows are a multiple of group.

    >>> stretches(1024, 4)
    [slice(0, 8, None), slice(508, 516, None), slice(1016, 1024, None)]
    """
    size = max(group, STRETCH // group * group)
    if rows <= 3 * size:
        return [slice(0, rows)]
    starts = (0, (rows - size) // 2 // group * group, rows - size)
    return [slice(start, start + size) for start in starts]


def wrong_selections(case: Case, run: Run, device: torch.device) -> tuple[int, int]:
    """(rows that differ from the reference, rows compared) on whole numbers, where every selection is unique."""
    inputs = draw(case, device, whole=True)
    found = run(inputs, "auto")
    return _wrong(found, lambda chosen: run(inputs.rows(chosen), "torch"), case)


def wrong_top(case: Case, select: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[int, int]:
    """The same for top-k of a matrix, on the very scores that are timed; the order of the positions is free."""
    found = select(scores).sort(dim=1).values.int()
    return _wrong(found, lambda chosen: selected(scores[chosen], case.topk), case)


def wrong_scans(case: Case, scan: Callable[[Inputs], Tensor], device: torch.device) -> tuple[int, int]:
    """The same for scores, within what a row may select."""
    inputs = draw(case, device, whole=True)
    found = scan(inputs)

    def within(chosen: slice, scores: Tensor) -> Tensor:
        return scores.masked_fill(~inside(inputs.rows(chosen)), 0.0)

    pairs = [(within(s, found[s]), within(s, scores_of(inputs.rows(s)))) for s in stretches(len(found), case.group)]
    return sum(int((a != b).any(1).sum()) for a, b in pairs), sum(len(a) for a, _ in pairs)


def _wrong(found: Tensor, wanted: Callable[[slice], Tensor], case: Case) -> tuple[int, int]:
    if found.shape != (case.batch * case.T, case.topk):
        raise ValueError(f"{case.name}: a selection must be [{case.batch * case.T}, {case.topk}], got {found.shape}")
    chosen = stretches(len(found), case.group)
    wrong = sum(int((found[one] != wanted(one)).any(1).sum()) for one in chosen)
    return wrong, sum(one.stop - one.start for one in chosen)
