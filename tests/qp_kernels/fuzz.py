"""Random batches against the oracle, on the device: `make fuzz-gpu`, or

    python tests/qp_kernels/fuzz.py --rows 2000000 --seed 1 --device cuda --backend triton --record

Every batch follows from the seed and its index. On a GPU several processes take the batches in turn, because most of
the work is to compile kernels where none is in Triton's cache. The first differences are printed with the row alone,
made as short as it still fails, and the command that makes the batch again (`--replay SEED:INDEX`). A table by family
comes last. The exit status is 1 where a row breaks the contract.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fuzz_run  # noqa: E402
from fuzz_cases import CALLS, Case, Fault, check, draw_case  # noqa: E402
from fuzz_rows import FAMILIES  # noqa: E402

from qp_kernels import backend, results  # noqa: E402

# Batches that differ before the run ends: more of them say nothing new.
ENOUGH = 3
MAX_VOCAB = {"cuda": 262_147, "cpu": 2_053}
# Memory a process may need on the device: its context, a batch and the oracle.
PROCESS_BYTES = 6 << 30
# A call that compiles a kernel takes longer than this, one that runs does not.
SLOW_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    device = options.device
    print(f"{device}: {backend.resolve(device, options.backend)}", flush=True)
    options.max_vocab = options.max_vocab or MAX_VOCAB[torch.device(device).type]
    if options.replay:
        return replay(options, case_of(options, *map(int, options.replay.split(":"))))
    options.processes = processes = options.processes or default_processes(device)
    return fuzz_run.ended(fuzz_run.shared(work, options, processes, Tally()), options, record)


def default_processes(device: str) -> int:
    """One on a CPU; on a GPU as many as can compile at once and have room for their batches."""
    if torch.device(device).type == "cpu":
        return 1
    room = torch.cuda.get_device_properties(device).total_memory // PROCESS_BYTES
    return max(1, min(8, (os.cpu_count() or 1) // 2, room))


def work(options, first: int = 0, step: int = 1) -> Tally:
    """Every step-th batch from the first on, until this share of the rows is done."""
    tally = Tally()
    start = time.monotonic()
    for index in itertools.count(first, step):
        if tally.rows * step >= options.rows or tally.elapsed_s > options.seconds or len(tally.faults) >= ENOUGH:
            return tally
        tally.add(case_of(options, options.seed, index), options)
        tally.elapsed_s = time.monotonic() - start


def case_of(options, seed: int, index: int) -> Case:
    limits = options.max_vocab, options.max_entries
    case = draw_case(seed, index, options.device, options.backend, *limits)
    return dataclasses.replace(case, family=options.family) if options.family else case


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--rows", type=int, default=2_000_000)
    top.add_argument("--seed", type=int, default=1)
    top.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    top.add_argument("--backend", default="auto", choices=backend.BACKENDS)
    top.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    top.add_argument("--max-vocab", type=int, help="default: 262,147 on a GPU, 2,053 on a CPU")
    top.add_argument("--max-entries", type=int, default=0, help="of a batch; a few thousand for the interpreter")
    top.add_argument("--family", choices=[family.__name__ for family in FAMILIES], help="only this one")
    top.add_argument("--processes", type=int, default=0, help="default: 1 on a CPU, up to 8 on a GPU")
    top.add_argument("--record", action="store_true", help="write data/results/fuzz.json")
    top.add_argument("--folder", help="write it into another folder")
    top.add_argument("--replay", metavar="SEED:INDEX", help="one batch again")
    return top


class Tally:
    """What was run, by family and dtype."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.faults: list[str] = []
        self.rows = self.batches = self.slow = 0
        self.elapsed_s = self.slow_s = 0.0

    def add(self, case: Case, options) -> None:
        start = time.monotonic()
        try:
            faults = check(case)
        except Exception:
            print(f"batch {case.seed}:{case.index} ended in an error: {case}", file=sys.stderr)
            raise
        took = time.monotonic() - start
        if took > SLOW_S:
            self.slow, self.slow_s = self.slow + 1, self.slow_s + took
        count = self.counts[case.family, case.dtype]
        count["rows"] += case.batch
        count["batches"] += 1
        count["entries"] += case.batch * case.vocab
        count["differ"] += max((fault.rows for fault in faults), default=0)
        for call in case.calls[1:]:
            count[call] += case.batch
        self.faults += [describe(fault, options) for fault in faults[:1]]
        self.rows, self.batches = self.rows + case.batch, self.batches + 1

    def __add__(self, other: Tally) -> Tally:
        both = Tally()
        for key in {*self.counts, *other.counts}:
            both.counts[key] = collections.Counter({**self.counts[key]})
            both.counts[key].update(other.counts[key])
        both.faults = self.faults + other.faults
        for name in ("rows", "batches", "slow", "slow_s"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        both.elapsed_s = max(self.elapsed_s, other.elapsed_s)
        return both

    def by_family(self) -> dict[str, collections.Counter]:
        families = collections.defaultdict(collections.Counter)
        for (family, _), count in self.counts.items():
            families[family].update(count)
        return families

    def table(self) -> str:
        columns = ("batches", "rows", "select", "sample", "truncation", "again", "differ")
        lines = [f"{'family':<18}" + "".join(f"{name:>12}" for name in columns)]
        for family, count in sorted(self.by_family().items()):
            lines.append(f"{family:<18}" + "".join(f"{count[name]:>12,}" for name in columns))
        total = sum(self.counts.values(), collections.Counter())
        lines.append(f"{'all':<18}" + "".join(f"{total[name]:>12,}" for name in columns))
        return "\n".join(lines)

    def line(self, options) -> str:
        entries = sum(count["entries"] for count in self.counts.values())
        what = f"{self.rows:,} rows, {entries / 1e9:.2f} G entries in {self.elapsed_s:.0f} s"
        slow = f" ({self.slow} batches over {SLOW_S:g} s took {self.slow_s:.0f} s)" if self.slow else ""
        verdict = f"{len(self.faults)} batches differ" if self.faults else "no difference"
        return f"{what}{slow}, seed {options.seed}, {options.backend} on {options.device}: {verdict}"


def record(tally: Tally, options) -> Path:
    rows = [
        {
            "family": family,
            "dtype": dtype,
            **{name: int(count[name]) for name in ("batches", "rows", "entries", "differ")},
        }
        | {f"rows_{call}": int(count[call]) for call in CALLS if call != "mask"}
        for (family, dtype), count in sorted(tally.counts.items())
    ]
    about = {
        "seed": options.seed,
        "backend": backend.resolve(options.device, options.backend).name,
        "rows": tally.rows,
        "rows_that_differ": sum(row["differ"] for row in rows),
        "max_vocab": options.max_vocab,
        "seconds": round(tally.elapsed_s, 1),
    }
    device, folder = options.device, options.folder
    return results.write("fuzz", rows, device=device, command=command_of(options), about=about, folder=folder)


def command_of(options) -> str:
    """The command of a run, with every argument that decides which batches it took."""
    kind = torch.device(options.device).type
    said = {"rows": options.rows, "seed": options.seed}
    if options.seconds < float("inf"):
        said["seconds"] = f"{options.seconds:.12g}"
    said["processes"] = options.processes
    if options.max_vocab != MAX_VOCAB[kind]:
        said["max-vocab"] = options.max_vocab
    said |= {"max-entries": options.max_entries} if options.max_entries else {}
    said |= {"family": options.family} if options.family else {}
    if kind != "cuda" or options.backend == "torch":  # make fuzz-gpu asks for cuda and triton
        said |= {"device": options.device, "backend": options.backend}
    words = " ".join(f"--{name} {value}" for name, value in said.items()) + " --record"
    return f"make fuzz-gpu ARGS='{words}'" if kind == "cuda" else f"python tests/qp_kernels/fuzz.py {words}"


def replay(options, case: Case) -> int:
    print(case)
    faults = check(case)
    for fault in faults:
        print(describe(fault, options))
    print("differs" if faults else "no difference")
    return int(bool(faults))


def describe(fault: Fault, options) -> str:
    case = fault.case
    again = f"--replay {case.seed}:{case.index} --device {case.device} --backend {case.backend}"
    again += f" --max-vocab {options.max_vocab}" + (f" --family {options.family}" if options.family else "")
    again += f" --max-entries {options.max_entries}" if options.max_entries else ""
    lines = [
        f"DIFFERS: {fault.call} {fault.words}: {fault.rows} of {case.batch} rows, the first is row {fault.row}",
        f"  batch {case}",
        f"  again: python tests/qp_kernels/fuzz.py {again}",
    ]
    inputs, fails = shrink(fault)
    if not fails:
        return "\n".join([*lines, "  the row alone, contiguous, meets the contract: look at batch, layout and out"])
    others = {name: _plain(value) for name, value in inputs.items() if name != "logits"}
    row = inputs["logits"][0]
    lines.append(f"  the row alone fails too; shortened to V = {len(row)}, {others}, {case.order}, ties {case.ties}")
    shown = row[:48].tolist()
    lines.append(f"  torch.tensor({shown}{' + ...' if len(row) > len(shown) else ''}, dtype=torch.{case.dtype})")
    return "\n".join(lines)


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def shrink(fault: Fault, tries: int = 400) -> tuple[dict, bool]:
    """The inputs of the row alone with as many entries taken out as it still fails without; and whether it fails."""

    def fails(inputs: dict) -> bool:
        return bool((CALLS[fault.call](fault.case, inputs) > 0).any())

    inputs = fault.inputs
    if not fails(inputs):
        return inputs, False
    step = max(1, inputs["logits"].shape[1] // 2)
    while step and tries > 0:
        start, shorter = 0, False
        while start < inputs["logits"].shape[1] and inputs["logits"].shape[1] > step and tries > 0:
            row = inputs["logits"]
            part = {**inputs, "logits": torch.cat([row[:, :start], row[:, start + step :]], dim=1)}
            tries -= 1
            if fails(part):
                inputs, shorter = part, True
            else:
                start += step
        if not shorter:
            step //= 2
    return inputs, True


if __name__ == "__main__":
    sys.exit(main())
