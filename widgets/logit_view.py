"""The numbers behind `LogitExplorer`: what a row looks like, and what k, p and T make of it. No drawing here.

`RowFacts` depends on the row alone and is kept while sliders move; `look` calls the kernels and returns a `LogitView`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from qp_kernels.metrics import Moments, moments, quantile_pairs
from qp_kernels.qrita import select, truncation
from qp_kernels.qrita.rivals import min_p_threshold, top_n_sigma_threshold
from widgets.text import percent

BINS = 160
BAR_ROWS = 16


@dataclass(frozen=True)
class Histogram:
    """Bins of equal width over the bulk of a row.

    Attributes:
        left: [M] left edges [logit]; width: bin width [logit]; counts: [M] entries per bin;
        below, above: entries outside the drawn range, which far outliers would otherwise stretch.
    """

    left: np.ndarray
    width: float
    counts: np.ndarray
    below: int
    above: int

    @property
    def centres(self) -> np.ndarray:
        return self.left + self.width / 2

    @property
    def range(self) -> tuple[float, float]:
        pad = 2 * self.width
        return float(self.left[0] - pad), float(self.left[-1] + self.width + pad)

    def prefix_counts(self, descending: np.ndarray, kept: int) -> np.ndarray:
        """[M] how many of the first `kept` entries of the sorted row fall into each bin."""
        edges = np.append(self.left, self.left[-1] + self.width)
        at_least = np.searchsorted(-descending, -edges, side="right")  # entries >= edge
        inside = np.minimum(at_least, kept)
        return inside[:-1] - inside[1:]


def histogram(descending: np.ndarray, mantissa_bits: int = 23) -> Histogram:
    """Bins of a sorted row. 16-bit rows (`mantissa_bits` 7 or 10) get bins of whole steps, none empty by rounding."""
    descending = descending.astype(np.float64)  # the distance of two float32 can overflow
    top, bottom = float(descending[0]), float(descending[-1])
    upper, lower = np.quantile(descending, [0.75, 0.25])
    spread = float(upper - lower)
    high = min(top, upper + 20 * spread) if spread else top
    low = max(bottom, lower - 8 * spread) if spread else bottom
    largest = max(abs(high), abs(low))
    step = 2.0 ** (math.frexp(largest)[1] - 1 - mantissa_bits) if largest else 1.0
    width = max(math.ceil((high - low) / BINS / step) * step, step, 1e-6)
    first = math.floor(low / width)
    left = (np.arange(first, math.floor(high / width) + 1) * width).astype(np.float64)
    full = Histogram(left, width, np.zeros(len(left), int), 0, 0)
    counts = full.prefix_counts(descending, len(descending))
    below = int((descending < left[0]).sum())
    return Histogram(left, width, counts, below, len(descending) - below - int(counts.sum()))


class RowFacts:
    """One row of logits, sorted once: everything the picture needs that no slider changes.

    Args:
        row: [V] float32 logits.
        unused: [V] bool of entries left out of μ, σ and the QQ view, or None.
        mantissa_bits: Of the type the values were rounded to (23, 10 or 7).
    Raises:
        ValueError: when no entry is eligible (all -inf or NaN).
    """

    def __init__(self, row: torch.Tensor, unused: torch.Tensor | None = None, mantissa_bits: int = 23):
        self.row = row
        clean = torch.where(row.isnan(), -math.inf, row)
        values, order = torch.sort(clean, descending=True, stable=True)
        self.eligible = int((values > -math.inf).sum())
        if not self.eligible:
            raise ValueError("this row has no eligible entry: every logit is -inf or NaN")
        self.order = order[: self.eligible].numpy()
        self.sorted = values[: self.eligible].numpy()
        finite = values[: self.eligible]
        finite = finite[finite < math.inf]
        self.histogram = histogram(finite.numpy(), mantissa_bits) if len(finite) else None
        if unused is not None:
            used = ~unused[order[: self.eligible]] & (values[: self.eligible] < math.inf)
            finite = values[: self.eligible][used]
        self.moments: Moments = moments(finite)
        self.normal_count = len(finite)
        self.qq = tuple(part.numpy() for part in quantile_pairs(finite))
        self._masses: tuple[float, np.ndarray, np.ndarray] | None = None

    @cached_property
    def distinct(self) -> int:
        return int(np.count_nonzero(np.diff(self.sorted))) + 1

    def masses(self, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """[eligible] float64 mass of each entry in row order at this temperature, and of the first n entries."""
        if self._masses is None or self._masses[0] != temperature:
            top = self.sorted[0]
            weights = np.zeros(self.eligible)
            if temperature:
                with np.errstate(invalid="ignore"):  # inf - inf, set to 1 in the next line
                    np.exp((self.sorted.astype(np.float64) - top) / temperature, out=weights)
                weights[self.sorted == top] = 1.0
            else:
                weights[0] = 1.0  # greedy: the first of the row order takes it all
            running = np.cumsum(weights)
            self._masses = (temperature, weights / running[-1], running / running[-1])
        return self._masses[1:]


@dataclass(frozen=True)
class Bar:
    """One token of the bar view. `rank` counts from 1; `after` 0 if dropped; `tied`: one of a tie the cut divides."""

    rank: int
    token: int
    label: str
    logit: float
    before: float
    after: float
    kept: bool
    tied: bool


@dataclass(frozen=True)
class LogitView:
    """What one row, k, p and T give. Logits are in the row's own units, also where T scaled them."""

    facts: RowFacts
    k: int
    p: float
    temperature: float
    order: str
    kept: int
    mass: float
    cut: float
    ties: int  # entries equal to the last kept one
    ties_kept: int
    threshold: float
    candidates: int
    hit: bool
    bars: list[Bar | None]
    rivals: dict[str, tuple[float, float, int]]  # name -> (parameter, cut [logit], entries kept)


