"""What is said of a `QualityView`: names of systems, the sentence that its intervals carry, caption, table, code."""

from __future__ import annotations

from collections.abc import Iterable

from activations.quality_records import DENSE, FEWEST, FULL, Estimate, base_of
from qp_kernels.results import Results
from widgets.quality_paper import LOSES_AT, LOSES_AT_TOPK, QUOTED, SCALES
from widgets.quality_view import ALL, LONGEST, Point, QualityView, systems_of

NAMES = {
    FULL: "full attention",
    DENSE: "dense selection",
    "reuse": "Reuse",
    "refine": "Refine",
    "refine first": "proxy first",
    "refine last": "proxy last",
    "hisa": "HISA",
    "misa": "MISA",
    "misa rerank": "MISA re-ranked",
    "index cache": "IndexCache",
    "index cache greedy": "IndexCache greedy",
    "refine + index cache": "Refine + IndexCache",
}
INDEX = {"attention": "the layers' own queries and keys", "distilled": "distilled indexers"}
NOT_RECORDED = (
    "no quality of selected keys was recorded here: make bench ARGS='quality --record --source attention distilled'"
)


def name_of(point: Point, question: str = "") -> str:
    """A system in words, as its question calls it."""
    if point.x is not None and question in ("group", "budget"):
        letter = "g" if question == "group" else "c"
        return f"{NAMES[point.series]} {letter} = {point.x:,.0f}"
    if question == "proxy" and point.system == "refine":
        return "proxy mean"
    return NAMES.get(point.system, point.system)


# Numbers


def level(estimate: Estimate, measure: str) -> str:
    """A share in %, or what is lost in nats."""
    return f"{100 * estimate.value:.1f} %" if measure == "task" else f"{estimate.value:+.4f} nats"


def interval(estimate: Estimate, measure: str, sign: int = 1) -> str:
    """The ends of an interval, in points or nats; with sign -1 that of the opposite difference."""
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if measure == "task" else f"[{low:.4f}, {high:.4f}]"


def amount(estimate: Estimate, measure: str) -> str:
    """A difference without its sign and unit, and its interval: of tasks in points, of passages in nats."""
    number = f"{100 * abs(estimate.value):.1f}" if measure == "task" else f"{abs(estimate.value):.4f}"
    return f"{number} {interval(estimate, measure, -1 if estimate.value < 0 else 1)}"


# Sentences


def sentence(view: QualityView) -> str:
    """The answer to the question in a line. It claims a difference only where an interval does."""
    if view.table is None:
        return NOT_RECORDED
    if not view.compared:
        return f"{_setting(view)}: nothing was asked of all these systems, or no task counts"
    levels = ", ".join(f"{name_of(p)} answers {level(p.level, 'task')}" for p in _scale(view))
    said = [one for one in _answers(view) if one] or ["No system of this question was asked the same"]
    return ". ".join([f"{_where(view)}: {levels}" if levels else _where(view), *said])


def _shown(view: QualityView) -> list[Point]:
    """The points that the sentence is about: over lengths those of the longest."""
    return view.at(view.place) if _over(view) else list(view.points)


def _scale(view: QualityView) -> list[Point]:
    """Full attention and dense selection, beside whose share the differences are read."""
    task = view.setting.measure == "task"
    return [p for p in _shown(view) if p.series in ("full", "dense")] if task else []


def _answers(view: QualityView) -> list[str]:
    question, shown = view.setting.question, _shown(view)
    rest = sorted((p for p in shown if p.series not in ("full", "dense")), key=lambda p: p.series == "reuse")
    named = [(p, name_of(p, question)) for p in (shown if question == "rivals" else rest) if p in rest]
    refine = [(p, name) for p, name in named if p.system == "refine"]
    if question == "proxy":
        others = [(p, name) for p, name in named if p.system != "refine"]
        return [_against(view, others, "refine", "the mean proxy"), _against(view, refine, DENSE)]
    if question != "length":
        return [_against(view, named, DENSE)]
    dense = [(p, NAMES[p.system]) for p in shown if p.system == DENSE]
    said = [_against(view, dense, FULL), _against(view, named, DENSE), _against(view, refine, "reuse")]
    return [*said, _over_lengths(view, [name for name in ("refine", "reuse") if view.at(series=name)])]


