"""Write the tables of recorded numbers into qp_kernels/qrita/README.md: `python docs/result_tables.py`.

A table stands between `<!-- results: NAME -->` and `<!-- /results -->`, and is made from data/results alone. A test
compares page and files, so that no number is copied by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from qp_kernels import results

PAGE = Path(__file__).resolve().parents[1] / "qp_kernels" / "qrita" / "README.md"
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def main() -> None:
    text = PAGE.read_text("utf-8")
    PAGE.write_text(render(text), "utf-8")
    print(f"{PAGE.name}: {', '.join(match[2] for match in PLACE.finditer(text))}")


def render(text: str) -> str:
    """The text with every table made anew."""
    return PLACE.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


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


TABLES = {"hits": hits, "margins": margins, "minimum": minimum}


def table(lines: list[str], found: results.Results, more: str) -> str:
    head, *body = lines
    rule = "|" + "---|" * (head.count("|") - 1)
    about = f"{found.about['rows']:,} rows of {found.about['model']}, {more}. {found.caption}."
    return "\n".join([head, rule, *body, "", f"<sub>{about}</sub>", ""])


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


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
