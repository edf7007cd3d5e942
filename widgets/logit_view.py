"""The numbers behind `LogitExplorer`: what a row looks like, and what k, p and T make of it. No drawing here.

`RowFacts` depends on the row alone and is kept while sliders move; `look` calls the kernels and returns a `LogitView`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from qp_kernels.metrics import Moments, moments, quantile_pairs
from qp_kernels.qrita import checks, select
from qp_kernels.qrita import threshold as qrita_threshold
from qp_kernels.qrita.rivals import min_p_threshold, top_n_sigma_threshold
from widgets.histograms import histogram
from widgets.text import percent

BAR_ROWS = 16


def row_order(row: np.ndarray) -> np.ndarray:
    """Indices of the eligible entries of a float32 row [V], value descending, then index ascending.

    Value and index are packed into one int64, because sorting plain integers is several times faster than a stable
    argsort of floats.
    """
    bits = (row + np.float32(0)).view(np.int32)  # + 0: -0.0 and 0.0 are ties
    ascending = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))  # float order as integer order, reversed
    eligible = np.flatnonzero(row > -np.inf)
    packed = (ascending[eligible].astype(np.int64) << 32) | eligible
    packed.sort()
    return packed & 0xFFFFFFFF


class RowFacts:
    """One row of logits, sorted once: everything the picture needs that no slider changes.

    Args:
        row: [V] float32 logits, on any device; the kernels run there.
        unused: [V] bool of entries left out of μ, σ and the QQ view, or None.
        mantissa_bits: Of the type the values were rounded to (23, 10 or 7).
    Raises:
        ValueError: when no entry is eligible (all -inf or NaN).
    """

    def __init__(self, row: torch.Tensor, unused: torch.Tensor | None = None, mantissa_bits: int = 23):
        self.row = row
        values = row.cpu().numpy()
        self.order = row_order(values)
        self.sorted = values[self.order]
        self.eligible = len(self.order)
        if not self.eligible:
            raise ValueError("this row has no eligible entry: every logit is -inf or NaN")
        self._ascending = -self.sorted
        self.infinite = self.count(np.inf)
        values = self.sorted[self.infinite :]
        self.histogram = histogram(values, mantissa_bits) if len(values) else None
        finite = torch.from_numpy(values)
        if unused is not None:
            finite = finite[~unused[self.order[self.infinite :]]]
        self.moments: Moments = moments(finite)
        self.normal_count = len(finite)
        self.qq = tuple(part.numpy() for part in quantile_pairs(finite))
        self._masses: tuple[float, np.ndarray, np.ndarray] | None = None

    def count(self, value: float, side: str = "right") -> int:
        """Entries at or above a value; above it with `side="left"`."""
        return int(np.searchsorted(self._ascending, np.float32(-value), side=side))

    def masses(self, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """[eligible] float64 mass of each entry in row order at this temperature, and of the first n entries."""
        known = self._masses
        if known is None or known[0] != temperature:
            top = self.sorted[0]
            weights = np.zeros(self.eligible)
            if temperature:
                with np.errstate(invalid="ignore"):  # inf - inf, set to 1 in the next line
                    np.exp((self.sorted.astype(np.float64) - top) / temperature, out=weights)
                weights[self.sorted == top] = 1.0
            else:
                weights[0] = 1.0  # greedy: the first of the row order takes it all
            running = np.cumsum(weights)
            self._masses = known = (temperature, weights / running[-1], running / running[-1])
        return known[1:]


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
    threshold, candidates, hit = _truncate(facts, scaled, running, limits, order, margin)
    cut = float(facts.sorted[kept - 1])
    above = facts.count(cut, "left")
    ties = facts.count(cut) - above
    rivals = {}
    if min_p > 0:
        at = float(min_p_threshold(scaled, min_p)) * scale if temperature else float(facts.sorted[0])
        rivals["min_p"] = _rival(facts, min_p, at)
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
        threshold=threshold * scale,
        candidates=candidates,
        hit=hit,
        bars=_bars(facts, label, each, float(running[kept - 1]), kept, cut if above + ties > kept else None),
        rivals=rivals,
    )


def _truncate(facts, scaled, running, limits: dict, order: str, margin: float) -> tuple[float, int, bool]:
    """Threshold, candidates and hit as `qp_kernels.qrita.truncation` gives them, with the mass that is known here."""
    checked = checks.limits(scaled, limits["k"], limits["p"], order)
    *_, value = qrita_threshold.locate(scaled[None], checked, margin, "sigma")
    candidates = int(torch.count_nonzero(scaled >= value)) if value > -math.inf else facts.eligible
    mass = torch.tensor([running[candidates - 1] if candidates else 0.0])
    hit = qrita_threshold.is_hit(torch.tensor([candidates]), mass, checked, len(scaled))
    return float(value), candidates, bool(hit)


def _rival(facts: RowFacts, parameter: float, cut: float) -> tuple[float, float, int]:
    return parameter, cut, facts.count(cut)


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
    p = f"p = {view.p:.10g}" if view.p < 1 else "p off"
    rule = f"{k}, {p}, T = {view.temperature:g}" if view.temperature else "T = 0 (greedy)"
    kept = f"{view.kept:,} of {len(view.facts.row):,} tokens kept, {percent(view.mass)} of the mass"
    caught = "hit" if view.hit else "miss"
    if view.ties > view.ties_kept:
        kept += f" · tie at the cut (=): {view.ties_kept:,} of {view.ties:,} kept"
    return f"{rule}: {kept} · threshold t lets {view.candidates:,} candidates through ({caught})"


def fate(view: LogitView, token: int) -> str:
    """What the cut does to one token: its rank, and whether it stays."""
    found = np.flatnonzero(view.facts.order == token)
    if not len(found):
        return "never eligible"
    return f"rank {found[0] + 1:,}, {'kept' if found[0] < view.kept else 'dropped'}"
