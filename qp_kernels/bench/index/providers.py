"""What is timed for each kind of case, and what it is compared with: functions of inputs and a back-end."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from ...pivot import dense_topk, hisa_topk, misa_topk, pivot_topk
from ...pivot import reference as plain
from .cases import Case
from .inputs import Inputs
from .work import hisa, misa

Run = Callable[[Inputs, str], Tensor]


class Missing(RuntimeError):
    """This version, or this machine, has no such kernel."""


def selections(case: Case, guard: int | None) -> dict[str, Run]:
    """Selections of a case by name; "refine_measured" only with a measured guard.

    Each takes inputs and "auto", "triton" or "torch", and returns [rows, topk].
    """
    pivot = {"group": case.group, "phase": "decode" if case.kind == "decode" else "prefill"}
    refine = {**pivot, "budget": case.budget}
    found = {
        "dense": _run(dense_topk, case),
        "reuse": _run(pivot_topk, case, mode="reuse", **pivot),
        "refine": _run(pivot_topk, case, mode="refine", **refine),
    }
    if case.kind == "prefill":
        found["hisa"] = _run(hisa_topk, case, **hisa(case))
        found["misa"] = _run(misa_topk, case, **misa(case))
        found["misa_rerank"] = _run(misa_topk, case, rerank=case.budget, **misa(case))
    if case.kind == "chunk":
        del found["reuse"]
        if guard is not None:
            found["refine_measured"] = _run(pivot_topk, case, mode="refine", guard=guard, **refine)
    return found


def _run(function: Callable, case: Case, **options) -> Run:
    def run(inputs: Inputs, backend: str) -> Tensor:
        return function(inputs.q, inputs.k, inputs.w, case.topk, **options, **inputs.options, backend=backend)

    return run


def kernel(module: str, name: str) -> Callable:
    """A function of the Triton back-end of `qp_kernels.pivot`.

    Raises:
        Missing: this version, or this machine, has none.
    """
    try:
        return getattr(importlib.import_module(f"qp_kernels.pivot.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise Missing(f"qp_kernels.pivot.{module}.{name} is not there: {error}") from error


def selectors(case: Case, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """Top-k of a matrix of scores [T, L], as [T, topk] positions in any order; ours where Triton runs."""
    found = {"torch_topk": lambda scores: torch.topk(scores, case.topk, dim=1).indices}
    if device.type == "cuda":
        ours = kernel("selection", "topk_of_scores")
        found = {"qp_kernels": lambda scores: ours(scores, case.topk), **found}
    return found


def selected(scores: Tensor, topk: int) -> Tensor:
    """The reference: the first topk of each row by score, then position; ascending positions, [T, topk] int32."""
    positions = torch.arange(scores.shape[1], device=scores.device)
    return plain.ascending(plain.ranked(scores, positions, torch.ones_like(scores, dtype=torch.bool), topk), topk)


def scan() -> Callable[[Inputs], Tensor]:
    """The scan alone: scores [T, L] float32, of which row t is defined for lo[t] <= s < hi[t].

    Raises:
        Missing: as `kernel`.
    """
    ours = kernel("launch", "scan")
    return lambda inputs: ours(inputs.q, inputs.k, inputs.w, **inputs.options)


def scores_of(inputs: Inputs) -> Tensor:
    """The reference's scores, [T, L] float32."""
    return plain.in_float32(plain.score)(inputs.q, inputs.k, inputs.w, inputs.q_scale, inputs.k_scale)


def scores_inside(inputs: Inputs) -> Tensor:
    """The same, with -inf where a row may not select."""
    return scores_of(inputs).masked_fill(~inside(inputs), -torch.inf)


def inside(inputs: Inputs) -> Tensor:
    """[T, L] bool: what a row may select."""
    device, place = inputs.q.device, torch.arange(len(inputs.k), device=inputs.q.device)
    lo, hi = (ends.to(device)[:, None] for ends in inputs.bounds)
    return (place >= lo) & (place < hi)
