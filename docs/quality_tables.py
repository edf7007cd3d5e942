"""The tables of benchmarks/README.md: what each selection costs, from data/results, and how good the indexers are."""

from __future__ import annotations

import json

from table_text import plain_table, row

from activations.indexer_file import FOLDER
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


def indexers() -> str:
    """How good the indexers of data/indexers are, by length and layer, beside the layers' own attention as an index."""
    own = {(r["tokens"], r["layer"]): r for r in results.read("index_captures_gpu").records if r["kind"] == "selection"}
    files = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("indexer_layer_*.json"))]
    report = sorted((r for file in files for r in file["meta"]["quality"]), key=lambda r: (r["tokens"], r["layer"]))
    heads = "tokens, topk|layer|KL, nats|attention kept: best, dense, Refine|dense of the best|keys found by Refine"
    lines = [row(*heads.split("|"), "by Reuse", "neighbours share", "union of 4, in k")]
    for one in report:
        other = own.get((one["tokens"], one["layer"]), {})
        kept = ", ".join(_hundredths(one[f"mass_{name}"]) for name in ("best", "dense", "refine"))
        of_best = _beside(one["mass_dense"] / one["mass_best"], other and other["mass_dense"] / other["mass_best"])
        shares = [_beside(one[name], other.get(name)) for name in ("recall_refine", "recall_reuse")]
        shares += [_beside(one[name], other.get(name)) for name in ("adjacent_overlap", "union_over_k")]
        where = f"{one['tokens']:,}, {one['topk']:,}"
        lines.append(row(where, str(one["layer"]), f"{one['kl']:.2f}", kept, of_best, *shares))
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines) + f"\n\n<sub>{ABOUT_INDEXERS}</sub>\n"


ABOUT_INDEXERS = "Means over 512 queries in the second half of so many tokens of pydoc's topics, unseen in training; "
ABOUT_INDEXERS += "g = 4, c = 2 topk. In brackets the same with the layer's own queries and keys as index, on a GPU. "
ABOUT_INDEXERS += "DeepSeek-V3.2 at topk 2,048, by the paper on PIVOT: neighbours share .80, union of four 1.43."


def _hundredths(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _beside(value: float, other: float | None) -> str:
    return f"{_hundredths(value)} ({_hundredths(other)})" if other else _hundredths(value)


TABLES = {"quality": quality, "indexers": indexers}
