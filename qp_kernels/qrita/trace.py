"""Pivot search of one row, step by step, for teaching: what the kernels do, with every number in sight.

A search looks for the smallest value that k or p keeps. It holds an interval [lo, hi] around it, asks how much of the
row stands at or above a few pivots, and goes on in the tightest bracket. The amount is a count for k and a fixed-point
mass for p (`reference.fixed_weights`), so the answer is that of `reference.find_cuts`, ties included.

Value space places the pivots evenly between two logits, as the paper does. Bit space places them evenly between two
int32 keys that order as the floats do, as a kernel does that must be bounded.

A step asks for amounts only, so the row is sorted once and a step is a look-up in running sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import checks, reference
from . import threshold as thresholds
from .ladder import Ladder, distinct, key_to_logit, sortable_keys
from .tiling import tiles

INF = math.inf
SEARCHES = {"quaternary": 4, "binary": 2}  # brackets a step cuts the interval into
SPACES = ("value", "bits")
BUFFERED_BYTES = 4


class SearchStep(NamedTuple):
    """One step of a search. Units of lo, hi, pivots and min_above: logits in value space, keys in bit space.

    Attributes:
        lo, hi: The interval as the step meets it. At least the target stands at or above lo. Value space: hi is in
            the interval until a pivot replaces it. Bit space: less than the target stands at or above hi.
        pivots: Ascending, inside the interval; empty where the step needs none.
        counts: Entries at or above each pivot. They decide in stage "k".
        masses: Share of the stage's mass at or above each pivot, in [0, 1]; empty in stage "k". They decide in "p".
        min_above: The smallest value at or above a bound that holds the target. Value space: the highest such bound
            once the pivots are counted. Bit space: lo, looked at before any pivot is placed.
        multiplicity: How many entries equal min_above; in stage "p" after "k", how many of those that k kept.
        stop: Whether the search ends here: without those entries the target is missed, so the cut is at min_above.
        ties: Where it stops, how many of them stay (in index order); else 0.
        kept: Where it stops, how many entries stay in all; else 0.
        step: 1, 2, ... within the stage.
        stage: "k", or "p" within what stage "k" kept.
        hit: Whether a step reads the candidates of the truncation; else the whole row (a miss, or an overflow).
        entries: How many entries that is.
        bytes_read: One read of the row to gather candidates, and `entries` in each step so far, both stages: fp32
            candidates, or the row in its own dtype.
    """

    lo: float
    hi: float
    pivots: tuple[float, ...]
    counts: tuple[int, ...]
    masses: tuple[float, ...]
    min_above: float
    multiplicity: int
    stop: bool
    ties: int
    kept: int
    step: int
    stage: str = "k"
    hit: bool = False
    entries: int = 0
    bytes_read: int = 0

    def as_logits(self) -> SearchStep:
        """This step with lo, hi, pivots and min_above as logits, whatever the space."""
        if not isinstance(self.lo, int):
            return self
        lo, hi, min_above, *pivots = map(key_to_logit, (self.lo, self.hi, self.min_above, *self.pivots))
        return self._replace(lo=lo, hi=hi, min_above=min_above, pivots=tuple(pivots))


@torch.no_grad()
def trace_search(
    row: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    search: str = "quaternary",
    space: str = "value",
) -> list[SearchStep]:
    """Search one row for the cut of k, then within that for the cut of p, and list the steps.

    Bounds. Bit space: at most 16 quaternary (32 binary) steps with pivots a stage, then one that stops; keys are 32
    bits. Value space: a step divides the interval by 4 (2), until two neighbouring values are apart, so
    1 + log(range / gap): about ten steps on logits, up to 140 (279) where a range of 2**129 meets a gap of 2**-149.

    Args:
        row: [V] float32 / float16 / bfloat16, natural-log units.
        k: Entries kept, an int. None, 0, -1 or >= V: off.
        p: Mass kept, a number; of the k kept where both are on. None or 1: off.
        search: "quaternary" (three pivots a step) or "binary" (one).
        space: "value" or "bits".
    Returns:
        `SearchStep`s, those of stage "k" first. The last one holds the answer: `min_above` and `ties`. Empty where
        nothing is eligible.
    Raises:
        TypeError, ValueError: as `top_k_top_p`; ValueError for a batch, an unknown word, and where k and p are off.

    Ties: lowest index. Exactness: the cut of `top_k_top_p`. Source: arXiv 2602.01518, quaternary pivot search.

    >>> steps = trace_search(torch.tensor([0.0, 8.0, 3.0, 5.0, 5.0, 5.0]), k=2)
    >>> [(s.lo, s.hi, s.pivots, s.counts) for s in steps]
    [(0.0, 8.0, (2.0, 4.0, 6.0), (5, 4, 1))]
    >>> steps[-1].min_above, steps[-1].multiplicity, steps[-1].ties  # 5.0 stands three times, the first one stays
    (5.0, 3, 1)
    >>> [s.as_logits().min_above for s in trace_search(torch.tensor([0.0, 8.0, 3.0, 5.0]), k=2, space="bits")]
    [0.0, 3.0, 3.0, 3.0, 3.0, 5.0]
    """
    rows = checks.as_rows(row)
    if row.ndim != 1:
        raise ValueError(f"trace_search takes one row [V], got shape {list(row.shape)}")
    checks.one_of("search", search, tuple(SEARCHES))
    checks.one_of("space", space, SPACES)
    first_k, share = _on(checks.limits(row, k, p), row.shape[0])
    if first_k is None and share is None:
        raise ValueError(f"trace_search needs k or p, got k={k!r} and p={p!r}, which are both off")
    ground = _ground(rows.cpu(), first_k, share, space)
    steps: list[SearchStep] = []
    if ground is None:
        return steps
    lo, ladder = ground.lo, ground.ladder
    for stage, number in (("k", first_k), ("p", share)):
        if number is None:
            continue
        if steps:  # p begins where k ended, within what k kept
            lo, ladder = steps[-1].min_above, ladder.cut(steps[-1].min_above, steps[-1].ties)
        if stage == "k":
            target, total = min(number, ladder.above[0]), 0
        else:
            ladder = ladder.weigh(ground.top, len(row))
            total = ladder.above[0] if first_k is not None else ground.total
            target = _mass_target(total, number)
        for found in _walk(ladder, lo, target, total, SEARCHES[search], space):
            steps.append(ground.count_reads(found._replace(stage=stage), len(steps) + 1))
    return steps


class Ground(NamedTuple):
    """What both stages search: the truncation's candidates, or on a miss or an overflow the whole row."""

    ladder: Ladder
    lo: float  # where the search begins, in the space's units
    top: float  # the row's maximum
    total: int  # mass of the whole row where p alone is on, else 0
    hit: bool
    entries: int
    entry_bytes: int
    row_bytes: int

    def count_reads(self, step: SearchStep, steps: int) -> SearchStep:
        read = self.row_bytes + steps * self.entries * self.entry_bytes
        return step._replace(hit=self.hit, entries=self.entries, bytes_read=read)


