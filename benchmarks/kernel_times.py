"""Where the time of a call goes: every kernel's GPU time, and how many rows each leaves to the next.

    python benchmarks/kernel_times.py                            masks of the bench's cases that need no model
    python benchmarks/kernel_times.py --live --cases "*live*"    rows of the default model
    python benchmarks/kernel_times.py --cases "*b1-*" --repetitions 30

Times are medians over calls with a cold L2, in microseconds, from torch's profiler; what lies between kernels is not in
them. "full" are rows whose candidates found no room, "wide" rows whose cut is not among them.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys

import torch
from torch import Tensor

from qp_kernels import bench, timing
from qp_kernels.bench.rows import batches
from qp_kernels.qrita import checks, launch, rows, top_k_top_p

STAGES = ("place", "hit", "split", "wide", "rescue")
FLAGS = {"full": rows.FULL.value, "wide": rows.WIDE.value}


def main() -> int:
    options = parser().parse_args()
    if not torch.cuda.is_available():
        print("the time of a kernel needs a CUDA device", file=sys.stderr)
        return 1
    live = live_rows() if options.live else None
    for case in bench.CASES:
        needs = {"gauss": True, "miss": True, "lie": True, "live": live is not None}
        if case.operation != "mask" or not needs[case.rows] or not fnmatch.fnmatch(case.name, options.cases):
            continue
        logits = batches(bench.make(case, "cuda", live), case)
        left = leaves(logits[0], case.k, case.p)
        times = kernel_times(logits, case.k, case.p, options.repetitions)
        print(f"{case.name:44} {sum(times.values()):8.1f} us")
        for stage, time in times.items():
            words = [f"{n:,} {flag}" for flag, n in left.get(stage, {}).items() if n]
            print(f"    {stage:8} {time:8.1f}   {'leaves ' + ', '.join(words) if words else ''}".rstrip(), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--cases", default="*", help="a pattern of names of python -m qp_kernels.bench --list")
    top.add_argument("--live", action="store_true", help="with the cases of the default model's rows")
    top.add_argument("--repetitions", type=int, default=9)
    return top


def live_rows() -> Tensor:
    import _live

    return _live.float32(_live.capture(1016, "cuda"), "cuda")


def leaves(logits: Tensor, k: int | None, p: float | None) -> dict[str, dict[str, int]]:
    """How many rows of logits [B, V] are flagged after each kernel of a mask, by stage and flag."""
    call = launch.Call(logits, checks.limits(logits, k, p), 1.0, torch.empty_like(logits), launch.MASK, 1, None, ())
    steps = {"place": call.place, **({"split": call.split} if call.is_split else {"hit": call.whole})}
    if call.has_window:
        steps["wide"] = call.wide
    found = {}
    with torch.no_grad():
        for stage, step in {**steps, "rescue": call.rescue}.items():
            step()
            if stage != "rescue":  # it decides whatever is flagged, and leaves the flags
                found[stage] = {flag: int((call.missed == value).sum()) for flag, value in FLAGS.items()}
    return found


def kernel_times(logits: list[Tensor], k: int | None, p: float | None, repetitions: int) -> dict[str, float]:
    """Median GPU time of each kernel of a call in microseconds, by stage."""
    out = torch.empty_like(logits[0])

    def call(rows: Tensor) -> None:
        top_k_top_p(rows, k, p, out=out)

    timing.measure(call, logits, repetitions=2)  # compiles
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        timing.measure(call, logits, repetitions=repetitions, warmup=0)
    found: dict[str, list[float]] = {}
    for event in profile.events():
        stage = event.name.removesuffix("_kernel")
        if stage in STAGES:
            found.setdefault(stage, []).append(event.device_time)
    return {stage: statistics.median(found[stage]) for stage in STAGES if stage in found}


if __name__ == "__main__":
    sys.exit(main())
