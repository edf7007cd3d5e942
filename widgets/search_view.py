"""The numbers behind `SearchExplorer`: the steps of a pivot search on one row, and what decides in each. No drawing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qp_kernels.qrita import trace_search
from qp_kernels.qrita.trace import SearchStep
from widgets.logit_view import RowFacts
from widgets.text import number, percent

SEARCHES = ("quaternary", "binary")
CURVE_POINTS = 400
MOST_SHOWN_TIES = 12


@dataclass(frozen=True)
class SearchView:
    """What the panel shows.

    Attributes:
        facts: The row. k, p: As set; 0 and 1 are off. space: "value" or "bits". search: The one that is seen in full.
        traces: Steps of both searches, in the units of the space. step: Which one of `search` is seen, from 1.
        dtype: Of the logits, as the control names it.
    """

    facts: RowFacts
    k: int
    p: float
    space: str
    search: str
    traces: dict[str, list[SearchStep]]
    step: int
    dtype: str = "float32"

    @property
    def steps(self) -> list[SearchStep]:
        return self.traces[self.search]

    @property
    def now(self) -> SearchStep:
        """The step that is seen, in the units of the space."""
        return self.steps[self.step - 1]

    @property
    def seen(self) -> SearchStep:
        """The step that is seen, as logits."""
        return self.now.as_logits()

    @property
    def target(self) -> float:
        """What the search looks for: a count, or a share of the mass."""
        return self.k if self.now.stage == "k" else self.p

    @property
    def amounts(self) -> tuple[float, ...]:
        """Of each pivot of the step: entries, or share of the mass, at or above it."""
        return self.now.counts if self.now.stage == "k" else self.now.masses

    @property
    def enough(self) -> list[bool]:
        """Of each pivot, whether the target stands at or above it."""
        if self.now.stage == "k":
            return [amount >= self.target for amount in self.now.counts]
        # The kernel compares integers; where a share is rounded onto p, the next interval tells.
        lo = self.next_interval[0]
        return [pivot <= lo for pivot in self.now.pivots]

    @property
    def next_interval(self) -> tuple[float, float]:
        """Where the search goes on, in the units of the space; where it stops, the interval of the step."""
        if self.step < len(self.steps) and self.steps[self.step].stage == self.now.stage:
            following = self.steps[self.step]
            return following.lo, following.hi
        return bracket(self.now, self.target)

    @property
    def next_logits(self) -> tuple[float, float]:
        """`next_interval` as logits."""
        lo, hi = self.next_interval
        after = self.now._replace(lo=lo, hi=hi).as_logits()
        return after.lo, after.hi

    @property
    def within(self) -> int:
        """Entries that this stage searches at most: those that the k stage kept, or all."""
        if self.now.stage == "p" and self.steps[0].stage == "k":
            return next(step.kept for step in self.steps if step.stop)
        return self.facts.eligible

    @property
    def cut(self) -> SearchStep:
        """The last step of the stage that is seen, as logits."""
        return [step for step in self.steps if step.stage == self.now.stage][-1].as_logits()

    @property
    def tied(self) -> np.ndarray:
        """Ids of the entries equal to the cut, in index order; the first `cut.ties` of them stay."""
        value = self.cut.min_above
        return self.facts.order[self.facts.count(value, "left") : self.facts.count(value)]


def bracket(step: SearchStep, target: float) -> tuple[float, float]:
    """The tightest pivots around the target."""
    amounts = step.counts if step.stage == "k" else step.masses
    reached = [pivot for pivot, amount in zip(step.pivots, amounts, strict=True) if amount >= target]
    missed = [pivot for pivot, amount in zip(step.pivots, amounts, strict=True) if amount < target]
    return max(reached, default=step.lo), min(missed, default=step.hi)


def trace_both(row: torch.Tensor, k: int, p: float, space: str) -> dict[str, list[SearchStep]]:
    """Both searches of a row, each step as `qp_kernels.qrita.trace_search` gives it."""
    if p >= 1 and not 0 < k < len(row):
        raise ValueError("k and p are both off, so there is no cut to search: set k to 1 or more, or p below 1")
    limits = {"k": k or None, "p": p if p < 1 else None}
    return {search: trace_search(row, **limits, search=search, space=space) for search in SEARCHES}


def at_least(facts: RowFacts, value: float) -> int:
    """Entries at or above a float64 value."""
    rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return facts.count(float(rounded))


def left_in(view: SearchView, step: SearchStep, within: int) -> int:
    """Entries of the step's interval, among which the cut still can be."""
    seen = step.as_logits()
    if isinstance(step.lo, int):  # bits: hi is no longer in the interval
        beyond = at_least(view.facts, seen.hi) if np.isfinite(seen.hi) else 0
    else:
        rounded = np.float32(seen.hi)
        beyond = view.facts.count(float(rounded), "left" if float(rounded) <= seen.hi else "right")
    return max(0, min(at_least(view.facts, seen.lo), within) - beyond)


