"""The command line of the bench.

    python -m qp_kernels.bench                                       all cases on this machine's GPU
    python -m qp_kernels.bench --what index                          those of index selection alone
    python -m qp_kernels.bench --cases "*b1024-v128256*" --providers "qp_kernels,vllm"
    python -m qp_kernels.bench --logits rows.safetensors             with the cases of live rows
    python -m qp_kernels.bench --own my_module:my_function           f(logits, k, p) beside the others
    python -m qp_kernels.bench --record NAME                         data/results/NAME.json (else data/results/local)

Top-k / top-p and index selection write a results file each, bench and bench_index; --record needs --what. Without a
CUDA device, small cases of the torch back-end are measured on the CPU. The exit status is 1 where our own kernels break
the contract; then nothing is timed or written.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import backend, report, results
from . import index
from .case_run import WrongResult
from .cases import CASES, SMALL_CASES, Case
from .rows import read
from .suite import run
from .table import table

QUICK_REPETITIONS, QUICK_PROVIDERS = 10, "qp_kernels,vllm,flashinfer"
NAMES, PROGRAM = {"qrita": "bench", "index": "bench_index"}, "python -m qp_kernels.bench"


def main(
    arguments: list[str] | None = None,
    live: Tensor | None = None,
    about: dict[str, Any] | None = None,
    program: str = PROGRAM,
) -> int:
    """Run the bench.

    Args:
        arguments: Of the command line; None is what Python was called with.
        live: Rows of a model instead of those of --logits. about: Flat fields for the results file that say which.
        program: What was called, for the results file.
    Returns:
        The exit status: 1 where our own kernels break the contract, 2 for arguments that cannot be.
    """
    options = parser(program).parse_args(arguments)
    try:
        return _run(options, live, about or {}, program)
    except WrongResult as error:
        print(f"error: {error}", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument(
        "--what", choices=("all", *NAMES), default=_everything(program), help="top-k / top-p, index selection, or both"
    )
    top.add_argument("--cases", default="*", help="a pattern of their names, see --list")
    top.add_argument("--list", action="store_true", help="print the names of the cases, and end")
    top.add_argument("--providers", default=None, help="of top-k / top-p, patterns between commas")
    top.add_argument("--quick", action="store_true", help=f"{QUICK_REPETITIONS} repetitions, and no slow sorts")
    top.add_argument("--repetitions", type=int, default=None, help="samples of each, default 30")
    top.add_argument("--logits", metavar="FILE", help="rows of a model: .npy, .npz or .safetensors, [R, V]")
    top.add_argument("--own", metavar="MODULE:FUNCTION", action="append", default=[], help="f(logits, k, p)")
    top.add_argument("--device", default=None, help="default: the GPU where there is one")
    top.add_argument("--seconds", type=float, help="begin no case after this time")
    top.add_argument("--record", metavar="NAME", help="name of the results file; in a clone it goes to data/results")
    top.add_argument("--folder", type=Path, help="where the results file goes instead")
    return top


def _everything(program: str) -> str:
    """What is measured by default: both, but where a script brings rows of logits."""
    return "all" if program == PROGRAM else "qrita"


def _run(options: argparse.Namespace, live: Tensor | None, about: dict[str, Any], program: str) -> int:
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cases = _cases(options, device)
    if options.list:
        print("\n".join(case.name for found in cases.values() for case in found))
        return 0
    if options.record and len(cases) > 1:
        raise ValueError("--record names one results file: add --what qrita or --what index")
    if device.type != "cuda":
        print(f"no CUDA device ({backend.card_problem() or 'none here'}): small cases of the torch back-end on the CPU")
    print(report(), flush=True)
    about = {**about, "backend": backend.resolve(device).name}
    if "index" in cases:  # first: it is the shorter one
        _run_index(options, cases["index"], device, about, program)
    if "qrita" in cases:
        _run_qrita(options, cases["qrita"], device, live, about, program)
    return 0


def _run_index(options: argparse.Namespace, cases: list[index.Case], device, about: dict[str, Any], program: str):
    start = time.monotonic()
    settings = {"device": device, "seconds": options.seconds, "say": _say}
    records, found = index.run(cases, repetitions=_repetitions(options), **settings)
    print(f"\n{time.monotonic() - start:.0f} s; * target missed")
    if records:
        name = options.record or NAMES["index"]
        _write(name, records, options, device, {**about, **found}, _command(options, program))


def _run_qrita(options: argparse.Namespace, cases: list[Case], device, live, about: dict[str, Any], program: str):
    if options.logits:
        live, about = read(options.logits), {**about, "live_rows": Path(options.logits).name}
    start = time.monotonic()
    records = run(
        cases,
        own=dict(map(_own, options.own)),
        live=live,
        device=device,
        only=options.providers or (QUICK_PROVIDERS if options.quick else "*"),
        repetitions=_repetitions(options),
        seconds=options.seconds,
        say=_say,
    )
    about = {**about, "live_rows_distinct": 0 if live is None else len(live)}
    print(f"\n{table(records)}\n\n{time.monotonic() - start:.0f} s; us; ! wrong rows, * target missed")
    name = options.record or NAMES["qrita"]
    _write(name, records, options, device, about, _command(options, program))


def _repetitions(options: argparse.Namespace) -> int:
    return options.repetitions or (QUICK_REPETITIONS if options.quick else 30)


def _cases(options: argparse.Namespace, device: torch.device) -> dict[str, list]:
    """The chosen cases, of "qrita" and "index" as far as there are any."""
    on_gpu = device.type == "cuda"
    known = {"qrita": CASES if on_gpu else SMALL_CASES, "index": index.CASES if on_gpu else index.SMALL_CASES}
    known = {what: cases for what, cases in known.items() if options.what in ("all", what)}
    if "index" in known and options.quick:
        known["index"] = [case for case in known["index"] if case.quick]
    found = {}
    for what, cases in known.items():
        if chosen := [case for case in cases if fnmatch.fnmatch(case.name, options.cases)]:
            found[what] = chosen
    if not found:
        names = ", ".join(case.name for cases in known.values() for case in cases)
        raise ValueError(f"no case is named {options.cases!r}; there are: {names}")
    return found


def _own(where: str) -> tuple[str, Callable[..., Any]]:
    """(name, function) of "module:function", also from the working directory."""
    module, _, function = where.partition(":")
    if not module or not function:
        raise ValueError(f"--own needs MODULE:FUNCTION, got {where!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return function, getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--own {where}: {error}") from error


def _write(name: str, records: list[dict], options: argparse.Namespace, device, about: dict, command: str) -> None:
    folder = options.folder
    if folder is None and not options.record:
        if not (results.ROOT / "data").is_dir():
            print("not written: say where, --folder DIR")
            return
        folder = results.ROOT / "data" / "results" / "local"
    path = results.write(name, records, device=device, command=command, about=about, folder=folder)
    place = path.relative_to(results.ROOT) if path.is_relative_to(results.ROOT) else path
    print(f"written to {place}")


def _command(options: argparse.Namespace, program: str) -> str:
    """How to make the numbers again, without places of this machine."""
    parts = [program] + [f"--what {options.what}"] * (options.what != _everything(program))
    parts += [f"--cases '{options.cases}'"] * (options.cases != "*") + ["--quick"] * options.quick
    parts += [f"--providers '{options.providers}'"] if options.providers else []
    parts += [f"--repetitions {options.repetitions}"] if options.repetitions else []
    parts += [f"--logits {Path(options.logits).name}"] if options.logits else []
    return " ".join([*parts, *(f"--own {where}" for where in options.own)])


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
