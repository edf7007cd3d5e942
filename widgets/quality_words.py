"""What is said of a `QualityView`: names of systems, the sentence that its intervals carry, caption."""

from __future__ import annotations

from collections.abc import Iterable

from activations.quality_records import DENSE, FEWEST, FULL, KINDS, Estimate, QualityRecords
from qp_kernels.results import Results
from widgets.quality_paper import LOSES_AT, LOSES_AT_TOPK, QUOTED, SCALES
from widgets.quality_view import ALL, LONGEST, Point, QualityView, quantity, selections

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


def system_name(system: str) -> str:
    """A system in words that need no question."""
    name = NAMES.get(system, system[:1].upper() + system[1:])
    return f"Refine ({name})" if name.startswith("proxy") else name


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
    said = [f"{_where(view)}: {levels}" if levels else _where(view), *said]
    return ". ".join([*said, f"Not asked, or too little to be compared: {gone}"] if (gone := _absent(view)) else said)


def _absent(view: QualityView) -> str:
    """Systems of the question that the sentence says nothing of, as the record holds nothing, or too little."""
    at, gone = view.setting, {*view.missing, *(name for name, n in view.lacking if n in (None, view.place))}
    parts: dict[str, list[float]] = {}
    for name, selection in selections(at.topk).items():
        if name in gone and (value := quantity(at.question, selection.label)) is not None:
            letter = "g" if at.question == "group" else "c"
            parts.setdefault(f"{NAMES[selection.system]} {letter} = ", []).append(value)
        elif name in gone:
            parts[NAMES[name]] = []
    listed = [key + (_listed(f"{n:,.0f}" for n in sorted(found)) if found else "") for key, found in parts.items()]
    return _listed(listed) if listed else ""


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
    """At which of several lengths systems are shown to be worse than dense selection; where not, it is not denied."""
    if len(view.places) < 2 or not systems:
        return ""
    measure, at, open_at_all = view.setting.measure, [], []
    for system in systems:
        shown = [p for p in view.at(series=system) if p.against and verdict(p.against, measure) == "worse"]
        if shown:
            at.append(f"{NAMES[system]} at {_listed(f'{p.x:,.0f}' for p in shown)}")
        else:
            open_at_all.append(NAMES[system])
    mean = " on average" if len(_names(view)) > 1 else ""
    parts = [f"shown to be worse than dense selection{mean}: {'; '.join(at)}"] if at else []
    if open_at_all:
        parts.append(f"no loss to dense selection is shown{mean} at any for {_listed(open_at_all)}")
    return f"Of {len(view.places)} lengths {'; '.join(parts)}"


def _against(view: QualityView, points: list[tuple[Point, str]], other: str, words: str = "") -> str:
    """How systems stand to another one, grouped by what the intervals allow to say."""
    measure, than = view.setting.measure, words or NAMES[other]
    said: dict[str, list[tuple[str, Estimate]]] = {}
    unit, parts = "points" if measure == "task" else "nats a token", []
    for point, name in points:
        if (difference := view.difference(point.system, other)) is None:
            continue
        if differing := split(view.parts(point.system, other), measure):
            mean = told(difference, {}, measure)
            mean += f" by {amount(difference, measure)} {unit}" if mean in ("worse", "better") else ""
            what = "task" if measure == "task" else "kind of passage"
            parts.append(f"Against {than} it depends on the {what}: {name} is {differing} (mean: {mean})")
        else:
            said.setdefault(verdict(difference, measure), []).append((name, difference))
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
        same = f"Right on the same samples as {than}" if measure == "task" else f"The same as {than} on every sample"
        parts.append(f"{same}: {_listed(name for name, _ in said['same'])}")
    return ". ".join(parts)


def split(parts: dict[str, Estimate], measure: str) -> str:
    """Where tasks or kinds of passage contradict each other, so that their mean says little: which says what."""
    found = {key: [name for name, one in parts.items() if verdict(one, measure) == key] for key in ("better", "worse")}
    if not all(found.values()):
        return ""
    return " and ".join(f"{key} on {_listed(names)}" for key, names in found.items())


def told(estimate: Estimate, parts: dict[str, Estimate], measure: str) -> str:
    """What a difference allows to say, in a few words; parts: the same for each task or kind, `Point.parts`."""
    same = "right on the same samples" if measure == "task" else "the same on every sample"
    words = {"same": same, "open": "no difference shown", "few": f"fewer than {FEWEST} differ"}
    return split(parts, measure) or words.get(estimate.verdict) or verdict(estimate, measure)


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
    parts.append(_of_what(view))
    parts.append("95 % intervals: Wilson's of shares, Student's t of differences on the same samples")
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


def _of_what(view: QualityView) -> str:
    """Which tasks or kinds the points are means of."""
    one, what = ("task", "tasks") if view.setting.measure == "task" else ("kind of passage", "kinds of passage")
    if view.connected:
        what = what if len(_names(view)) > 1 else one
        mean = f"mean of {_listed(_names(view))}" if len(_names(view)) > 1 else "".join(_names(view))
        only = f", the only {what} that every length has" if view.dropped else ""
        return f"{mean}{only}" if only or len(_names(view)) > 1 else ""
    each = [f"{n:,.0f}: {_listed(dict.fromkeys(one.name for one in view.asked[n]))}" for n in view.places]
    return f"no line, as each length has other {what}: {'; '.join(each)}"


def _left_out(view: QualityView) -> str:
    at, found = view.setting, {}
    for one in view.table.left_out if view.table and at.measure == "task" else ():
        if (one.source, one.topk) == (at.index, at.topk) and at.only in (ALL, one.name):
            if _over(view) or at.length in (ALL, LONGEST, one.length):
                found.setdefault(one.name, set()).add(one.length)
    return ", ".join(f"{name} at {_listed(f'{n:,}' for n in sorted(lengths))}" for name, lengths in found.items())


def contents(table: QualityRecords) -> str:
    """What a record holds: samples, topk, lengths, tasks, passages and systems, and whose queries and keys selected."""
    counts = sorted({len(one["each_loss"].split()) for found in table.by.values() for one in found.values()})
    samples = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    parts = [f"{samples} samples each, topk {_listed(f'{n:,}' for n in table.values('topk'))}"]
    parts.append(f"{_listed(f'{n:,}' for n in table.values('length'))} tokens")
    for kind in KINDS:
        if names := table.values("name", kind=kind):
            parts.append(f"{'tasks' if kind == 'task' else 'passages'}: {_listed(names)}")
    parts.append(f"index of {_listed(INDEX.get(one, one) for one in table.values('source'))}")
    parts.append(f"systems: {_listed(system_name(name) for name in table.systems())}")
    return "; ".join(parts)
