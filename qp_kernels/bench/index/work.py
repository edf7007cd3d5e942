"""What a selection has to do at least: operations of its products, bytes of keys, and of scores that go to memory.

Knows the definitions of `qp_kernels.pivot`, and no kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .cases import Case

SCORE_BYTES = 4


class Work(NamedTuple):
    """operations: of products, two for each multiplication; bytes: inputs once in, the result once out;
    score_bytes: of the float32 scores in between, which a selection may write and read again."""

    operations: int
    bytes: int
    score_bytes: int


def hisa(case: Case) -> dict[str, int]:
    """Blocks of HISA: 128 keys each, twice the budget in all; smaller ones for a small topk."""
    block = 128 if case.topk >= 128 else 8
    return {"block": block, "blocks": max(2, 2 * case.budget // block)}


def misa(case: Case) -> dict[str, int]:
    """Heads and blocks of MISA: an eighth of the heads; 1,024 keys a block of the router."""
    return {"heads": max(1, case.heads // 8), "block": 1024 if case.topk >= 128 else 32}


def scanned(case: Case, rows: int = 1) -> int:
    """Keys that one row in `rows` scans, over all rows: each the keys of its group's first member."""
    first = [case.L - case.T + 1 + t for t in range(0, case.T, rows)]
    return case.batch * sum(first)


def work(case: Case, provider: str, guard: int | None = None) -> Work:
    """The least a provider has to do.

    Args:
        guard: Groups whose first member has at most so many keys are dense; None is the default guard.

    >>> work(Case("prefill", 4, 8, heads=1, dim=1, topk=1), "dense").operations  # 5 + 6 + 7 + 8 products
    52
    """
    element = {"float32": 4, "float8_e4m3fn": 1}.get(case.dtype, 2)
    every, rows, product = scanned(case), case.batch * case.T, 2 * case.dim
    if case.kind == "select":
        matrix = rows * case.L * SCORE_BYTES
        return Work(0, matrix, 0)
    moved = element * case.dim * (case.batch * case.L + rows * case.heads) + 4 * rows * (case.heads + case.topk)
    full = product * case.heads
    if provider in ("reuse", "refine", "refine_measured"):
        return _grouped(case, provider, guard, full, moved)
    if provider == "hisa":
        some = hisa(case)
        keys = every // some["block"] + rows * min(some["block"] * some["blocks"], case.L)
        return Work(full * keys, moved, SCORE_BYTES * keys)
    if provider.startswith("misa"):
        some = misa(case)
        products = some["heads"] * every + case.heads * (every // some["block"])
        products += case.heads * rows * min(case.budget, case.L) * (provider == "misa_rerank")
        return Work(product * products, moved, SCORE_BYTES * every)
    if case.kind == "scan":
        return Work(full * every, moved + SCORE_BYTES * every, 0)
    return Work(full * every, moved, SCORE_BYTES * every)


def _grouped(case: Case, provider: str, guard: int | None, full: int, moved: int) -> Work:
    """Reuse and Refine: dense groups by all members, others by their proxy, and for Refine the candidates."""
    shortest = guard if guard is not None else case.budget if provider != "reuse" else case.topk
    scans = candidates = 0
    for t in range(0, case.T, case.group):
        first = case.L - case.T + 1 + t
        if first <= shortest:
            scans += sum(first + i for i in range(case.group))
        else:
            scans += first
            candidates += case.group * min(case.budget, first) * (provider != "reuse")
    scans, candidates = case.batch * scans, case.batch * candidates
    return Work(full * (scans + candidates), moved, SCORE_BYTES * scans)


def flat(case: Case) -> dict[str, Any]:
    """The fields of a case for a record."""
    return {"case": case.name, **{name: value for name, value in case._asdict().items() if name != "quick"}}
