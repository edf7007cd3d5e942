"""The table of benchmarks/README.md: what each selection costs, from quality.json in data/results."""

from __future__ import annotations

from table_text import plain_table, row

from activations.quality_records import KINDS, QualityRecords, base_of
from qp_kernels import results
from widgets.quality_paper import QUOTED, RULER
from widgets.quality_words import INDEX, NAMES, verdict

NAME = "quality"
NOT_RECORDED = "Not recorded yet.\n"


def quality() -> str:
    """For each source a table: every system at the longest length, tasks and passages for each topk."""
    if NAME not in results.names():
        return NOT_RECORDED
    found = results.read(NAME)
    table, parts = QualityRecords(found.records), []
    for source in table.values("source"):
        lines = of_source(table, source)
        words = f"**Index of {INDEX.get(source, source)}**, {found.about.get('model', 'a model')}"
        parts.append(f"{words}\n\n{plain_table(lines, ABOUT, found)}")
    return "\n".join(parts) or "No task or passage counts.\n"


ABOUT = "95 % intervals. Bold: differs from dense selection (which: from full attention) on the same samples."
ABOUT += " Averages are over what every system of a column was asked; –: it was asked less."
ABOUT += f" The paper: {QUOTED}, RULER at 128K."


def of_source(table: QualityRecords, source: str) -> list[str]:
    """The lines of one table, its head first."""
    columns = []
    for topk in table.values("topk", source=source):
        for kind in KINDS:
            here = {"source": source, "topk": topk, "kind": kind}
            names = table.systems(**here)
            length = table.longest(names, **here)
            if asked := table.comparable(names, **here, length=length)[1]:
                columns.append((f"topk {topk:,} at {length:,}: {WHAT[kind]}", asked))
    systems = table.systems(source=source)
    lines = [row("system", *(head for head, _ in columns), "the paper, %")]
    for system in systems:
        label = next(found[system]["label"] for found in table.by.values() if system in found)
        cells = [cell(table, system, asked) for _, asked in columns]
        name = NAMES.get(system, label)
        name = f"Refine, {name}" if name.startswith("proxy") else name
        lines.append(row(name, *cells, f"{RULER[system]:g}" if system in RULER else ""))
    return lines


WHAT = {"task": "tasks, %", "passage": "nats lost"}


def cell(table: QualityRecords, system: str, asked: list) -> str:
    """Level and interval; bold where the difference from dense selection is shown."""
    there = [system in table.by[one] for one in asked]
    if not all(there):
        return "–"
    kind, level = asked[0].kind, table.level(system, asked)
    if kind == "task":
        text = f"{100 * level.value:.1f} [{100 * level.low:.0f}, {100 * level.high:.0f}]"
    else:
        text = f"{level.value:+.4f} [{level.low:+.4f}, {level.high:+.4f}]"
    base = base_of(system)
    if base is None or not all(base in table.by[one] for one in asked):
        return text
    shown = verdict(table.difference(system, base, asked), kind) in ("worse", "better")
    return f"**{text}**" if shown else text


TABLES = {"quality": quality}
