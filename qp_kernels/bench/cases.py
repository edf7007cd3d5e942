"""What is measured: shapes, limits and kinds of rows, with the times that the project wants to reach on an H200."""

from __future__ import annotations

from typing import NamedTuple

import torch

OPERATIONS = ("mask", "select", "sample")
KINDS = ("gauss", "live", "miss", "lie")
DTYPES = ("float32", "float16", "bfloat16")
# Above the first, a call is longer than its launches by far; up to the second, what the host spends matters as well.
LARGEST_GRAPH, LARGEST_WALL = 256, 64
# 16-bit rows shall take at most this part of the time of float32 rows, in the same run.
HALF_WIDTH = 0.6


class Case(NamedTuple):
    """One measured call.

    Attributes:
        rows: "gauss" (normal, sigma 2.5), "live" (a model's), "miss" (uniform: no entry reaches the Gaussian
            threshold) or "lie" (the part that is sampled is unlike the rest: no threshold from it can be right).
        batch, vocab: B and V.
        k, p: Numbers, None is off.
        dtype: "float32", "float16" or "bfloat16".
        operation: "mask" (`top_k_top_p`, out of place), "select" (without a mask) or "sample".
    """

    rows: str
    batch: int
    vocab: int
    k: int | None
    p: float | None
    dtype: str = "float32"
    operation: str = "mask"

    @property
    def name(self) -> str:
        """A stable id.

        >>> Case("gauss", 1024, 128_256, 50, 0.9).name
        'mask-gauss-b1024-v128256-k50-p0.9-float32'
        """
        limits = {"k": self.k, "p": self.p}
        cuts = [f"{name}{value:g}" for name, value in limits.items() if value is not None]
        return "-".join([self.operation, self.rows, f"b{self.batch}", f"v{self.vocab}", *cuts, self.dtype])

    @property
    def floor(self) -> str:
        """What no call can be faster than: a mask reads and writes the matrix, the others read it."""
        return "floor_read_write" if self.operation == "mask" else "floor_read"

    @property
    def bytes_moved(self) -> int:
        """Bytes that must move at least: the matrix once in, and once out where the result is one."""
        matrix = self.batch * self.vocab * getattr(torch, self.dtype).itemsize
        return matrix * (2 if self.operation == "mask" else 1)


class Target(NamedTuple):
    """The largest time aimed at: a multiple of the floor, or microseconds."""

    times_floor: float | None = None
    us: float | None = None


SMALL_V, LARGE_V = 128_256, 262_144
_EAGER = Target(us=60)
_TABLE: tuple[tuple[Case, dict[str, Target]], ...] = (
    (Case("gauss", 1024, SMALL_V, 50, 0.9), {"gpu": Target(1.25)}),
    (Case("live", 1024, SMALL_V, 50, 0.9), {"gpu": Target(1.25)}),
    (Case("gauss", 1024, LARGE_V, 50, 0.9), {}),
    (Case("live", 1024, LARGE_V, 50, 0.9), {"gpu": Target(1.2)}),
    (Case("gauss", 1024, SMALL_V, 50, None), {"gpu": Target(1.25)}),
    (Case("live", 1024, SMALL_V, 50, None), {"gpu": Target(1.25)}),
    (Case("live", 1024, SMALL_V, None, 0.9), {"gpu": Target(1.6)}),
    (Case("gauss", 1024, SMALL_V, None, 0.9), {"gpu": Target(2.2)}),
    (Case("miss", 1024, SMALL_V, 50, None), {"gpu": Target(2.5)}),
    (Case("lie", 1024, SMALL_V, 50, None), {}),
    (Case("gauss", 1024, SMALL_V, 1000, None), {}),
    (Case("gauss", 132, SMALL_V, 50, 0.9), {"graph": Target(1.6)}),
    (Case("gauss", 256, SMALL_V, 50, 0.9), {"graph": Target(1.6)}),
    (Case("gauss", 1, SMALL_V, 50, 0.9), {"graph": Target(us=14), "wall": _EAGER}),
    (Case("gauss", 16, SMALL_V, 50, 0.9), {"graph": Target(us=16), "wall": _EAGER}),
    (Case("gauss", 64, SMALL_V, 50, 0.9), {"graph": Target(us=28), "wall": _EAGER}),
    (Case("gauss", 1024, SMALL_V, 50, 0.9, operation="select"), {"gpu": Target(1.5)}),
    (Case("gauss", 1024, SMALL_V, 50, 0.9, operation="sample"), {}),
    (Case("gauss", 1024, SMALL_V, 50, 0.9, dtype="bfloat16"), {}),
    # For lines along V, k and p.
    (Case("gauss", 1024, 32_768, 50, 0.9), {}),
    (Case("gauss", 1024, SMALL_V, 10, None), {}),
    (Case("gauss", 1024, SMALL_V, 200, None), {}),
    (Case("gauss", 1024, SMALL_V, None, 0.5), {}),
)
CASES: tuple[Case, ...] = tuple(case for case, _ in _TABLE)
# What a machine without a GPU can measure within seconds.
SMALL_CASES: tuple[Case, ...] = (
    Case("gauss", 4, 8192, 50, 0.9),
    Case("live", 4, 8192, 50, 0.9),
    Case("gauss", 4, 8192, 50, None),
    Case("gauss", 4, 8192, None, 0.9),
    Case("miss", 4, 8192, 50, None),
    Case("gauss", 4, 8192, 50, 0.9, operation="select"),
    Case("gauss", 4, 8192, 50, 0.9, operation="sample"),
    Case("gauss", 4, 8192, 50, 0.9, dtype="bfloat16"),
)


def target(case: Case, mode: str) -> Target:
    """What is aimed at on an H200 for a case in a mode; empty where nothing is.

    >>> target(CASES[0], "gpu").times_floor
    1.25
    """
    return next((targets.get(mode, Target()) for known, targets in _TABLE if known == case), Target())


def modes(case: Case, device: torch.device | str) -> tuple[str, ...]:
    """How a case is timed: short calls by graph, since an eager launch takes longer than they do."""
    if torch.device(device).type != "cuda":
        return ("wall",)
    if case.batch > LARGEST_GRAPH:
        return ("gpu",)
    return ("graph", "wall") if case.batch <= LARGEST_WALL else ("graph",)


def check(case: Case) -> Case:
    """The case, if it can be measured. Raises ValueError."""
    for name, value, known in (("dtype", case.dtype, DTYPES), ("operation", case.operation, OPERATIONS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if case.batch < 1 or case.vocab < 1:
        raise ValueError(f"batch and vocab must be >= 1, got {case.batch} and {case.vocab}")
    if case.k is None and case.p is None:
        raise ValueError(f"a case needs k or p, got neither: {case}")
    return case