def lefts(view: SearchView, search: str) -> list[int]:
    """Entries left in the interval of every step of a search."""
    found, within = [], view.facts.eligible
    for step in view.traces[search]:
        found.append(left_in(view, step, within))
        if step.stop and step.stage == "k":
            within = step.kept
    return found


def curve(view: SearchView, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """x and the amount at or above it, between two logits: a staircase, falling."""
    facts = view.facts
    first, last = at_least(facts, high), min(at_least(facts, low), view.within)
    if last - first <= CURVE_POINTS:
        inside = facts.sorted[first:last][::-1].astype(np.float64)
        x = np.concatenate([[low], np.unique(inside), [high]])
    else:
        x = np.linspace(low, high, CURVE_POINTS)
    counts = np.minimum([at_least(facts, value) for value in x], view.within)
    if view.now.stage == "k":
        return x, counts
    _, running = facts.masses(1.0)
    running = np.append(0, running) / running[view.within - 1]
    return x, running[counts]


def name_target(view: SearchView) -> str:
    return f"k = {view.k:,}" if view.now.stage == "k" else f"p = {view.p:.10g}"


def told_apart(values: tuple[float, ...]) -> list[str]:
    """Numbers with as many digits as it takes to tell them apart."""
    texts = list(map(number, values))
    for digits in range(5, 10):
        if len(set(texts)) == len(set(values)):
            break
        texts = [f"{value:.{digits}g}" for value in values]
    return texts


def sentence(view: SearchView) -> str:
    """What the step that is seen does, in a line."""
    step, seen, total = view.now, view.seen, len(view.steps)
    ground = f"{step.entries:,} candidates" if step.hit else f"the whole row of {step.entries:,}"
    text = f"step {view.step} of {total}, {name_target(view)} among {ground}"
    if step.pivots:
        amounts = [f"{a:,}" if step.stage == "k" else percent(a) for a in view.amounts]
        text += f": at or above {' / '.join(told_apart(seen.pivots))} " + (
            f"stand {' / '.join(amounts)} entries" if step.stage == "k" else f"is {' / '.join(amounts)} of the mass"
        )
    other = next(name for name in SEARCHES if name != view.search)
    ends = {
        name: f"{len(steps)} step{'s' * (len(steps) > 1)} and {steps[-1].bytes_read:,} bytes"
        for name, steps in view.traces.items()
    }
    read = f"{step.bytes_read:,} bytes read so far ({view.search}: {ends[view.search]}; {other}: {ends[other]})"
    return " · ".join([text, _outcome(view), read])


def _outcome(view: SearchView) -> str:
    step, seen = view.now, view.seen
    if not step.stop:
        return "goes on between {} and {}".format(*map(number, view.next_logits))
    above = step.kept - step.ties
    one = above == 1
    few = f"{'is' if one else 'are'} too few" if step.stage == "k" else f"hold{'s' * one} too little"
    stay = f"{step.ties:,} of {step.multiplicity:,} equal to it" if step.multiplicity > 1 else "it"
    entries = "entry" if one else "entries"
    return (
        f"stops: the cut is {number(seen.min_above)}, for the {above:,} {entries} above it {few}; "
        f"with {stay} {step.kept:,} are kept"
    )