def _ground(rows: Tensor, k: int | None, p: float | None, space: str) -> Ground | None:
    """Truncate, and tell a hit from a miss. None where nothing is eligible."""
    vocab, size, limits = rows.shape[-1], rows.element_size(), checks.limits(rows, k, p)
    cut = float(thresholds.locate(rows, limits, thresholds.MARGIN, "sigma")[3])
    kept = int((rows.float() >= cut).sum())
    keys = reference.row_keys(rows)
    top = 0.0 - float(keys.min())
    if top == -INF:
        return None
    total = 0
    if k is None:
        high = torch.tensor([top], dtype=torch.float32)
        total = sum(int(reference.fixed_weights(keys[:, tile], high, vocab).sum()) for tile in tiles(keys))
    hit = kept <= thresholds.CANDIDATE_BUFFER and (k is None or kept >= k)
    ladder = distinct(keys, cut, space) if hit else None
    if hit and k is None:
        hit = ladder.weigh(top, vocab).above[0] >= _mass_target(total, p)
    if not hit:
        cut, ladder = -INF, distinct(keys, -INF, space)
    if space == "value":
        lo = cut if cut > -INF else float(ladder.points[0])
    else:
        lo = int(sortable_keys(np.array([cut]))[0]) + (cut == -INF)  # what is -inf is not eligible
    entries, entry_bytes = (kept, BUFFERED_BYTES) if hit else (vocab, size)
    return Ground(ladder, lo, top, total, bool(hit), entries, entry_bytes, vocab * size)


