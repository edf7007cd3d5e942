"""All cases in turn, reported as they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import timing
from .case_run import run_case
from .cases import CASES, HALF_WIDTH, SMALL_CASES, Case
from .providers import OURS, missing, providers
from .rows import make
from .table import FLOORS, lines_of


def run(
    cases: Iterable[Case] | None = None,
    *,
    own: Mapping[str, Callable[..., Any]] | None = None,
    live: Tensor | None = None,
    device: torch.device | str | None = None,
    only: str = "*",
    repetitions: int = 30,
    seconds: float | None = None,
    say: Callable[[str], Any] | None = print,
    progress: timing.Progress | None = None,
) -> list[dict[str, Any]]:
    """Check and time cases; a case of live rows is left out without them.

    Args:
        cases: None is `CASES` on a GPU and `SMALL_CASES` without one.
        own: A user's functions by name, see `providers`.
        live: Rows [R, V] of a model, distinct, for the cases named so.
        device: None is the GPU where there is one.
        only: Names of providers, as patterns between commas; a user's own are always taken.
        repetitions: Samples of each.
        seconds: No case is begun after this time; `say` tells how many are left out. None is no limit.
        say: Called with each line of the report; None is silence.
        progress: As of `run_case`, for each case.
    Returns:
        Records of all cases, see `FIELDS`.
    Raises:
        ValueError: no case is left to run, or one that cannot be. WrongResult: our kernels are wrong.
    """
    say = say or (lambda _: None)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if cases is None:
        cases = CASES if device.type == "cuda" else SMALL_CASES
    chosen = _runnable(list(cases), live, say)
    taken = providers(device, own, only)
    say(f"providers: {', '.join(f'{name} {provider.version}' for name, provider in taken.items())}")
    for name, reason in missing(device, only).items():
        say(f"without {name}: {reason}")
    timing.wake(device)
    records: list[dict[str, Any]] = []
    began = time.monotonic()
    for i, case in enumerate(chosen):
        start = time.monotonic()
        if records and seconds is not None and start - began > seconds:
            say(f"{len(chosen) - i} cases left out after {seconds:g} s, from {case.name} on")
            break
        rows = make(case, device, live)
        found = run_case(case, rows, taken, repetitions=repetitions, progress=progress, say=say)
        del rows
        _aim_of_half_width(found, case, records)
        records += found
        say(f"[{i + 1}/{len(chosen)}] {case.name}, {time.monotonic() - start:.1f} s")
        for line in lines_of(found):
            say(f"  {line}")
    return records


def _runnable(cases: list[Case], live: Tensor | None, say: Callable) -> list[Case]:
    found = []
    for case in cases:
        if case.rows != "live":
            found.append(case)
        elif live is None:
            say(f"left out, since it needs rows of a model: {case.name}")
        elif live.shape[1] < case.vocab:
            say(f"left out, since the live rows have only {live.shape[1]:,} columns: {case.name}")
        else:
            if len(live) < case.batch:
                say(f"{case.name}: {case.batch} rows of {len(live)} distinct ones")
            found.append(case)
    if not found:
        raise ValueError("no case is left to run")
    return found


def _aim_of_half_width(found: list[dict], case: Case, before: list[dict]) -> None:
    """16-bit rows aim at a part of what float32 rows took in the same run; fills `target_us` of `found`."""
    if case.dtype == "float32":
        return
    full = case._replace(dtype="float32").name
    times = {r["mode"]: r["median_us"] for r in before if r["case"] == full and r["provider"] == OURS}
    for record in found:
        if record["mode"] in times and record["provider"] not in FLOORS:
            record["target_us"] = HALF_WIDTH * times[record["mode"]]
