"""What `QualityExplorer` hands over: rows of a frame, and Python that computes what is seen."""

from __future__ import annotations

from activations.quality_records import base_of
from widgets.quality_view import ALL, QualityView, systems_of
from widgets.quality_words import name_of, told


def frame_rows(view: QualityView) -> list[dict]:
    """A row for each point: level and interval, difference from dense selection (of dense: from full attention)."""
    task, over, rows = view.setting.measure == "task", view.setting.question == "length", []
    unit, scale = ("answered %", 100) if task else ("nats lost", 1)
    for point in view.points:
        row = {"length": int(point.x)} if over else {}
        row |= {"system": name_of(point, view.setting.question), "setting": point.label}
        row |= {unit: scale * point.level.value, "low": scale * point.level.low, "high": scale * point.level.high}
        given, base = point.against, base_of(point.system)
        row |= {"difference from": "" if given is None else base}
        paper = None if over else point.paper  # of a longer text than any of these lengths
        for name in ("value", "low", "high"):
            key = "difference" if name == "value" else f"difference {name}"
            row[key] = None if given is None else scale * getattr(given, name)
        shown = "" if given is None else told(given, point.parts, view.setting.measure)
        rows.append(row | {"shown": shown, "samples": point.level.samples, "paper %": paper})
    return rows


def code_of(view: QualityView, lines: list[str]) -> str:
    """Python that computes what is seen: `levels`, system -> estimate; over lengths, length -> that."""
    at, over = view.setting, view.setting.question == "length"
    fixed = {"source": at.index, "topk": at.topk, "kind": at.measure}
    names = tuple(dict.fromkeys(one.name for one in view.compared))
    fixed |= {"name": names if view.dropped else at.only} if view.dropped or at.only != ALL else {}
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
