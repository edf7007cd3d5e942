"""Timings by spot: what was recorded, and what is measured now. Flat records as `qp_kernels.bench` gives them.

A spot is a case (what is chosen, at which size) by one clock; its records hold one way each, and the floors of the same
run. No drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from qp_kernels import results
from qp_kernels.bench import Case
from widgets.recorded_results import open_results, recorded_or_none, short

OURS = "qp_kernels"
FLOORS = ("floor_read", "floor_read_write")
# Quantities that a line can run over.
SWEPT = ("batch", "vocab", "k", "p")
RECORDED = "bench_qrita"


class Spot(NamedTuple):
    """A `Case` by a clock: "gpu" is the time on the GPU (by events, or of a graph's replay), "wall" the host's."""

    rows: str
    batch: int
    vocab: int
    k: int | None
    p: float | None
    dtype: str = "float32"
    operation: str = "mask"
    clock: str = "gpu"

    @property
    def case(self) -> Case:
        return Case(*self[:-1])


FIELDS = Spot._fields


def spot_of(record: Mapping) -> Spot:
    return Spot(*(record[name] for name in Case._fields), "wall" if record["mode"] == "wall" else "gpu")


def quantity(name: str, value) -> float:
    """A field of a case as a number that orders it: k off keeps all, p off is 1."""
    if value is None:
        return math.inf if name == "k" else 1.0
    return float(value)


@dataclass
class Timings:
    """Records of one origin.

    Attributes:
        caption: Where they come from, for the line under the figure. device: In a word or two.
        recorded: Whether they were read from a file.
        by_spot: Spot -> provider (or floor) -> record.
        code: Lines of Python that define `records` of all cases; empty where they are measured.
    """

    caption: str
    device: str
    recorded: bool
    by_spot: dict[Spot, dict[str, dict]] = field(default_factory=dict)
    code: list[str] = field(default_factory=list)

    def add(self, records: Iterable[Mapping]) -> None:
        """Take records in; a newer one of the same spot and provider replaces an older one."""
        for record in records:
            self.by_spot.setdefault(spot_of(record), {})[record["provider"]] = dict(record)

    def notes(self, spot: Spot) -> list[str]:
        """What else there is to say of a spot, as who was left out."""
        return []

    @property
    def providers(self) -> list[str]:
        """Ways that any spot holds, in the order of the records."""
        return list(dict.fromkeys(name for found in self.by_spot.values() for name in found if name not in FLOORS))

    def at(self, spot: Spot) -> dict[str, dict]:
        """The records of a spot; its other floor is taken from a spot of the same size and type, where there is one."""
        found = dict(self.by_spot.get(spot, {}))
        same = ("batch", "vocab", "dtype", "clock")
        for floor in FLOORS if found else ():
            for other, records in self.by_spot.items() if floor not in found else ():
                if floor in records and all(getattr(other, name) == getattr(spot, name) for name in same):
                    found[floor] = records[floor]
                    break
        return found

    @property
    def top_gbps(self) -> float | None:
        """The best bandwidth that any floor reached."""
        known = [found[floor].get("gbps") for found in self.by_spot.values() for floor in FLOORS if floor in found]
        return max(filter(None, known), default=None)

    def values(self, name: str) -> list:
        """The values of a field, in order; strings in the order of the records."""
        found = list(dict.fromkeys(getattr(spot, name) for spot in self.by_spot))
        return sorted(found, key=lambda value: quantity(name, value)) if name in SWEPT else found

    def nearest(self, wanted: Spot, pinned: str | None) -> Spot:
        """The spot there is that has `pinned` as wanted, or nearest to it, and of the rest as much as can be."""

        def distance(spot: Spot):
            apart = {name: _apart(name, getattr(spot, name), getattr(wanted, name)) for name in FIELDS}
            first = apart.pop(pinned) if pinned else 0.0
            return first, sum(gap > 0 for gap in apart.values()), sum(apart.values())

        return min(self.by_spot, key=distance)

    def along(self, spot: Spot, name: str) -> list[Spot]:
        """The spots that differ from `spot` in one field at most, in order of that field."""
        line = [other for other in self.by_spot if other._replace(**{name: getattr(spot, name)}) == spot]
        return sorted(line, key=lambda other: quantity(name, getattr(other, name)))


def _apart(name: str, a, b) -> float:
    """How far two values of a field are from each other; every switch between on and off is far."""
    if a == b:
        return 0.0
    if name not in SWEPT or a is None or b is None:
        return 100.0
    if name == "p":
        a, b = (-math.log10(max(1 - x, 1e-9)) for x in (a, b))
        return abs(a - b)
    return abs(math.log10(max(a, 0.5)) - math.log10(max(b, 0.5)))


def open_timings(source: results.Results | str | Path) -> Timings:
    """Recorded timings.

    Args:
        source: Results, a name in data/results, the path of a results file, or of a folder that holds `RECORDED`.
    Raises:
        TypeError, ValueError, FileNotFoundError: what was given and what is accepted.
    """
    found, code = open_results(source, RECORDED, "timings")
    missing = {*Case._fields, "provider", "mode", "median_us"} - set(found.records[0])
    if missing:
        raise ValueError(f"the results {found.name!r} hold no timings: they lack {', '.join(sorted(missing))}")
    timings = Timings(
        f"recorded on {found.caption}", short(found.device), True, code=[*code, "records = found.records"]
    )
    timings.add(found.records)
    return timings


def recorded_timings(source: results.Results | str | Path | None) -> Timings | None:
    """Recorded timings of a source; where it names none (None, "live"), those of the repository, if there are any."""
    if source is None or (isinstance(source, str) and source == "live"):
        source = recorded_or_none(RECORDED)
    return None if source is None else open_timings(source)
