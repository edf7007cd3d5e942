"""The tables of benchmarks/README.md: what each selection costs, from data/results, and how good the indexers are."""

from __future__ import annotations

import json

from table_text import row

from activations.indexer_file import FOLDER
from activations.quality_records import FULL, QualityRecords, base_of
from qp_kernels import results
from widgets.quality_paper import QUOTED, RULER
from widgets.quality_words import INDEX, system_name, verdict

NAME = "quality"
NOT_RECORDED = "Not recorded yet.\n"


def quality() -> str:
    """For each source and topk a table: every system, all tasks together and each kind of passage by itself."""
    if NAME not in results.names():
        return NOT_RECORDED
    found = results.read(NAME)
    table, parts = QualityRecords(found.records), []
    for source in table.values("source"):
        for topk in table.values("topk", source=source):
            at, lines = of_setting(table, source=source, topk=topk)
            words = (
                f"**Index of {INDEX.get(source, source)}, topk {topk:,}{at}**, {found.about.get('model', 'a model')}"
            )
            parts.append("\n".join([words, "", *lines, ""]))
    if not parts:
        return "No task or passage counts.\n"
    return "\n".join([*parts, f"<sub>{ABOUT} {found.caption}.</sub>\n"])


ABOUT = "95 % intervals. Tasks: share answered, averaged; passages: nats a token lost to full attention."
ABOUT += " Bold: differs from dense selection (which: from full attention) on the same samples."
ABOUT += " A column is over what every system in it was asked; –: it was asked less."
ABOUT += f" The paper: {QUOTED}, RULER at 128K."


def of_setting(table: QualityRecords, **here) -> tuple[str, list[str]]:
    """The length of the texts, where all columns share it, and the lines of one table, its head first.

    Kinds of passage may differ in sign, so each has a column: their mean would hide it.
    """
    columns = []
    for kind, name in [("task", None), *(("passage", name) for name in table.values("name", kind="passage", **here))]:
        fixed = {**here, "kind": kind, "name": name}
        names = table.systems(**fixed)
        length = table.longest(names, **fixed)
        if asked := table.comparable(names, **fixed, length=length)[1]:
            columns.append(("tasks, %" if name is None else f"{name}, nats", asked))
    lengths = [f" at {asked[0].length:,}" for _, asked in columns]
    shared = f"{lengths[0]} tokens" if len(set(lengths)) == 1 else ""
    heads = [head + ("" if shared else at) for (head, _), at in zip(columns, lengths, strict=True)]
    lines = [row("system", *heads, "the paper, %")]
    lines.append("|" + "---|" * (len(columns) + 2))
    for system in table.systems(**here):
        cells = [cell(table, system, asked) for _, asked in columns]
        lines.append(row(system_name(system), *cells, f"{RULER[system]:g}" if system in RULER else ""))
    return shared, lines


def cell(table: QualityRecords, system: str, asked: list) -> str:
    """Level and interval; bold where the difference from dense selection is shown."""
    there = [system in table.by[one] for one in asked]
    if not all(there):
        return "–"
    kind, level = asked[0].kind, table.level(system, asked)
    if kind == "passage" and system == FULL:
        return "0"
    if kind == "task":
        text = f"{100 * level.value:.1f} [{100 * level.low:.0f}, {100 * level.high:.0f}]"
    else:
        text = f"{level.value:+.3f} [{level.low:+.3f}, {level.high:+.3f}]"
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
