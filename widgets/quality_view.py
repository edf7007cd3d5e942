"""What `QualityExplorer` shows: systems under one question, each with its interval. No drawing, no words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from activations.quality_records import DENSE, FULL, KINDS, Asked, Estimate, QualityRecords, base_of
from activations.selection import systems as every_system
from widgets.quality_paper import SCORES

RIVALS = ("hisa", "misa", "misa rerank", "index cache", "index cache greedy", "refine + index cache")
# Question -> systems, or a pattern of their names; full attention and dense selection are in all of them.
QUESTIONS = {
    "length": "reuse|refine",
    "proxy": "refine|refine (first|last)",
    "group": r"(refine|reuse)( g\d+)?",
    "budget": r"refine|refine (least|[\d.]+x)",
    "rivals": "|".join(map(re.escape, ("reuse", "refine", *RIVALS))),
}
ROWS = ("proxy", "rivals")  # questions whose picture has a row for each system
SERIES = ("full", "dense", "reuse", "refine", "rivals")
LONGEST, ALL = "longest", "all"


class Setting(NamedTuple):
    """What is asked of the records.

    question: One of `QUESTIONS`. index: Whose: "attention" or "distilled". topk: Keys kept.
    measure: "task" (answers) or "passage" (loss). only: A task or kind of passage, or "all".
    length: In tokens, "longest" or "all"; the question "length" takes every one by itself.
    """

    question: str
    index: str
    topk: int
    measure: str
    only: str = ALL
    length: int | str = LONGEST

    @property
    def fixed(self) -> dict:
        """The fields of `Asked` that hold for the whole picture."""
        only = None if self.only == ALL else self.only
        return {"source": self.index, "topk": self.topk, "kind": self.measure, "name": only}


@dataclass(frozen=True)
class Point:
    """A system at one place of the picture.

    Attributes:
        system, label: As the record has them. series: One of `SERIES`.
        x: Its place: a length, g, c in keys; of questions with rows, its row. None of what the others are seen beside.
        level: What it answers, or loses to full attention.
        against: How it differs from dense selection, and dense selection from full attention; None where that was not
            asked, and of full attention. parts: The same for each task or kind of passage by itself.
        paper: What the paper reports for it, in %, or None.
    """

    system: str
    label: str
    series: str
    x: float | None
    level: Estimate
    against: Estimate | None
    paper: float | None
    parts: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class QualityView:
    """One picture.

    Attributes:
        points: From left to right or from the top. asked: What they were asked, place -> list.
        lacking: Systems that were asked too little to be compared, and at which length; None: at those that are shown.
        missing: Systems of the question that were asked nothing of this.
        table: What differences are taken from.
        connected: Whether the points of a system are of the same tasks or kinds, as over lengths they need not be.
        dropped: Tasks or kinds that are left out so that they are.
    """

    setting: Setting
    points: tuple[Point, ...] = ()
    asked: dict[float, list[Asked]] = field(default_factory=dict)
    lacking: tuple[tuple[str, int | None], ...] = ()
    missing: tuple[str, ...] = ()
    table: QualityRecords | None = None
    connected: bool = True
    dropped: tuple[str, ...] = ()

    def at(self, x: float | None = None, series: str | None = None) -> list[Point]:
        return [p for p in self.points if x in (None, p.x) and series in (None, p.series)]

    def find(self, system: str, x: float | None = None) -> Point | None:
        return next((p for p in self.at(x) if p.system == system), None)

    @property
    def places(self) -> list[float]:
        """The x of the points, in order."""
        return sorted({p.x for p in self.points if p.x is not None})

    @property
    def place(self) -> float | None:
        """What the sentence is about: over lengths the longest that has the most systems; None is the whole picture."""
        if self.setting.question != "length" or not self.places:
            return None
        return max(self.places, key=lambda x: (len(self.at(x)), x))

    @property
    def compared(self) -> list[Asked]:
        """What the systems of the sentence were asked."""
        return self.asked.get(self.place or 0.0, [])

    def difference(self, system: str, other: str) -> Estimate | None:
        """Between two systems of the picture, where the sentence is; None where one is missing."""
        return self.table.difference(system, other, self.compared) if self._both(system, other) else None

    def parts(self, system: str, other: str) -> dict[str, Estimate]:
        """The same for each task or kind of passage by itself; empty where one is missing."""
        return self.table.by_name(system, other, self.compared) if self._both(system, other) else {}

    def _both(self, system: str, other: str) -> bool:
        return bool(self.compared) and all({system, other} <= set(self.table.by[one]) for one in self.compared)


def look(table: QualityRecords, setting: Setting) -> QualityView:
    """The picture of a setting; empty where nothing was asked."""
    if setting.question == "length":
        return _over_lengths(table, setting)
    length = setting.length
    if length == LONGEST:
        length = table.longest(_systems(table, setting.question, setting.fixed), **setting.fixed)
    here = setting.fixed | {"length": None if length == ALL else length}
    known = _systems(table, setting.question, here)
    shown, asked = table.comparable(known, **here)
    lacking = tuple((name, None) for name in known if name not in shown)
    points = [_point(table, setting, name, asked, None) for name in shown]
    if setting.question in ROWS:
        rows = [p for p in points if p.series != "full"]
        placed = [replace(p, x=float(i)) for i, p in enumerate(rows)]
    else:
        placed = [replace(p, x=x) for p in points if (x := quantity(setting.question, p.label)) is not None]
        placed.sort(key=lambda p: p.x)
    there = systems_of(placed)
    references = [p for p in points if p.system not in there]
    missing = _missing(setting, known)
    return QualityView(setting, (*references, *placed), {0.0: asked} if asked else {}, lacking, missing, table)


def _over_lengths(table: QualityRecords, setting: Setting) -> QualityView:
    """Each length by itself: the systems that were asked anything there, on what all of them were asked; of it only the
    tasks or kinds that every length has, where there are any."""
    known, shared = {}, {}
    for length in table.values("length", **setting.fixed):
        here = setting.fixed | {"length": length}
        known[length] = _systems(table, setting.question, here)
        if asked := table.comparable(known[length], **here)[1]:
            shared[length] = asked
    names = [{one.name for one in asked} for asked in shared.values()]
    common = set.intersection(*names) if names else set()
    every = dict.fromkeys(one.name for asked in shared.values() for one in asked)
    points, asked, lacking = [], {}, []
    for length, systems in known.items():
        kept = [one for one in shared.get(length, []) if not common or one.name in common]
        shown = [name for name in systems if kept and all(name in table.by[one] for one in kept)]
        lacking += [(name, length) for name in systems if name not in shown]
        points += [_point(table, setting, name, kept, float(length)) for name in shown]
        asked |= {float(length): kept} if kept else {}
    return QualityView(
        setting,
        tuple(points),
        asked,
        tuple(lacking),
        _missing(setting, dict.fromkeys(name for systems in known.values() for name in systems)),
        table,
        connected=bool(common) or len(shared) < 2,
        dropped=tuple(name for name in every if common and name not in common),
    )


def _systems(table: QualityRecords, question: str, here: dict) -> list[str]:
    """Systems of a question that were asked anything of this, in the order of the picture."""
    found = table.systems(**here)
    wanted = [name for name in (FULL, DENSE) if name in found]
    fitting = [name for name in found if re.fullmatch(QUESTIONS[question], name)]
    if question in ROWS:
        order = ("reuse", "refine", "refine first", "refine last", *RIVALS)
        fitting.sort(key=order.index)
    # Loss on passages is told as what is lost to full attention.
    return wanted + fitting if here["kind"] != "passage" or FULL in found else []


def _missing(setting: Setting, known: Iterable[str]) -> tuple[str, ...]:
    """Systems of the question that are not known, in the order of the record's benchmark."""
    fitting = [name for name in selections(setting.topk) if re.fullmatch(QUESTIONS[setting.question], name)]
    return tuple(name for name in (FULL, DENSE, *fitting) if name not in known)


