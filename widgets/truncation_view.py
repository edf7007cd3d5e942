"""The numbers behind `TruncationExplorer`: what the threshold leaves of many rows, and one of them in full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qp_kernels.qrita import select, truncation
from widgets.histograms import Histogram, histogram
from widgets.sorted_rows import HIT, MISS, OVERFLOW, Outcome, Rule, SortedRows
from widgets.text import number, percent

STATES = ("miss", "overflow", "hit")  # by MISS, OVERFLOW and HIT


@dataclass(frozen=True)
class Opened:
    """One row as the rule sees it, with what the kernels say of it.

    Attributes:
        row: Its index. mean, std, threshold, candidates, hit, overflow: Of `truncation`.
        kept: Entries that k or p keeps. cut: The smallest of them.
        finite, infinite: Entries of each kind that are eligible. hist: Of the finite ones, None without any.
    """

    row: int
    mean: float
    std: float
    threshold: float
    candidates: int
    hit: bool
    overflow: bool
    kept: int
    cut: float
    finite: int
    infinite: int
    hist: Histogram | None

    @property
    def state(self) -> int:
        return MISS if not self.hit else OVERFLOW if self.overflow else HIT


def open_row(row: int, logits: torch.Tensor, bits: int, known: SortedRows, setting, rule: Rule, backend: str) -> Opened:
    """Ask the kernels about one row.

    Args:
        logits: [V] float32, before shift and temperature. bits: As `histogram` takes them. setting: k or p.
    Raises:
        ValueError: no entry is eligible.
    """
    values = known.descending(row, rule)
    if not len(values):
        raise ValueError("this row has no eligible entry: every logit is -inf or NaN")
    scaled = rule.apply(logits)
    limits = {"k": setting or None} if rule.over == "k" else {"p": setting if setting < 1 else None}
    stats = truncation(scaled, **limits, margin=rule.margin, rule=rule.rule, backend=backend)
    kept = len(values)
    if rule.over == "k":
        kept = min(setting or kept, kept)
    elif setting < 1:
        kept = int(select(scaled, p=setting, max_candidates=1, backend=backend).count)
    infinite = int(np.searchsorted(-values, -np.inf, side="right"))
    plain = not rule.shift and rule.temperature == 1  # else the values are no longer on the 16-bit grid
    hist = histogram(values[infinite:], bits if plain else 23) if infinite < len(values) else None
    return Opened(
        row=row,
        mean=float(stats.mean),
        std=float(stats.std),
        threshold=float(stats.threshold),
        candidates=int(stats.kept),
        hit=bool(stats.hit),
        overflow=bool(stats.overflow),
        kept=kept,
        cut=float(values[kept - 1]),
        finite=len(values) - infinite,
        infinite=infinite,
        hist=hist,
    )


@dataclass(frozen=True)
class TruncationView:
    """What the panel shows.

    Attributes:
        rule, setting: How thresholds are set, and k or p now.
        looked: Rows that are looked at. rows: Those of them that are known, ascending.
        names: Of each row of `rows`: the token whose successor is predicted, "" where no text is known.
        now: [rows] at the setting. wanted: [rows] k, or the nucleus.
        grid: [settings] of the map. map: [rows, settings].
    """

    rule: Rule
    setting: float
    vocab: int
    looked: range
    rows: list[int]
    names: list[str]
    now: Outcome
    wanted: np.ndarray
    grid: np.ndarray
    map: Outcome
    opened: Opened

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are in each state at the setting."""
        return {name: int((self.now.state == state).sum()) for state, name in enumerate(STATES)}

    def quantile(self, share: float) -> int:
        """Candidates that this share of the rows do not exceed (nearest rank)."""
        return int(np.quantile(self.now.kept, share, method="inverted_cdf"))


def setting_grid(over: str, vocab: int) -> np.ndarray:
    """The values of k or p that the map covers, evenly spaced on its axis (see `place`)."""
    if over == "p":
        return 1 - 10.0 ** -(np.arange(21) / 4)
    steps = int(5 * np.log10(max(vocab, 2)) + 1e-9) + 1
    return np.rint(10 ** (np.arange(steps) / 5)).astype(np.int64)


def place(over: str, setting) -> np.ndarray:
    """Where k or p stands on the map's axis: log10 k, and -log10(1 - p)."""
    setting = np.asarray(setting, np.float64)
    with np.errstate(divide="ignore"):
        return np.log10(setting) if over == "k" else -np.log10(1 - setting)


def name_setting(over: str, setting) -> str:
    if over == "k":
        return f"k = {setting:,}" if setting else "k off"
    return f"p = {setting:.10g}" if setting < 1 else "p off"


def sentence(view: TruncationView) -> str:
    """What a view shows, in a line."""
    rule, opened, n = view.rule, view.opened, len(view.rows)
    how = f"{'σ' if rule.rule == 'sigma' else 'paper’s'} margin {rule.margin:g}"
    how += f", T = {rule.temperature:g}" + (f", shift {rule.shift:+g}" if rule.shift else "")
    counts, median, worst = view.counts, view.quantile(0.5), view.quantile(0.99)
    some = f"{n:,}" if n == len(view.looked) else f"{n:,} of {len(view.looked):,}"
    parts = [
        f"{name_setting(rule.over, view.setting)}, {how}: {counts['hit']:,} of {n:,} positions hit "
        f"({100 * counts['hit'] / n:.3g} %), {counts['miss']:,} miss, {counts['overflow']:,} overflow"
        + ("" if n == len(view.looked) else f" ({some} read)"),
        f"candidates: median {median:,} ({percent(median / view.vocab)} of V), p99 {worst:,}",
        f"position {opened.row}: t = {number(opened.threshold)} leaves {opened.candidates:,} for {opened.kept:,} "
        f"({STATES[opened.state]})",
    ]
    return " · ".join(parts)
