"""Tables of qp_kernels/pivot/README.md, from bench_index.json and captured_index.json in data/results."""

from __future__ import annotations

from table_text import plain_table, row, time

from qp_kernels import results
from qp_kernels.index_metrics import speed_up

NAME = "bench_index"
PROVIDERS = {
    "dense": "dense",
    "reuse": "PIVOT-Reuse",
    "refine": "PIVOT-Refine",
    "hisa": "HISA",
    "misa": "MISA",
    "misa_rerank": "MISA, re-ranked",
}
NOT_MEASURED = "Not measured in the recorded run.\n"
QUOTED = "arXiv 2607.24593, on an H20 over its own dense kernel"


def index_operator() -> str:
    """Prefill and decode: every selection, its floor, dense selection, what was aimed at, and memory."""
    found = results.read(NAME)
    lines = [row("case", "selection", "time", "× floor", "× dense", "aim", "MiB")]
    for r in found.records:
        if r["kind"] in ("prefill", "decode") and r["provider"] in PROVIDERS:
            cells = [number(r["times_floor"]), number(r["over_dense"]), aim(r), mib(r["peak_bytes"])]
            shown = time(r["median_us"]) + " †" * bool(r["late"])
            lines.append(row(case_of(r), PROVIDERS[r["provider"]], shown, *cells))
    words = "Medians, cold L2; decode by CUDA graph. Floor: products at the rate of a matrix product measured in the"
    words += f" same run, or reading the keys once. {shape(found)}. MiB beyond inputs and result."
    words += " † The GPU waited for the host: its own time is less." * any("†" in line for line in lines)
    return plain_table(lines, words, found)


def index_parts() -> str:
    """The selection alone and the scan alone, beside reading once and a matrix product."""
    found, about = results.read(NAME), results.read(NAME).about
    lines = [row("part", "time", "aim", "torch.topk", "limit")]
    for name in dict.fromkeys(r["case"] for r in found.records if r["kind"] in ("select", "scan")):
        by = {r["provider"]: r for r in found.records if r["case"] == name}
        ours = by.get("qp_kernels")
        if ours is None:
            continue
        if ours["kind"] == "select":
            limit = f"read once {time(by['floor_read']['median_us'])}"
            cells = [time(ours["median_us"]), aim(ours), time(by["torch_topk"]["median_us"]), limit]
        else:
            rate = about.get(f"matmul_{ours['dtype']}_tflops")
            limit = "–" if rate is None else f"matrix product {rate:.0f} TFLOP/s"
            cells = [f"{time(ours['median_us'])}, {ours['tflops']:.0f} TFLOP/s", aim(ours), "–", limit]
        lines.append(row(case_of(ours), *cells))
    return plain_table(lines, f"Medians, cold L2. {shape(found)}.", found)


def index_chunks() -> str:
    """Refine over dense in prefill chunks, with the default and the measured guard, beside the paper's curve."""
    found, r = results.read(NAME), results.read(NAME).about["r"]
    chunks = [one for one in found.records if one["kind"] == "chunk"]
    if not chunks:
        return NOT_MEASURED
    lines = [row("keys", "dense", "Refine", "× dense", "measured guard: × dense", "cost model", "paper", "MiB: both")]
    for name in dict.fromkeys(one["case"] for one in chunks):
        by = {one["provider"]: one for one in chunks if one["case"] == name}
        dense, refine, measured = by["dense"], by["refine"], by.get("refine_measured")
        model = None
        if r is not None and refine["L"] - refine["T"] >= refine["budget"]:
            mean = refine["L"] - refine["T"] / 2
            model = speed_up(mean, group=refine["group"], budget=refine["budget"], r=r)
        cells = [time(dense["median_us"]), time(refine["median_us"]), number(refine["over_dense"])]
        cells += [number(measured and measured["over_dense"]), number(model), number(refine["paper_over_dense"])]
        lines.append(row(f"{dense['L']:,}", *cells, f"{mib(dense['peak_bytes'])}, {mib(refine['peak_bytes'])}"))
    guard, first = found.about["guard_measured"], chunks[0]
    words = f"Medians; the last {first['T']:,} positions, {first['dtype']}. {shape(found)}"
    words += "" if guard is None else f"; measured guard {guard:,}"
    words += "" if r is None else f"; cost model with the fitted r = {r:.2f}"
    return plain_table(lines, f"{words}. The paper's column is quoted from {QUOTED}.", found)


