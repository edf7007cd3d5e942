"""What records of `benchmarks/quality.py` say: systems compared on what each of them was asked, with intervals.

Knows records, no model and no picture. Unfinished records are records: what a system was not asked is left out for all
that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qp_kernels.intervals import student, wilson

FIELDS = ("kind", "name", "length", "topk", "source", "system", "label", "counts", "each_loss")
KINDS = ("task", "passage")
FULL, DENSE = "full", "dense"
# With fewer samples that differ nothing is told apart: even if all go one way, an exact sign test at 5 % needs six.
# It is a floor and no proof: the interval must leave out 0 as well, which six that do not agree seldom let it.
FEWEST = 6


class Asked(NamedTuple):
    """Examples of a task, or passages of a kind, that systems were asked at one length, topk and source."""

    kind: str
    name: str
    length: int
    topk: int
    source: str


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval: Wilson's of a share, Student's t of a difference on the same samples.

    Attributes:
        value, low, high: A share in [0, 1], or nats a token.
        samples: How many it is the mean of. differ: Of a difference: on how many of them the two are not the same.
    """

    value: float
    low: float
    high: float
    samples: int
    differ: int | None = None

    @property
    def verdict(self) -> str:
        """What a difference allows to say: "same" on every sample, "open" (the interval includes 0), "few" (it does
        not, but fewer than `FEWEST` samples differ), or that it is "more" or "less"."""
        if self.differ == 0:
            return "same"
        if self.low <= 0 <= self.high:
            return "open"
        if self.differ is not None and self.differ < FEWEST:
            return "few"
        return "more" if self.value > 0 else "less"


class QualityRecords:
    """Records by what was asked; of the same question to the same system the last one holds.

    Attributes:
        by: What was asked and counts -> system -> record.
        left_out: Tasks that do not count -> the share that full attention answers, None where it was not asked.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]):
        self.by: dict[Asked, dict[str, Mapping[str, Any]]] = {}
        self.left_out: dict[Asked, float | None] = {}
        for record in records:
            what = Asked(*(record[name] for name in Asked._fields))
            if record["counts"]:
                self.by.setdefault(what, {})[record["system"]] = record
            else:
                self.left_out[what] = record.get("accuracy") if record["system"] == FULL else self.left_out.get(what)

    def values(self, field: str, **fixed) -> list:
        """The values of a field of `Asked` where others are fixed: numbers in order, names as they were recorded."""
        found = dict.fromkeys(getattr(one, field) for one in self.by if _fits(one, fixed))
        return sorted(found) if field in ("length", "topk") else list(found)

    def systems(self, **fixed) -> list[str]:
        """The systems that were asked anything of this, in the order of the records."""
        return list(dict.fromkeys(name for one, found in self.by.items() if _fits(one, fixed) for name in found))

    def asked(self, systems: Iterable[str], **fixed) -> list[Asked]:
        """What each of these systems was asked, where fields of `Asked` are fixed: to a value, a tuple of values, or by
        None to nothing."""
        wanted = set(systems)
        return [one for one, found in self.by.items() if _fits(one, fixed) and wanted <= set(found)]

    def comparable(self, systems: Iterable[str], **fixed) -> tuple[list[str], list[Asked]]:
        """Systems, and what each of them was asked, so that as many answers as can be are compared.

        A run that was cut off has asked some systems less than others. Either what these lack is left out, or they are:
        whatever leaves more. Full attention and dense selection stay, beside which the others are seen.
        """
        each = {name: set(found) for name in systems if (found := self.asked([name], **fixed))}
        needed = [name for name in (FULL, DENSE) if name in each]
        base = self.asked(needed, **fixed)
        # What some systems share is the best for them: intersections of what each has are all that can be best.
        shares = {frozenset(base)}
        for found in each.values():
            shares |= {share & found for share in shares}
        order = {one: i for i, one in enumerate(base)}
        best: tuple[list[str], list[Asked]] = ([], [])
        for shared in sorted(shares, key=lambda share: sorted(order[one] for one in share)):
            fit = [name for name, found in each.items() if shared and shared <= found]
            if (len(fit) * len(shared), len(fit)) > (len(best[0]) * len(best[1]), len(best[0])):
                best = (fit, sorted(shared, key=order.__getitem__))
        return best

    def longest(self, systems: Sequence[str], **fixed) -> int | None:
        """The longest length at which most of these systems can be compared: three quarters of as many as anywhere."""
        lengths = self.values("length", **fixed)
        counts = {n: len(self.comparable(systems, **fixed, length=n)[0]) for n in lengths}
        return max((n for n in lengths if counts[n] >= 0.75 * max(counts.values())), default=None)

    def level(self, system: str, asked: Sequence[Asked]) -> Estimate:
        """Of tasks the share that a system answers, of passages how much more they lose than with full attention.

        Args:
            asked: Of one kind, at least one; each counts alike, whatever number of samples it has.
        Raises:
            ValueError: nothing asked, or records that do not go together. KeyError: the system was not asked.
        """
        if asked and asked[0].kind == "task":
            return share([self.samples(system, one) for one in asked])
        return self.difference(system, FULL, asked)

    def difference(self, system: str, other: str, asked: Sequence[Asked]) -> Estimate:
        """How much larger a system's share or loss is than another's, on the same samples. Args, Raises: as `level`."""
        groups = []
        for one in asked:
            ours, theirs = self.samples(system, one), self.samples(other, one)
            if len(ours) != len(theirs):
                counts = f"{system} has {len(ours)} samples, {other} {len(theirs)}"
                raise ValueError(f"{one.name} at {one.length:,} tokens: {counts}")
            groups.append([a - b for a, b in zip(ours, theirs, strict=True)])
        every = [value for group in groups for value in group]
        low, high = student(groups)
        return Estimate(_mean(groups), low, high, len(every), sum(value != 0 for value in every))

    def by_name(self, system: str, other: str, asked: Sequence[Asked]) -> dict[str, Estimate]:
        """`difference` for each task or kind of passage by itself."""
        names = dict.fromkeys(one.name for one in asked)
        return {name: self.difference(system, other, [one for one in asked if one.name == name]) for name in names}

    def samples(self, system: str, one: Asked) -> list[float]:
        """1 or 0 for every example of a task, the loss of every passage in nats a token."""
        record = self.by[one][system]
        return [float(value) for value in record["each" if one.kind == "task" else "each_loss"].split()]


def share(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean share of groups of ones and zeros, with Wilson's interval.

    Of several groups it is as of one with their mean's share, which is a little wide where groups differ, and has a
    width where all answers are alike. Groups of unequal size count as so many answers as their mean is worth.
    """
    value = _mean(groups)
    worth = len(groups) ** 2 / sum(1 / len(group) for group in groups)
    return Estimate(value, *wilson(value * worth, worth), sum(map(len, groups)))


def base_of(system: str) -> str | None:
    """What a system's cost is seen beside: dense selection, of which it is a shortcut; and dense selection beside full
    attention, which has nothing beside it."""
    return {FULL: None, DENSE: FULL}.get(system, DENSE)


def _fits(one: Asked, fixed: Mapping[str, Any]) -> bool:
    return all(
        value is None or (getattr(one, name) in value if isinstance(value, tuple) else getattr(one, name) == value)
        for name, value in fixed.items()
    )


def _mean(groups: Sequence[Sequence[float]]) -> float:
    return sum(sum(group) / len(group) for group in groups) / len(groups)
