"""From which prefix length on PIVOT is faster than dense selection on this GPU: the number for `guard`.

Knows the public functions and a clock; no kernel. The paper's guard asks whether anything can be saved, not whether it
is: between its length and the one measured here, PIVOT re-scores more than the shorter scan saves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import backend as backends
from .. import timing
from . import checks
from .api import MAX_BYTES, MODES, PHASES, dense_topk, pivot_topk

# A guard that no prefix exceeds.
NEVER = 2**31 - 1
# Bisection ends within this part of the length.
RESOLUTION = 32
# A chunk has lost where it is slower beyond the spread by more than this.
TOLERANCE = 1.01

Timer = Callable[[Callable[[], Tensor]], timing.Timing]


@dataclass(frozen=True)
class Point:
    """Both ways timed at one length, in ms: medians, and the ends of the spread that face each other.

    Attributes:
        kind: "level": all groups' first members have `length` keys, and none takes the dense path; "chunk": the rows
            are consecutive, the last one has `length` keys, and groups up to `guard` take the dense path.
        dense_ms, pivot_ms: Medians.
        wins: The slower fifth of PIVOT's samples is faster than the faster fifth of dense ones.
        loses: The other way round, by more than 1 %.
    """

    kind: str
    length: int
    guard: int
    dense_ms: float
    pivot_ms: float
    wins: bool
    loses: bool


@dataclass(frozen=True)
class Crossover:
    """What `measured_crossover` found.

    Attributes:
        guard: Pass it to `pivot_topk`: groups whose first member has at most so many keys take the dense path. `NEVER`
            (2^31 - 1) where PIVOT was not faster at any length measured.
        points: All that was timed, levels by length, then chunks in the order measured.
    """

    guard: int
    points: tuple[Point, ...]


def measured_crossover(
    *,
    mode: str = "refine",
    group: int = 4,
    topk: int = 2048,
    budget: int | None = None,
    heads: int = 64,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 4096,
    phase: str = "prefill",
    longest: int = 131_072,
    repetitions: int = 10,
    backend: str = "auto",
    max_bytes: int = MAX_BYTES,
    device: torch.device | str | None = None,
    timer: Timer | None = None,
) -> Crossover:
    """Measure the shortest prefix at which PIVOT beats dense selection, on random inputs.

    A group pays by the keys of its first member, while the rows of a prefill chunk of T have L - T + 1 to L of them. So
    groups that all have the same number are timed: at budget (Refine) or topk (Reuse), its doublings up to `longest`,
    then by bisection. A win lies outside the spread of both, and is seen at the double length as well. A chunk that is
    part dense and part PIVOT pays for both, so in prefill the guard is a multiple of `rows`: chunks that start at such
    multiples are all the one or all the other. The first two beyond it are timed last; a slower one raises it.

    Args:
        mode, group, topk, budget, phase, backend, max_bytes: As for `pivot_topk`.
        heads, dim, dtype: H, D and the type of q and k.
        rows: T, queries of a call: those of a chunk, or of a decode batch; a multiple of group.
        longest: Keys of the longest prefix tried.
        repetitions: Samples of each time.
        device: Where; None is the current CUDA device, or the CPU with a timer of one's own.
        timer: Times a call without arguments; None is `timing.measure` with a cold cache.
    Returns:
        `Crossover`: the guard, and every time behind it.
    Raises:
        RuntimeError: no CUDA device to measure on. TypeError, ValueError: as `pivot_topk`; rows that are no multiple of
            group, or longest below the shortest length.
    """
    for name, value, least in (("group", group, 2), ("topk", topk, 1), ("rows", rows, 1), ("heads", heads, 1)):
        checks.whole(name, value, least)
    checks.one_of("mode", mode, MODES)
    checks.one_of("phase", phase, PHASES)
    if rows % group:
        raise ValueError(f"rows must be a multiple of group, {group}, got {rows}")
    budget = max(2 * topk, topk + 2 * group - 1) if budget is None else checks.whole("budget", budget, 1)
    shortest = topk if mode == "reuse" else budget
    if checks.whole("longest", longest, 1) < shortest:
        raise ValueError(f"longest must be >= {shortest}, the shortest prefix that can gain, got {longest}")
    device, timer = _clock(device, timer, repetitions)
    shared = {"backend": backend, "max_bytes": max_bytes}
    chosen = {"group": group, "mode": mode, "budget": budget, "phase": phase}
    rig = _Rig(topk, rows, group, shared, chosen, timer)
    rig.draw(longest + 2 * rows + group, heads, dim, dtype, device)
    found = first_win(lambda length: rig.level(length).wins, shortest, longest)
    guard = NEVER if found is None else found - 1
    if phase == "prefill":
        guard = -(-guard // rows) * rows
        while guard <= longest and any(rig.chunk(guard + n * rows, guard).loses for n in (1, 2)):
            guard += rows
    points = (*sorted(rig.levels.values(), key=lambda point: point.length), *rig.chunks)
    return Crossover(guard if guard <= longest else NEVER, points)


def first_win(wins: Callable[[int], bool], shortest: int, longest: int) -> int | None:
    """The shortest winning length, or None: by doubling from `shortest` until two in a row win, then by bisection.

    >>> first_win(lambda length: length >= 5000, 4096, 1 << 17)
    5120
    """
    lost, length = None, shortest
    while not (wins(length) and (2 * length > longest or wins(2 * length))):
        lost, length = length, 2 * length
        if length > longest:
            return None
    while lost is not None and length - lost > max(1, length // RESOLUTION):
        middle = (lost + length) // 2
        lost, length = (lost, middle) if wins(middle) else (middle, length)
    return length


class _Rig:
    """Inputs, and the two calls on them at a length; every level is timed once."""

    def __init__(self, topk: int, rows: int, group: int, shared: dict, chosen: dict, timer: Timer):
        self.topk, self.rows, self.group = topk, rows, group
        self.shared, self.chosen, self.timer = shared, chosen, timer
        self.levels: dict[int, Point] = {}
        self.chunks: list[Point] = []

    def draw(self, keys: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        q, self.k = (
            torch.randn(shape, generator=generator, device=device).to(dtype)
            for shape in ((self.rows, heads, dim), (keys, dim))
        )
        self.q, self.w = q, torch.rand(self.rows, heads, generator=generator, device=device)

    def level(self, length: int) -> Point:
        if length not in self.levels:
            hi = length + torch.arange(self.rows, device="cpu") % self.group
            self.levels[length] = self.point("level", length, hi, 0)
        return self.levels[length]

    def chunk(self, end: int, guard: int) -> Point:
        hi = torch.arange(end - self.rows + 1, end + 1, device="cpu")
        self.chunks.append(self.point("chunk", end, hi, guard))
        return self.chunks[-1]

    def point(self, kind: str, length: int, hi: Tensor, guard: int) -> Point:
        tensors = (self.q, self.k[: int(hi.max())], self.w, self.topk)
        dense = self.timer(functools.partial(dense_topk, *tensors, hi=hi, **self.shared))
        pivot = self.timer(functools.partial(pivot_topk, *tensors, hi=hi, guard=guard, **self.chosen, **self.shared))
        wins, loses = pivot.p80_us < dense.p20_us, pivot.p20_us > TOLERANCE * dense.p80_us
        return Point(kind, length, guard, dense.median_us / 1e3, pivot.median_us / 1e3, wins, loses)


def _clock(device: torch.device | str | None, timer: Timer | None, repetitions: int) -> tuple[torch.device, Timer]:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if timer is not None:
        return device, timer
    if device.type != "cuda" or not torch.cuda.is_available():
        why = backends.card_problem() or f"got {str(device)!r}"
        raise RuntimeError(f"measured_crossover needs a CUDA device ({why}): elsewhere leave guard=True")
    timing.wake(device)
    return device, functools.partial(timing.measure, repetitions=repetitions, device=device)
