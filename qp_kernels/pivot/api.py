"""Dense selection and PIVOT. Knows arguments, groups and the reference; no other selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from . import checks
from .checks import Problem, on_device, together
from .groups import PROXIES, cut
from .reference import in_float32

MODES, PHASES = ("refine", "reuse"), ("prefill", "decode")
MAX_BYTES = 512 << 20


@in_float32
def dense_topk(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    topk: int,
    *,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """Every query's own top-k keys by the lightning indexer's score.

        I[t, s] = k_scale[s] * sum over j of w[t, j] * q_scale[t, j] * relu(q[t, j] . k[s])

    Args:
        q: [T, H, D]; k: [N, D]; one dtype of float32, bfloat16, float16, float8_e4m3fn; H >= 1, 1 <= D <= 256, any
            strides.
        w: [T, H], any float, with softmax and head scales folded in.
        topk: Keys selected, >= 1.
        q_scale: [T, H], k_scale: [N]: positive; None is 1.
        lo, hi: [T] integers: row t may select lo[t] <= s < hi[t], clamped into [0, N]. By default the T <= N queries
            are the last positions of the keys. From a CUDA device they are copied to the host, which waits for them.
        backend: "auto" is Triton on CUDA tensors and torch elsewhere; "triton" or "torch".
        max_bytes: About how much memory scores may take at once; what is gathered of them may take a quarter more.
    Returns:
        [T, topk] int32: positions ascending, unique, with a tail of -1 where a row has fewer keys.
    Raises:
        TypeError: a type or dtype that is not listed above. ValueError: a shape, device or number out of range, a scale
            of a CPU tensor that is not positive. RuntimeError: the back-end cannot run here.

    Ties: lowest position. NaN is never selected. Scores are float32 sums of exact products: unique on integer inputs.
    Source: DeepSeek-V3.2.

    >>> q, w = torch.ones(2, 1, 1), torch.ones(2, 1)
    >>> dense_topk(q, torch.tensor([[1.0], [3.0], [2.0]]), w, 2)
    tensor([[0, 1],
            [1, 2]], dtype=torch.int32)
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": backend, "max_bytes": max_bytes}
    problem = checks.problem(q, k, w, topk, **options)
    return engine_of(problem).dense(problem)


@in_float32
def pivot_topk(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    topk: int,
    *,
    group: int = 4,
    mode: str = "refine",
    budget: int | None = None,
    window: int | None = None,
    proxy: str = "mean",
    guard: bool | int = True,
    phase: str = "prefill",
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    backend: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """PIVOT: one scan by a group's proxy instead of one a query.

    Args:
        q, k, w, topk, q_scale, k_scale, lo, hi, backend, max_bytes: As for `dense_topk`.
        group: g, rows that share a proxy, >= 1. A group never crosses a row whose lo changes or whose hi does not rise
            by 1. g = 1 is the dense path.
        mode: "reuse": every member takes the proxy's top-k. "refine": every member re-scores the proxy's candidates
            with its own q and w, and takes its own top-k of them.
        budget: c, candidates of Refine; None is max(2 * topk, topk + window + g - 1).
        window: W >= g; None is g. Refine's candidates hold every key from W before the first member's end to the last
            member's: in prefill among the c, in decode besides the proxy's best c.
        proxy: "mean" (the sum of the members' q and w), "first" or "last".
        guard: A group whose first member has at most this many keys takes the dense path. True is c (Refine) or topk
            (Reuse); False only groups of one, and those whose first member has no key, which always do.
        phase: "prefill" or "decode" (a group are the tokens of a multi-token prediction).
    Returns, Ties:
        As for `dense_topk`.
    Raises:
        As `dense_topk`; ValueError for Refine in prefill with a budget below topk + window + g - 1, for window < g, and
            for a word that is not listed above.

    A NaN in a query poisons its own group only. Source: arXiv 2607.24593.

    >>> q, k, w = torch.ones(4, 1, 1), torch.tensor([[5.0], [1.0], [4.0], [2.0], [3.0]]), torch.ones(4, 1)
    >>> pivot_topk(q, k, w, 2, group=2, mode="reuse", guard=False)
    tensor([[0, 1],
            [0, 1],
            [0, 2],
            [0, 2]], dtype=torch.int32)
    """
    options = {"q_scale": q_scale, "k_scale": k_scale, "lo": lo, "hi": hi, "backend": backend, "max_bytes": max_bytes}
    problem = checks.problem(q, k, w, topk, **options)
    for name, value, known in (("mode", mode, MODES), ("proxy", proxy, PROXIES), ("phase", phase, PHASES)):
        checks.one_of(name, value, known)
    size = checks.whole("group", group, 1)
    window = size if window is None else checks.whole("window", window, 1)
    if window < size:
        raise ValueError(f"window must be >= group, {size}, got {window}")
    least = topk + window + size - 1
    budget = max(2 * topk, least) if budget is None else checks.whole("budget", budget, 1)
    if mode == "refine" and phase == "prefill" and budget < least:
        raise ValueError(f"budget must be >= topk + window + group - 1, {least}, got {budget}")
    if not isinstance(guard, bool):
        guard = checks.whole("guard", guard, 0)
    shortest = (budget if mode == "refine" else topk) if guard is True else int(guard)
    groups = cut(problem.lo, problem.hi, size)
    alone = groups.are_dense(shortest)
    engine = engine_of(problem)
    parts = []
    if alone.any():
        parts.append((groups.rows(alone), engine.dense))
    if not alone.all():
        shared = groups.those(~alone)
        extra = (shared, proxy) if mode == "reuse" else (shared, proxy, budget, window, phase)
        parts.append((groups.rows(~alone), lambda part: getattr(engine, mode)(part, *extra)))
    return assembled(problem, parts)


def assembled(problem: Problem, parts: list[tuple[np.ndarray, Callable[[Problem], Tensor]]]) -> Tensor:
    """[T, topk] int32 from what selects for which rows, [T] bool each."""
    if len(parts) == 1:
        return parts[0][1](problem)
    result = torch.empty(len(problem), problem.topk, dtype=torch.int32, device=problem.q.device)
    for mask, select in parts:
        rows = together(torch.from_numpy(np.flatnonzero(mask)))
        result[on_device(rows, result)] = select(problem.rows(rows))
    return result


def engine_of(problem: Problem):
    """The module that selects: Triton's launches, or plain torch; the same functions."""
    if problem.backend == "triton":
        from . import launch

        return launch
    from . import reference_groups

    return reference_groups
