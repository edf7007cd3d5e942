"""The paper's ablation repeated: its runs A to J (`qp_kernels/qrita/ablation.py`) and `top_k_top_p` on the same rows.

    python benchmarks/ablation.py --record                       on a GPU: data/results/ablation.json
    python benchmarks/ablation.py --no-live                      Gaussian rows only; --logits FILE: rows of your own
    python benchmarks/ablation.py --small                        a look at it in Triton's interpreter, without a GPU

B = 1,024, V = 128,256, k = 50, p = .9. `top_k_top_p` is checked against sorted rows first (exit status 1 where it is
wrong), then every run's rows are compared with it bit by bit, and only then it is timed, with a cold cache. k, p and
the table of thresholds lie on the device before a run is timed, as in the released kernel; a run that sorts looks from
the host which rows missed, which is part of its time. `hits` is the share of rows whose candidates suffice.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qp_kernels import backend, results, timing
from qp_kernels.bench import Case, WrongResult, make, read
from qp_kernels.bench.check import wrong_rows
from qp_kernels.bench.floors import fastest
from qp_kernels.qrita import ablation, checks, top_k_top_p, truncation

OURS = "ours"
CASE = Case("gauss", 1_024, 128_256, 50, 0.9)
SMALL = Case("gauss", 2, 601, 20, 0.9)
LIVE_ROWS = 1_016
# Of the paper, on an H100; it has no H.
PAPER_MS = {"A": 0.919, "B": 1.354, "C": 1.308, "D": 5.373, "E": 4.931, "F": 1.281, "G": 7.773, "I": 2.099, "J": 16.487}
REPETITIONS, FEWEST, TRIAL = 30, 7, 3
# What the samples of a run may take; so slow runs have fewer.
BUDGET_US = 0.4e6
ROWS_AT_ONCE = 128


class Prepared(ablation._Plan):
    """A run's plan whose thresholds are computed once, before it is timed."""

    @functools.cached_property
    def known(self) -> dict[str, Any]:
        return super().threshold()

    def threshold(self) -> dict[str, Any]:
        return self.known


class Run(NamedTuple):
    """A run on rows: a call that writes `out`, and how many of the rows hit, None where nothing is truncated."""

    call: Callable[[], Any]
    out: Tensor
    hits: float | None


