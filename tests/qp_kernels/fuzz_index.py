"""Random problems of index selection: Triton against the reference in torch, on the device.

    make fuzz-gpu ARGS="--what index --seconds 100"

or `python tests/qp_kernels/fuzz_index.py`. A problem follows from the seed and its index; every call of it counts its
query rows. The first differences are printed with the command that makes the problem again (`--replay SEED:INDEX`). On
a GPU several processes take the problems in turn. On a CPU (`--device cpu --backend triton`) the kernels run in
Triton's interpreter, with constants so small that short rows take every branch. The exit status is 1 where a row
differs.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fuzz_run  # noqa: E402

ENOUGH = 3


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    interpret(options)
    import torch
    from fuzz_index_cases import draw_case

    from qp_kernels import backend

    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{options.device}: {backend.resolve(options.device, options.backend)}", flush=True)
    if options.replay:
        return replay(options, draw_case(*map(int, options.replay.split(":")), options.device))
    processes = options.processes or default_processes(options.device)
    return fuzz_run.ended(fuzz_run.shared(work, options, processes, Tally()), options, record)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--rows", type=int, default=1_000_000, help="query rows of all calls")
    top.add_argument("--seed", type=int, default=1)
    top.add_argument("--device", help="default: cuda where there is one")
    top.add_argument("--backend", default="triton", choices=("triton", "torch"), help="torch: the reference by itself")
    top.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    top.add_argument("--processes", type=int, default=0, help="default: 1 on a CPU, up to 8 on a GPU")
    top.add_argument("--record", action="store_true", help="write data/results/fuzz_index.json")
    top.add_argument("--folder", help="write it into another folder")
    top.add_argument("--replay", metavar="SEED:INDEX", help="one problem again")
    return top


def interpret(options) -> None:
    """Kernels on a CPU run in Triton's interpreter, which must be asked for before Triton is imported."""
    if options.device != "cpu" or options.backend != "triton":
        return
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore", RuntimeWarning)  # of inf - inf, in numpy
    from small_selection import shrink

    shrink()


def default_processes(device: str) -> int:
    """One on a CPU; on a GPU as many as can compile at once."""
    return 1 if device == "cpu" else max(1, min(8, (os.cpu_count() or 1) // 2))


def work(options, first: int = 0, step: int = 1) -> Tally:
    """Every step-th lot of like problems from the first on, until this share of the rows is done."""
    interpret(options)
    from fuzz_index_cases import LIKE, draw_case

    tally = Tally()
    start = time.monotonic()
    for lot in itertools.count(first, step):
        for index in range(LIKE * lot, LIKE * (lot + 1)):
            if tally.rows * step >= options.rows or tally.elapsed_s > options.seconds or len(tally.faults) >= ENOUGH:
                return tally
            tally.add(draw_case(options.seed, index, options.device), options)
            tally.elapsed_s = time.monotonic() - start


class Tally:
    """What was run, by call and dtype."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.faults: list[str] = []
        self.problems = self.rows = 0
        self.elapsed_s = 0.0

    def add(self, case, options) -> None:
        from fuzz_index_cases import check

        try:
            faults = check(case, options.backend)
        except Exception:
            print(f"problem {case.seed}:{case.index} ended in an error: {case} {case.settings}", file=sys.stderr)
            raise
        for call in case.settings:
            count = self.counts[call, case.dtype]
            count.update(problems=1, rows=case.rows, scores=case.rows * case.keys)
            self.rows += case.rows
        for fault in faults:
            self.counts[fault.call, case.dtype]["differ"] += fault.rows
        self.faults += [describe(fault, options) for fault in faults]
        self.problems += 1

    def __add__(self, other: Tally) -> Tally:
        both = Tally()
        for part in (self, other):
            for key, count in part.counts.items():
                both.counts[key].update(count)
            both.faults += part.faults
            both.problems, both.rows = both.problems + part.problems, both.rows + part.rows
            both.elapsed_s = max(both.elapsed_s, part.elapsed_s)
        return both

    def table(self) -> str:
        columns = ("problems", "rows", "differ")
        lines = [f"{'call':<15}{'dtype':<10}" + "".join(f"{name:>12}" for name in columns)]
        for (call, dtype), count in sorted(self.counts.items()):
            lines.append(f"{call:<15}{dtype:<10}" + "".join(f"{count[name]:>12,}" for name in columns))
        return "\n".join(lines)

    def line(self, options) -> str:
        what = f"{self.rows:,} query rows of {self.problems:,} problems in {self.elapsed_s:.0f} s"
        verdict = f"{len(self.faults)} calls differ" if self.faults else "no difference"
        return f"{what}, seed {options.seed}, {options.backend} on {options.device}: {verdict}"


def record(tally: Tally, options) -> Path:
    from qp_kernels import results

    names = ("problems", "rows", "scores", "differ")
    rows = [
        {"call": call, "dtype": dtype, **{name: int(count[name]) for name in names}}
        for (call, dtype), count in sorted(tally.counts.items())
    ]
    about = {
        "seed": options.seed,
        "backend": options.backend,
        "rows": tally.rows,
        "problems": tally.problems,
        "rows_that_differ": sum(row["differ"] for row in rows),
        "seconds": round(tally.elapsed_s, 1),
    }
    command = f"make fuzz-gpu ARGS='--what index --rows {options.rows} --seed {options.seed} --record'"
    return results.write("fuzz_index", rows, device=options.device, command=command, about=about, folder=options.folder)


def replay(options, case) -> int:
    from fuzz_index_cases import check

    print(case, case.settings)
    faults = check(case, options.backend)
    for fault in faults:
        print(describe(fault, options))
    print("differs" if faults else "no difference")
    return int(bool(faults))


def describe(fault, options) -> str:
    case = fault.case
    got, want = ({*positions} for positions in (fault.got, fault.want))
    lines = [
        f"DIFFERS: {fault.call} {case.settings[fault.call]}: {fault.rows} of {case.rows} rows, first row {fault.row}",
        f"  problem {case}",
        f"  only here {sorted(got - want)[:20]}, only in the reference {sorted(want - got)[:20]}",
        f"  again: python tests/qp_kernels/fuzz_index.py --replay {case.seed}:{case.index} --device {case.device}"
        f" --backend {options.backend}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