def _over_lengths(view: QualityView, systems: list[str]) -> str:
    """At which of several lengths systems are worse than dense selection."""
    if len(view.places) < 2 or not systems:
        return ""
    measure, parts = view.setting.measure, []
    for system in systems:
        shown = [p for p in view.at(series=system) if p.against and verdict(p.against, measure) == "worse"]
        at = _listed(f"{p.x:,.0f}" for p in shown) if shown else "none"
        parts.append(f"{NAMES[system]} at {at}")
    return f"Of {len(view.places)} lengths worse than dense selection: {'; '.join(parts)}"


def _against(view: QualityView, points: list[tuple[Point, str]], other: str, words: str = "") -> str:
    """How systems stand to another one, grouped by what the intervals allow to say."""
    measure, than = view.setting.measure, words or NAMES[other]
    said: dict[str, list[tuple[str, Estimate]]] = {}
    for point, name in points:
        if (difference := view.difference(point.system, other)) is not None:
            said.setdefault(verdict(difference, measure), []).append((name, difference))
    unit, parts = "points" if measure == "task" else "nats a token", []
    for key in ("worse", "better"):
        if key in said:
            listed = _listed(f"{name} by {amount(one, measure)}" for name, one in said[key])
            parts.append(f"{key.capitalize()} than {than} ({unit}): {listed}")
    if "open" in said:
        listed = _listed(f"{name} {interval(one, measure)}" for name, one in said["open"])
        includes = "the interval includes" if len(said["open"]) == 1 else "the intervals include"
        parts.append(f"No difference from {than} is shown for {listed}: {includes} 0")
    if "few" in said:
        listed = _listed(f"{name} ({one.differ} of {one.samples})" for name, one in said["few"])
        parts.append(f"Too few samples differ from {than} to tell: {listed}")
    if "same" in said:
        parts.append(f"The same as {than} on every sample: {_listed(name for name, _ in said['same'])}")
    return ". ".join(parts)


def verdict(difference: Estimate, measure: str) -> str:
    """`Estimate.verdict`, where "worse" is less of the answers, or more loss."""
    if difference.verdict not in ("more", "less"):
        return difference.verdict
    return "worse" if (difference.verdict == "less") == (measure == "task") else "better"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _over(view: QualityView) -> bool:
    return view.setting.question == "length"


def _setting(view: QualityView) -> str:
    at = view.setting
    return f"index of {INDEX.get(at.index, at.index)}, topk = {at.topk:,}"


def _where(view: QualityView) -> str:
    """What the sentence is about: length, topk, and over what."""
    lengths = sorted({one.length for one in view.compared})
    texts = f"{lengths[0]:,} tokens" if len(lengths) == 1 else f"{len(lengths)} lengths to {lengths[-1]:,} tokens"
    names = _names(view)
    task, of = view.setting.measure == "task", _shown(view)[0].level.samples
    over = names[0] if len(names) == 1 else f"{len(names)} tasks" if task else f"{len(names)} kinds"
    return f"{texts}, topk = {view.setting.topk:,}, {of:,} {'answers to' if task else 'passages of'} {over}"


def _names(view: QualityView) -> list[str]:
    return list(dict.fromkeys(one.name for one in view.compared))


# Under the figure