def index_crossover() -> str:
    """The lengths behind the measured guard."""
    found = results.read(NAME)
    points = [one for one in found.records if one["kind"].startswith("crossover")]
    if not points:
        return NOT_MEASURED
    lines = [row("measured", "keys", "guard", "dense", "Refine", "× dense")]
    for dense, refine in zip(points[::2], points[1::2], strict=True):
        kind = dense["kind"].removeprefix("crossover ")
        cells = [time(dense["median_us"]), time(refine["median_us"]), number(refine["over_dense"])]
        lines.append(row(kind, f"{dense['L']:,}", "–" if kind == "level" else f"{dense['guard']:,}", *cells))
    words = "level: every group's first member has so many keys; chunk: consecutive rows up to so many, by that guard."
    return plain_table(lines, words, found)


CAPTURED = {
    "read once": ("select", "floor_read"),
    "top-k": ("select", "qp_kernels"),
    "torch.topk": ("select", "torch_topk"),
    "scan": ("scan", "qp_kernels"),
    **{PROVIDERS[name].removeprefix("PIVOT-"): ("prefill", name) for name in ("dense", "reuse", "refine")},
    **{f"decode: {PROVIDERS[name].removeprefix('PIVOT-')}": ("decode", name) for name in ("dense", "reuse", "refine")},
}


def index_captured() -> str:
    """The kernels on what the layers of a model ask, in each dtype, beside normal numbers of the same shapes."""
    found = results.read("captured_index")
    columns = {
        name: key for name, key in CAPTURED.items() if any((r["kind"], r["provider"]) == key for r in found.records)
    }
    lines = [row("numbers", "dtype", "zeros", *columns)]
    layers = sorted({r["layer"] for r in found.records}, key=lambda layer: (layer is None, layer))
    dtypes = dict.fromkeys(r["dtype"] for r in found.records if r["kind"] == "prefill")
    first = next(iter(dtypes))
    for dtype in dtypes:
        for layer in layers:
            # The scores alone are float32, of queries and keys in the first dtype.
            mine = [r for r in found.records if r["layer"] == layer]
            mine = [r for r in mine if (first if r["kind"] == "select" else r["dtype"]) == dtype]
            if not mine:
                continue
            by = {(r["kind"], r["provider"]): time(r["median_us"]) + " †" * bool(r["late"]) for r in mine}
            zeros = mine[0]["zero_scores"]
            cells = ["–" if zeros is None else f"{zeros:.1%}", *(by.get(key, "–") for key in columns.values())]
            lines.append(row("normal" if layer is None else f"layer {layer}", dtype, *cells))
    r = next(r for r in found.records if r["kind"] == "prefill")
    words = f"Medians, cold L2; the last {r['T']:,} of {r['L']:,} positions"
    words += ", in decode the last group by CUDA graph" * ("decode: dense" in columns)
    words += f". {shape(found)}. {found.about['model']}: queries and keys of its attention."
    words += " † The GPU waited for the host: its own time is less." * any("†" in line for line in lines)
    return plain_table(lines, words, found)


def case_of(record: dict) -> str:
    batch = f"{record['batch']} × " if record["batch"] > 1 else ""
    kind = record["kind"] if record["scores"] is None else f"top-{record['topk']}, {record['scores'].replace('_', ' ')}"
    return f"{kind} · {batch}{record['T']:,} × {record['L']:,} · {record['dtype']}"


def shape(found: results.Results) -> str:
    r = next(r for r in found.records if r["kind"] not in ("select", "scan"))
    return f"H = {r['heads']}, D = {r['dim']}, topk = {r['topk']:,}, c = {r['budget']:,}, g = {r['group']}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def mib(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.1f}"


def aim(record: dict) -> str:
    if record["target_us"] is not None:
        return f"≤ {time(record['target_us'])}"
    if record["target_tflops"] is not None:
        return f"≥ {record['target_tflops']:g} TFLOP/s"
    return "–" if record["target_over_dense"] is None else f"≥ {record['target_over_dense']:g} × dense"


TABLES = {one.__name__: one for one in (index_operator, index_parts, index_chunks, index_crossover, index_captured)}