def bar_ranks(kept: int, eligible: int, rows: int = BAR_ROWS) -> list[int | None]:
    """0-based ranks to show: from the top, and around the cut; None is the gap between them."""
    if kept <= rows - 3 or eligible <= rows:
        return list(range(min(rows, eligible)))
    around = [r for r in range(kept - 3, kept + 3) if r < eligible]
    return [*range(rows - 1 - len(around)), None, *around]


def look(
    facts, label, *, k, p, temperature, order="k_then_p", margin=0.2, min_p=0.0, n_sigma=0.0, backend="auto"
) -> LogitView:
    """Run the kernels on a row and collect what the picture shows.

    Args:
        facts: `RowFacts`. label: Callable from ids to names.
        k, p, temperature, order: As in `qp_kernels.qrita`; k = 0 and p = 1 are off, T = 0 is greedy.
        margin: Safety margin of the truncation. min_p, n_sigma: Rivals drawn beside it; 0 is off.
    """
    scale = temperature or 1.0
    scaled = facts.row / scale
    each, running = facts.masses(temperature)
    limits = {"k": 1 if temperature == 0 else (k or None), "p": None if p >= 1 or temperature == 0 else p}
    kept = facts.eligible
    if any(limit is not None for limit in limits.values()):
        kept = int(select(scaled, **limits, order=order, max_candidates=1, backend=backend).count)
    stats = truncation(scaled, **limits, order=order, margin=margin, backend=backend)
    cut = float(facts.sorted[kept - 1])
    above = int(np.searchsorted(-facts.sorted, -cut, side="left"))
    ties = int(np.searchsorted(-facts.sorted, -cut, side="right")) - above
    rivals = {}
    if min_p > 0:
        rivals["min_p"] = _rival(facts, min_p, float(min_p_threshold(scaled, min_p)) * scale)
    if n_sigma > 0:
        rivals["top_n_sigma"] = _rival(facts, n_sigma, float(top_n_sigma_threshold(facts.row, n_sigma)))
    return LogitView(
        facts=facts,
        k=k,
        p=p,
        temperature=temperature,
        order=order,
        kept=kept,
        mass=float(running[kept - 1]),
        cut=cut,
        ties=ties,
        ties_kept=kept - above,
        threshold=float(stats.threshold) * scale,
        candidates=int(stats.kept),
        hit=bool(stats.hit),
        bars=_bars(facts, label, each, float(running[kept - 1]), kept, cut if above + ties > kept else None),
        rivals=rivals,
    )


def _rival(facts: RowFacts, parameter: float, cut: float) -> tuple[float, float, int]:
    return parameter, cut, int(np.searchsorted(-facts.sorted, -cut, side="right"))


def _bars(facts: RowFacts, label, each: np.ndarray, mass: float, kept: int, tie: float | None) -> list[Bar | None]:
    ranks = bar_ranks(kept, facts.eligible)
    shown = [r for r in ranks if r is not None]
    names = dict(zip(shown, label(facts.order[shown]), strict=True))

    def bar(rank: int) -> Bar:
        logit, before = float(facts.sorted[rank]), float(each[rank])
        after = before / mass if rank < kept else 0.0
        return Bar(rank + 1, int(facts.order[rank]), names[rank], logit, before, after, rank < kept, logit == tie)

    return [None if rank is None else bar(rank) for rank in ranks]


def sentence(view: LogitView) -> str:
    """What a view shows, in a line."""
    k = f"k = {view.k:,}" if view.k else "k off"
    p = f"p = {view.p:g}" if view.p < 1 else "p off"
    rule = f"{k}, {p}, T = {view.temperature:g}" if view.temperature else "T = 0 (greedy)"
    kept = f"{view.kept:,} of {len(view.facts.row):,} tokens kept, {percent(view.mass)} of the mass"
    caught = "hit" if view.hit else "miss"
    return f"{rule}: {kept} · threshold t lets {view.candidates:,} candidates through ({caught})"


def fate(view: LogitView, token: int) -> str:
    """What the cut does to one token: its rank, and whether it stays."""
    found = np.flatnonzero(view.facts.order == token)
    if not len(found):
        return "never eligible"
    return f"rank {found[0] + 1:,}, {'kept' if found[0] < view.kept else 'dropped'}"


def mantissa_bits(row: torch.Tensor) -> int:
    """23, 10 or 7: the coarsest float type that holds every value of the row."""
    for dtype, bits in ((torch.bfloat16, 7), (torch.float16, 10)):
        if torch.equal(torch.nan_to_num(row.to(dtype).float()), torch.nan_to_num(row)):
            return bits
    return 23