def selections(topk: int) -> dict:
    """Every system that `benchmarks/quality.py` asks, name -> Selection; patterns of layers may be others there."""
    return every_system(max(topk, 1), 3, greedy="FSF")


def _point(table: QualityRecords, setting: Setting, system: str, asked: list[Asked], x: float | None) -> Point:
    series = {FULL: "full", DENSE: "dense"}.get(system)
    if series is None:
        series = "rivals" if system in RIVALS else system.split()[0]
    base = base_of(system)
    known = base is not None and all(base in table.by[one] for one in asked)
    against = table.difference(system, base, asked) if known else None
    label = table.by[asked[0]][system]["label"]
    parts = table.by_name(system, base, asked) if known else {}
    paper = SCORES.get(setting.question, {}).get(system)
    return Point(system, label, series, x, table.level(system, asked), against, paper, parts)


def quantity(question: str, label: str) -> float | None:
    """g or c of Reuse or Refine with this label, by what the question is of; None where there is none."""
    letter = {"group": "g", "budget": "c"}.get(question)
    found = re.fullmatch(rf"(?:reuse|refine)\b.*? {letter}(\d+)\b.*", label) if letter else None
    return float(found[1]) if found else None


def first_setting(
    table: QualityRecords | None, question: str, index: str | None, topk: int | None, measure: str | None
) -> Setting:
    """What a panel starts with; None is the first recorded, of topk the nearest to a 64th of the longest text, as the
    2,048 of 128K in the paper.

    Raises:
        ValueError: a question that there is not, or what was not recorded.
    """
    question = _one_of("question", question, list(QUESTIONS))
    if table is None or not table.by:
        return Setting(question, index or "", topk or 0, measure or "task")
    index = _one_of("index", index, table.values("source"))
    longest = table.values("length", source=index)[-1]
    topks = sorted(table.values("topk", source=index), key=lambda one: abs(one - longest / 64))
    topk = _one_of("topk", topk, topks)
    recorded = table.values("kind", source=index, topk=topk)
    return Setting(question, index, topk, _one_of("measure", measure, [kind for kind in KINDS if kind in recorded]))


def _one_of(name: str, value, known: list):
    """The value, where None is the first that is known."""
    if value is not None and value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return known[0] if value is None else value


def systems_of(points: Iterable[Point]) -> list[str]:
    return list(dict.fromkeys(p.system for p in points))