def main() -> int:
    options = parser().parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if not options.small:
            print("no CUDA device: --small runs tiny rows in Triton's interpreter", file=sys.stderr)
            return 2
        os.environ.setdefault("TRITON_INTERPRET", "1")
    start = time.monotonic()
    case, records = (SMALL if options.small else CASE), []
    live, about = live_rows(options, device)
    timing.wake(device)
    for kind in ("gauss", "live"):
        if kind == "gauss" or live is not None:
            of_kind = case._replace(rows=kind)
            try:
                records += ablate(of_kind, make(of_kind, device, live), options.runs)
            except WrongResult as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
    print(f"\n{table(records)}\n\n{time.monotonic() - start:.0f} s")
    if options.record:
        command = "python benchmarks/ablation.py --record" + " --small" * options.small
        about |= {"backend": backend.resolve(device).name, "live_rows_distinct": 0 if live is None else len(live)}
        path = results.write("ablation", records, device=device, command=command, about=about, folder=options.folder)
        print(f"recorded in {path.name}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = top.add_mutually_exclusive_group()
    rows.add_argument("--logits", metavar="FILE", help="rows of a model: .npy, .npz or .safetensors, [R, V]")
    rows.add_argument("--no-live", action="store_true", help="Gaussian rows only")
    top.add_argument("--rows", type=int, default=LIVE_ROWS, help="rows of the default model")
    top.add_argument("--runs", nargs="+", choices=[*ablation.RUNS, OURS], default=[*ablation.RUNS, OURS], metavar="RUN")
    top.add_argument("--small", action="store_true", help="tiny rows; live ones only with --logits")
    top.add_argument("--record", action="store_true")
    top.add_argument("--folder", help="of the file instead of data/results")
    return top


def live_rows(options: argparse.Namespace, device: str) -> tuple[Tensor | None, dict[str, Any]]:
    """Rows of a model with at least V columns, and fields that say which; None where none are wanted."""
    if options.logits:
        return read(options.logits), {"live_rows": os.path.basename(options.logits)}
    if options.no_live or options.small:
        return None, {}
    import _live

    found = _live.capture(options.rows, device)
    live = torch.cat([logits[:, : CASE.vocab] for _, logits in _live.chunks(found, "float32", device)])
    print(f"{found!r}", flush=True)
    return live, {key: found.meta[key] for key in ("model", "text", "compute_dtype", "head_dtype")}


@torch.no_grad()
def ablate(
    case: Case,
    rows: Tensor,
    runs: Iterable[str] = (*ablation.RUNS, OURS),
    repetitions: int = REPETITIONS,
    say: Callable[[str], Any] | None = None,
) -> list[dict[str, Any]]:
    """Compare and time runs on rows [B, V].

    Args:
        repetitions: Most samples of each.
        say: Called with a line for each; None prints it.
    Returns:
        One record for each run, as `widgets.timing_ablation` reads them.
    Raises:
        WrongResult: `top_k_top_p` keeps a wrong set on these rows, so nothing is timed.
    """
    say = say or _print
    rows = rows[: case.batch].contiguous()
    want = top_k_top_p(rows, case.k, case.p)
    if wrong := wrong_rows("mask", want, rows, case.k, case.p):
        raise WrongResult(f"top_k_top_p keeps a wrong set in {wrong} of {len(rows)} {case.rows} rows")
    with backend.current(rows.device):
        floor = fastest("floor_read_write", rows, lambda way: _timed(lambda: way(rows), rows, repetitions))[1]
        say(f"{case.rows}: reading and writing the matrix once takes {floor.median_us:,.1f} us")
        records = []
        for name in runs:
            start = time.monotonic()
            run = ours(case, rows) if name == OURS else prepared(name, case, rows)
            run.out.fill_(float("nan"))
            run.call()
            differ = rows_that_differ(run.out, want)
            records.append(_record(case, name, _timed(run.call, rows, repetitions), floor, differ, run.hits))
            say(f"  {_line(records[-1])}  ({time.monotonic() - start:.1f} s in all)")
            del run
    return records


def ours(case: Case, rows: Tensor) -> Run:
    out = torch.empty_like(rows)
    hits = float(truncation(rows, case.k, case.p).hit.double().mean())
    return Run(lambda: top_k_top_p(rows, case.k, case.p, out=out), out, hits)


def prepared(name: str, case: Case, rows: Tensor) -> Run:
    """A run of the paper with all that its kernels are told on the device."""
    settings = {"truncation": "paper", "search": "quaternary", "duplicates": True, "block_table": True}
    settings |= ablation.RUNS[name]
    limits = checks.limits(rows, case.k, case.p)
    sizes = ablation.blocks(rows.shape[-1], settings["block_table"])
    plan = Prepared(rows, torch.empty_like(rows), limits, settings["truncation"], settings["duplicates"], sizes)
    backend.resolve(rows, "triton")
    if settings["search"] == "sort":
        return Run(lambda: ablation._by_sorting(plan), plan.out, hits_of(plan, ablation.SORT_WIDTH))
    return Run(lambda: ablation._by_pivots(plan, settings["search"]), plan.out, hits_of(plan, rows.shape[-1]))


def hits_of(plan: ablation._Plan, width: int) -> float | None:
    """The share of rows whose candidates suffice for k and fit into the buffer; None where nothing is truncated."""
    from qp_kernels.qrita import ablation_kernels as kernels

    if plan.truncation in ("off", "miss"):
        return None if plan.truncation == "off" else 0.0
    batch, vocab = plan.rows.shape
    width = min(vocab, width)
    found = torch.empty(batch, 3, dtype=torch.float32, device=plan.rows.device)
    kernels.gather_kernel[(batch,)](
        plan.rows,
        torch.empty(batch, width, dtype=torch.float32, device=plan.rows.device),
        found,
        n=vocab,
        stride=plan.rows.stride(0),
        width=width,
        **plan.threshold(),
        MISS=False,
        BLOCK=plan.blocks.row,
        num_warps=plan.blocks.warps,
    )
    gathered = found[:, 0]
    return float(((gathered >= plan.limits.k) & (gathered <= width)).double().mean())


def rows_that_differ(result: Tensor, want: Tensor) -> int:
    """How many rows of two matrices [B, V] are not the same to the bit; NaN is none of a mask."""
    kind = {2: torch.int16, 4: torch.int32}[want.element_size()]
    pairs = zip(result.view(kind).split(ROWS_AT_ONCE), want.view(kind).split(ROWS_AT_ONCE), strict=True)
    return sum(int((a != b).any(-1).sum()) for a, b in pairs)


def _timed(call: Callable[[], Any], rows: Tensor, repetitions: int) -> timing.Timing:
    """As many samples as fit into the budget, `repetitions` at most."""
    trial = timing.measure(call, device=rows.device, repetitions=min(TRIAL, repetitions), warmup=1)
    count = min(repetitions, max(FEWEST, int(BUDGET_US / trial.median_us)))
    if count <= len(trial.samples_us):
        return trial
    return timing.measure(call, device=rows.device, repetitions=count, warmup=0)


def _record(
    case: Case, name: str, took: timing.Timing, floor: timing.Timing, differ: int, hits: float | None
) -> dict[str, Any]:
    return {
        "run": name,
        "label": ablation.RUN_NAMES.get(name, "top_k_top_p"),
        "rows": case.rows,
        "batch": case.batch,
        "vocab": case.vocab,
        "k": case.k,
        "p": case.p,
        "mode": took.mode,
        "median_us": took.median_us,
        "p20_us": took.p20_us,
        "p80_us": took.p80_us,
        "repetitions": len(took.samples_us),
        "late": took.late,
        "floor_us": floor.median_us,
        "times_floor": took.median_us / floor.median_us,
        "paper_ms": PAPER_MS.get(name),
        "exact": differ == 0,
        "rows_differ": differ,
        "hits": hits,
    }


def table(records: list[dict[str, Any]]) -> str:
    """A line for each run: times on every kind of rows, multiples of the floor, the paper's time."""
    kinds = list(dict.fromkeys(record["rows"] for record in records))
    by = {(record["run"], record["rows"]): record for record in records}
    lines = [
        f"{'':<28}" + "".join(f"{kind + ', ms':>12}{'x floor':>9}{'A = 1':>7}" for kind in kinds) + f"{'paper, ms':>11}"
    ]
    for run in dict.fromkeys(record["run"] for record in records):
        line = f"{run:<5}{by[run, kinds[0]]['label']:<23}"
        for kind in kinds:
            one, first = by[run, kind], by.get(("A", kind))
            ratio = f"{one['median_us'] / first['median_us']:.2f}" if first else "-"
            mark = "" if one["exact"] else "!"
            line += f"{one['median_us'] / 1e3:>11.3f}{mark:<1}{one['times_floor']:>9.2f}{ratio:>7}"
        paper = PAPER_MS.get(run)
        lines.append(line + (f"{'-':>11}" if paper is None else f"{paper:>11.3f}"))
    differ = [f"{r['run']} {r['rows']} {r['rows_differ']}" for r in records if not r["exact"]]
    return "\n".join([*lines, *([f"! rows that differ from top_k_top_p: {', '.join(differ)}"] if differ else [])])


def _line(record: dict[str, Any]) -> str:
    hits = "" if record["hits"] is None else f"{record['hits']:>8.1%} hit"
    differ = f"{record['rows_differ']} rows differ" if record["rows_differ"] else "exact"
    late = f"  waits for the host in {record['late']}" if record["late"] else ""
    return (
        f"{record['run']:<5}{record['label']:<23}{record['median_us']:>11,.1f} us{record['times_floor']:>8.2f} x floor"
        f"{record['repetitions']:>4} times  {differ}{hits}{late}"
    )


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