def _walk(ladder: Ladder, lo: float, target: int, total: int, ways: int, space: str) -> Iterator[SearchStep]:
    """The steps of one stage. `total` is what a mass is a share of, 0 where counts decide."""
    bits, number = space == "bits", 0
    lo, hi = _interval(ladder, lo, target, bits)
    while True:
        number += 1
        done = bits and ladder.above[ladder.place(lo) + 1] < target
        pivots = () if done or lo == hi else _pivots(lo, hi, ways, bits)
        places = [ladder.place(pivot) for pivot in pivots]
        reached = [pivot for pivot, at in zip(pivots, places) if ladder.above[at] >= target]
        missed = [pivot for pivot, at in zip(pivots, places) if ladder.above[at] < target]
        inner = max(reached, default=lo), min(missed, default=hi)
        at = ladder.place(lo if bits else inner[0])
        stop = bool(ladder.above[at + 1] < target)
        ties = _ties(ladder, at, target) if stop else 0
        yield SearchStep(
            lo=lo,
            hi=hi,
            pivots=pivots,
            counts=tuple(int(ladder.counts[place]) for place in places),
            masses=tuple(float(ladder.above[place] / total) for place in places) if total else (),
            min_above=ladder.points[at].item(),
            multiplicity=int(ladder.times[at]),
            stop=stop,
            ties=ties,
            kept=int(ladder.counts[at + 1]) + ties if stop else 0,
            step=number,
        )
        if stop:
            return
        lo, hi = inner


def _interval(ladder: Ladder, lo: float, target: int, bits: bool) -> tuple[float, float]:
    """Where a stage begins: from lo to the largest value."""
    if bits:
        return lo, int(ladder.points[-1]) + 1
    largest = ladder.points[-1].item()
    if largest < INF:
        return lo, largest
    # Infinity has no middle to anything: it is the answer at once, or stands above a finite interval.
    return (INF, INF) if ladder.above[-2] >= target else (lo, ladder.points[-2].item())


def _pivots(lo: float, hi: float, ways: int, bits: bool) -> tuple[float, ...]:
    width = hi - lo  # float64: float32 values are as far apart as they like
    if bits:
        return tuple(lo + (width * i + ways - 1) // ways for i in range(1, ways))
    return tuple(lo + width * (i / ways) for i in range(1, ways))


def _ties(ladder: Ladder, at: int, target: int) -> int:
    """How many entries equal to the answer the target needs."""
    need, weight, times = target - int(ladder.above[at + 1]), int(ladder.weights[at]), int(ladder.times[at])
    return times if need >= weight * times else -(-need // weight)


def _mass_target(total: int, p: float) -> int:
    """The mass a prefix must reach, as the reference rounds it; one unit for p = 0, which keeps one entry."""
    return max(1, math.ceil(float(total) * p))


def _on(limits: checks.Limits, vocab: int) -> tuple[int | None, float | None]:
    """k and p as numbers, None where off."""
    k = vocab if limits.k is None else int(limits.k)
    p = 1.0 if limits.p is None else float(limits.p)
    return (k if k < vocab else None), (p if p < 1 else None)
