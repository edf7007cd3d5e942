"""What is measured of index selection: kinds, shapes and types, what is aimed at on an H200, and the paper's curve."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...pivot.api import MAX_BYTES

KINDS = ("select", "scan", "prefill", "decode", "chunk")
SCORES = ("gauss", "long_tail")
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn")
# Speed of PIVOT-Refine over dense selection in prefill by L, quoted from the paper (arXiv 2607.24593; an H20).
PAPER_REFINE = {8_192: 0.55, 16_384: 0.93, 32_768: 1.70, 65_536: 2.19, 131_072: 2.86, 262_144: 3.87}


class Case(NamedTuple):
    """One set of inputs, on which everybody is measured.

    Attributes:
        kind: "select" (top-k of a matrix of scores), "scan" (scores alone), "prefill" (all selections, the last T
            positions of L), "decode" (a group of T tokens a sequence) or "chunk" (dense and Refine, as "prefill").
        T: Queries, of each sequence. L: Keys, of each sequence.
        dtype: Of q and k, or of the scores.
        batch: Sequences, packed one after the other.
        scores: Of "select": "gauss", or "long_tail" with many zeros; of scores that are given, their name.
        quick: Whether --quick measures it.
        heads, dim, topk, budget, group: H, D, k, c and g.
    """

    kind: str
    T: int
    L: int
    dtype: str = "bfloat16"
    batch: int = 1
    scores: str | None = None
    quick: bool = True
    heads: int = 64
    dim: int = 128
    topk: int = 2048
    budget: int = 4096
    group: int = 4

    @property
    def name(self) -> str:
        """A stable id.

        >>> Case("prefill", 1024, 131_072).name
        'index-prefill-b1-t1024-l131072-bfloat16'
        """
        kind = self.kind if self.scores is None else f"{self.kind}-{self.scores}"
        return f"index-{kind}-b{self.batch}-t{self.T}-l{self.L}-{self.dtype}"


class Target(NamedTuple):
    """What is aimed at: at most so many microseconds, at least so many times as fast as dense selection, at least so
    many TFLOP/s, at most so many bytes beyond inputs and result."""

    us: float | None = None
    over_dense: float | None = None
    tflops: float | None = None
    peak_bytes: int | None = None


LONG = 131_072
FP8 = "float8_e4m3fn"
CASES: tuple[Case, ...] = (
    *(Case("select", 1024, LONG, "float32", scores=scores) for scores in SCORES),
    Case("scan", 1024, LONG),
    Case("scan", 1024, LONG, FP8, quick=False),
    Case("prefill", 1024, LONG),
    Case("prefill", 1024, LONG, FP8, quick=False),
    Case("decode", 4, LONG),
    Case("decode", 4, LONG, batch=16, quick=False),
    *(Case("chunk", 4096, length, quick=length in (8_192, 32_768)) for length in PAPER_REFINE),
)
_SMALL = {"heads": 4, "dim": 16, "topk": 32, "budget": 64}
# What a machine without a GPU can measure within seconds.
SMALL_CASES: tuple[Case, ...] = (
    *(Case("select", 16, 4096, "float32", scores=scores, **_SMALL) for scores in SCORES),
    Case("prefill", 16, 1024, "float32", **_SMALL),
    Case("decode", 4, 1024, "float32", batch=2, **_SMALL),
    Case("chunk", 64, 1024, "float32", **_SMALL),
)

_PREFILL = {"bfloat16": (3200, 900, 1200), FP8: (2200, 650, 900)}
_DECODE = (36, 22, 32)
_SCAN = {"bfloat16": 750, FP8: 1200}


def target(case: Case, provider: str) -> Target:
    """What is aimed at on an H200; empty where nothing is.

    >>> target(CASES[4], "refine").us
    1200
    """
    if case not in CASES:
        return Target()
    selections = ("dense", "reuse", "refine")
    if case.kind == "select" and provider == "qp_kernels":
        return Target(us=280)
    if case.kind == "scan" and provider == "qp_kernels":
        return Target(tflops=_SCAN[case.dtype])
    if case.kind == "prefill" and provider in selections:
        return Target(us=dict(zip(selections, _PREFILL[case.dtype]))[provider])
    if case.kind == "decode" and provider in selections:
        if case.batch == 1:
            return Target(us=dict(zip(selections, _DECODE))[provider])
        return Target(over_dense={"reuse": 1.4, "refine": 1.2}.get(provider))
    if case.kind == "chunk":
        peak = MAX_BYTES + (256 << 20) if case.L == max(PAPER_REFINE) else None
        return Target(over_dense=1.0 if provider == "refine_measured" else None, peak_bytes=peak)
    return Target()


def modes(case: Case, device: torch.device | str) -> tuple[str, ...]:
    """How a case is timed, the best first: a decode step by graph, where a graph can hold it."""
    if torch.device(device).type != "cuda":
        return ("wall",)
    return ("graph", "gpu") if case.kind == "decode" else ("gpu",)


def check(case: Case) -> Case:
    """The case, if it can be measured. Raises ValueError."""
    for name, value, known in (("kind", case.kind, KINDS), ("dtype", case.dtype, DTYPES)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if (case.kind == "select") != (case.scores in SCORES):
        raise ValueError(f"scores must be one of {', '.join(SCORES)} for a selection alone, got {case.scores!r}")
    if case.T % case.group or not case.T <= case.L:
        raise ValueError(f"T must be a multiple of g = {case.group} and at most L, got {case.T} and {case.L}")
    return case
