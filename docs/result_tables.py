"""Write the tables of recorded numbers into READMEs: `python docs/result_tables.py`.

A table stands between `<!-- results: NAME -->` and `<!-- /results -->`, and is made from data/results alone. A test
compares page and files, so that no number is copied by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import index_tables
import quality_tables
from table_text import plain_table, row, time

from qp_kernels import results

ROOT = Path(__file__).resolve().parents[1]
PAGE, INDEX_PAGE = (ROOT / "qp_kernels" / name / "README.md" for name in ("qrita", "pivot"))
QUALITY_PAGE = ROOT / "benchmarks" / "README.md"
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def main() -> None:
    for page, tables in PAGES.items():
        text = page.read_text("utf-8")
        page.write_text(render(text, tables), "utf-8")
        print(f"{page.parent.name}: {', '.join(match[2] for match in PLACE.finditer(text))}")


def render(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """The text with every table made anew."""
    return PLACE.sub(lambda match: match[1] + tables[match[2]]() + match[3], text)


def hits() -> str:
    """Hit, candidates and overflow by margin rule, from a GPU."""
    found = results.read("truncation_hits")
    by = {(r["rule"], r["order"], r["k"], r["p"], r["temperature"]): r for r in found.records}
    cases = [(k, None, 1.0) for k in (50, 1000, 5000)]
    cases += [(None, 0.9, t) for t in (0.4, 0.6, 1.0, 1.5)] + [(None, p, 1.0) for p in (0.99, 0.999)]
    fields = ("hit", "candidates", "overflow")
    lines = [row("", *(f"{rule}: {field}" for rule in ("sigma", "paper") for field in fields))]
    for k, p, temperature in cases:
        cells = []
        for rule in ("sigma", "paper"):
            record = by[rule, "k_then_p", k, p, temperature]
            cells += [share(record["hit_rate"]), count(record), share(record["overflow_rate"])]
        lines.append(row(named(k, p, temperature), *cells))
    return table(lines, found, f"medians; margin {found.about['margin']}, buffer {found.about['candidate_buffer']:,}")


def margins() -> str:
    """Hit and candidates by the size of the margin."""
    found = results.read("threshold_rules")
    by = {(r["rule"], r["k"], r["p"], r["temperature"], r["margin"]): r for r in found.records}
    sizes = sorted({key[4] for key in by})
    lines = [row("hit, candidates", *(f"margin {size:g}" for size in sizes))]
    for k, p in ((50, None), (1000, None), (5000, None), (None, 0.9)):
        records = [by["bounded", k, p, 1.0, size] for size in sizes]
        lines.append(row(named(k, p, 1.0), *(f"{share(r['hit_rate'])}, {count(r)}" for r in records)))
    return table(lines, found, "medians; margin in σ")


def minimum() -> str:
    """The Gaussian closed form for p without and with the minimum, over temperature."""
    found = results.read("threshold_rules")
    by = {(r["rule"], r["temperature"]): r for r in found.records if r["p"] == 0.9 and r["margin"] == 0.2}
    temperatures = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5)
    lines = [row("p = 0.9", *(f"T = {t:g}" for t in temperatures))]
    stds = (by["bounded", t]["std_median"] for t in temperatures)
    lines.append(row("σ / T, median", *(f"{std:.1f}" for std in stds)))
    for rule, words in (("closed", "closed form"), ("bounded", "with the minimum")):
        records = [by[rule, t] for t in temperatures]
        lines.append(row(f"{words}: hit, candidates", *(f"{share(r['hit_rate'])}, {count(r)}" for r in records)))
    return table(lines, found, "medians; margin 0.2 in σ")


PEERS = {"vllm": "vLLM", "flashinfer": "FlashInfer", "torch_topk": "torch.topk", "torch_sort": "full sort"}


def speed() -> str:
    """Every measured case: ours, the floor, what was aimed at, and the peers."""
    found = results.read("bench_qrita")
    lines = [row("case", "ours", "× floor", "aim", *PEERS.values())]
    for name, mode in dict.fromkeys((r["case"], r["mode"]) for r in found.records):
        by = {r["provider"]: r for r in found.records if (r["case"], r["mode"]) == (name, mode)}
        ours = by["qp_kernels"]
        peers = [span(by[peer]) if peer in by else "–" for peer in PEERS]
        ratio = "–" if ours["times_floor"] is None or mode == "wall" else f"{ours['times_floor']:.2f}"
        lines.append(row(case_of(ours), span(ours), ratio, aim(ours), *peers))
    return plain_table(lines, "Medians; cold L2, distinct rows. “wall” is an eager call as the host sees it.", found)


def memory() -> str:
    """Memory beyond input and result."""
    found = results.read("bench_qrita")
    cases = dict.fromkeys(r["case"] for r in found.records if r["batch"] >= 1024 and r["operation"] == "mask")
    lines = [row("MiB beyond input and result", "ours", *PEERS.values())]
    for name in cases:
        by = {r["provider"]: r for r in found.records if r["case"] == name}
        cells = [by[provider]["peak_bytes"] if provider in by else None for provider in ("qp_kernels", *PEERS)]
        lines.append(row(case_of(by["qp_kernels"]), *("–" if n is None else f"{n / 2**20:,.1f}" for n in cells)))
    return plain_table(lines, "Peak of the allocator during the first call.", found)


def ablation() -> str:
    """The paper's runs, ours beside the paper's numbers."""
    found = results.read("ablation")
    by = {(r["run"], r["rows"]): r for r in found.records}
    kinds = dict.fromkeys(rows for _, rows in by)
    lines = [row("run", *(f"{kind}: ms, × floor, rows that differ" for kind in kinds), "paper, ms (H100)")]
    for run in dict.fromkeys(run for run, _ in by):
        records = [by[run, kind] for kind in kinds]
        paper = records[0]["paper_ms"]
        cells = [f"{r['median_us'] / 1000:.3g}, {r['times_floor']:.1f}, {r['rows_differ']}" for r in records]
        lines.append(row(f"{run} {records[0]['label']}", *cells, "–" if paper is None else f"{paper:g}"))
    return plain_table(lines, "B = 1,024, V = 128,256, k = 50, p = 0.9.", found)


def case_of(record: dict) -> str:
    limits = [f"{name} = {record[name]:g}" for name in ("k", "p") if record[name] is not None]
    words = [record["operation"], record["rows"], f"{record['batch']} × {record['vocab']:,}", ", ".join(limits)]
    words += [record["dtype"]] * (record["dtype"] != "float32") + [record["mode"]] * (record["mode"] != "gpu")
    return " · ".join(words)


def span(record: dict) -> str:
    """Time in µs or ms, with how many rows are wrong where some are."""
    text = time(record["median_us"])
    return f"{text} ({record['wrong_rows']} rows wrong)" if record["wrong_rows"] else text


def aim(record: dict) -> str:
    if record["target_times_floor"] is not None:
        return f"{record['target_times_floor']:g} ×"
    return "–" if record["target_us"] is None else f"{record['target_us']:.0f} µs"


TABLES = {
    "hits": hits,
    "margins": margins,
    "minimum": minimum,
    "speed": speed,
    "memory": memory,
    "ablation": ablation,
}
PAGES = {PAGE: TABLES, INDEX_PAGE: index_tables.TABLES, QUALITY_PAGE: quality_tables.TABLES}


def table(lines: list[str], found: results.Results, more: str) -> str:
    return plain_table(lines, f"{found.about['rows']:,} rows of {found.about['model']}, {more}.", found)


def named(k: int | None, p: float | None, temperature: float) -> str:
    limit = f"k = {k:,}" if p is None else f"p = {p}"
    return limit if temperature == 1 else f"{limit}, T = {temperature}"


def share(rate: float) -> str:
    """A rate in percent, 100 % and 0 % only where it is just that."""
    percent = f"{100 * rate:.1f}"
    if percent in ("0.0", "100.0"):
        percent = f"{100 * rate:.2g}" if 0 < rate < 0.5 else "> 99.9" if rate < 1 and rate > 0 else f"{100 * rate:.0f}"
    return f"{percent} %"


def count(record: dict) -> str:
    return f"{record['candidates_median']:,.0f}"


if __name__ == "__main__":
    main()