def caption_of(view: QualityView, found: Results | None) -> str:
    """Where the numbers come from, and what was left out of them."""
    if found is None:
        return ""
    about = found.about
    layers = f"layers {about['layers'].replace(' ', ', ')} select" if isinstance(about.get("layers"), str) else ""
    parts = [about.get("model"), layers, _setting(view), about.get("compute_dtype"), f"recorded on {found.caption}"]
    parts.append(f"mean of {_listed(_names(view))}" if len(_names(view)) > 1 else "")
    parts.append("95 % intervals, of differences on the same samples")
    if view.lacking:
        listed = _listed(NAMES.get(name, name) + (f" at {n:,}" if n else "") for name, n in view.lacking)
        parts.append(f"asked too little to be compared, and left out: {listed}")
    if gone := _left_out(view):
        parts.append(f"does not count, as full attention answers too few: {gone}")
    if view.setting.question == "budget":
        parts.append(f"the paper ({QUOTED}, topk = {LOSES_AT_TOPK:,}): c = {LOSES_AT:,} starts to lose")
    elif view.setting.question in SCALES:
        parts.append(f"the paper: {QUOTED}, {SCALES[view.setting.question]}")
    return " · ".join(str(part) for part in parts if part)


def _left_out(view: QualityView) -> str:
    at, found = view.setting, {}
    for one in view.table.left_out if view.table and at.measure == "task" else ():
        if (one.source, one.topk) == (at.index, at.topk) and at.only in (ALL, one.name):
            if _over(view) or at.length in (ALL, LONGEST, one.length):
                found.setdefault(one.name, set()).add(one.length)
    return ", ".join(f"{name} at {_listed(f'{n:,}' for n in sorted(lengths))}" for name, lengths in found.items())


def frame_rows(view: QualityView) -> list[dict]:
    """A row for each point: level and interval, difference from dense selection (of dense: from full attention)."""
    task, rows = view.setting.measure == "task", []
    unit, scale = ("answered %", 100) if task else ("nats lost", 1)
    for point in view.points:
        row = {"length": int(point.x)} if _over(view) else {}
        row |= {"system": name_of(point, view.setting.question), "setting": point.label}
        row |= {unit: scale * point.level.value, "low": scale * point.level.low, "high": scale * point.level.high}
        given, base = point.against, base_of(point.system)
        row |= {"difference from": "" if given is None else base}
        paper = None if _over(view) else point.paper  # of a longer text than any of these lengths
        for name in ("value", "low", "high"):
            key = "difference" if name == "value" else f"difference {name}"
            row[key] = None if given is None else scale * getattr(given, name)
        shown = "" if given is None else told(given, view.setting.measure)
        rows.append(row | {"shown": shown, "samples": point.level.samples, "paper %": paper})
    return rows


def told(estimate: Estimate, measure: str) -> str:
    """What a difference allows to say, in a few words."""
    words = {"same": "the same on every sample", "open": "no difference shown", "few": f"fewer than {FEWEST} differ"}
    return words.get(estimate.verdict) or verdict(estimate, measure)


def code_of(view: QualityView, lines: list[str]) -> str:
    """Python that computes what is seen: `levels`, system -> estimate; over lengths, length -> that."""
    at, over = view.setting, _over(view)
    fixed = {"source": at.index, "topk": at.topk, "kind": at.measure}
    fixed |= {} if at.only == ALL else {"name": at.only}
    lengths = sorted({one.length for one in view.compared})
    if not over and len(lengths) == 1:
        fixed["length"] = lengths[0]
    lines = [
        *lines,
        "from activations.quality_records import QualityRecords",
        "",
        "table = QualityRecords(found.records)",
    ]
    if not over:
        return "\n".join(
            [
                *lines,
                f"systems = {systems_of(view.points)!r}",
                f"asked = table.asked(systems, **{fixed!r})",
                "levels = {name: table.level(name, asked) for name in systems}",
            ]
        )
    by = {int(x): systems_of(view.at(x)) for x in view.places}
    return "\n".join(
        [
            *lines,
            f"systems = {by!r}",
            f"asked = {{n: table.asked(names, length=n, **{fixed!r}) for n, names in systems.items()}}",
            "levels = {n: {name: table.level(name, asked[n]) for name in names} for n, names in systems.items()}",
        ]
    )
