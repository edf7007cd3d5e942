"""All cases in turn: rates of the device first, the guard before the first chunk, r of the cost model last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import index_metrics, timing
from ...pivot import Crossover, measured_crossover
from . import rates
from .case_run import FIELDS, Run, run_case
from .cases import CASES, SMALL_CASES, Case, check
from .table import lines_of
from .work import flat


def run(
    cases: Iterable[Case] | None = None,
    *,
    device: torch.device | str | None = None,
    repetitions: int = 30,
    seconds: float | None = None,
    say: Callable[[str], Any] | None = print,
    timer: Callable[..., timing.Timing] = timing.measure,
    crossover: Callable[..., Crossover] = measured_crossover,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Check and time cases of index selection.

    Args:
        cases: None is `CASES` on a GPU and `SMALL_CASES` without one.
        device: None is the GPU where there is one.
        repetitions: Samples of each; long calls have a third of them.
        seconds: No case is begun after this time. say: Called with each line of the report; None is silence.
        timer, crossover: What times a call, and finds the guard.
    Returns:
        (records, about): records with the fields `FIELDS`, also of the points of the crossover, whose kinds are
        "crossover level" and "crossover chunk"; about: the rates of the device, the measured guard, and r of the cost
        model as Refine has it in chunks, None where they were not found.
    Raises:
        ValueError: a case that cannot be. WrongResult: our kernels are wrong.
    """
    say = say or (lambda _: None)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if cases is None:
        cases = CASES if device.type == "cuda" else SMALL_CASES
    cases = [check(case) for case in cases]
    timing.wake(device)
    found = rates.measured(device, min(10, repetitions), timer)
    say("rates: " + ", ".join(f"{name} {value:,.1f}" for name, value in found.about().items()))
    shared = Run(device, found, repetitions, say, timer)
    records: list[dict[str, Any]] = []
    guards: dict[tuple, int | None] = {}
    began = time.monotonic()
    for i, case in enumerate(cases):
        start = time.monotonic()
        if seconds is not None and i and start - began > seconds:
            say(f"{len(cases) - i} cases left out after {seconds:g} s, from {case.name} on")
            break
        guard = None
        if case.kind == "chunk":
            if _shape(case) not in guards:
                found_guard = _guard(case, device, crossover, say)
                guards[_shape(case)] = found_guard.guard if found_guard else None
                records += points_of(case, found_guard)
            guard = guards[_shape(case)]
        made = run_case(case, shared, guard)
        records += made
        say(f"[{i + 1}/{len(cases)}] {case.name}, {time.monotonic() - start:.1f} s")
        for line in lines_of(made):
            say(f"  {line}")
    about = {**found.about(), "guard_measured": next(iter(guards.values()), None), "r": fitted_r(records)}
    return records, about


def _shape(case: Case) -> tuple:
    """What a guard depends on."""
    return case._replace(L=0, quick=True)


def points_of(case: Case, found: Crossover | None) -> list[dict[str, Any]]:
    """A record for dense selection and one for Refine at every point of a crossover."""
    records = []
    for point in found.points if found else ():
        for provider, ms in (("dense", point.dense_ms), ("refine", point.pivot_ms)):
            record = {**dict.fromkeys(FIELDS), **flat(case._replace(L=point.length))}
            record |= {"kind": f"crossover {point.kind}", "mode": "gpu", "provider": provider, "guard": point.guard}
            record |= {"median_us": ms * 1e3, "over_dense": point.dense_ms / ms, "checked_rows": 0, "wrong_rows": 0}
            records.append({name: record[name] for name in FIELDS})
    return records


def _guard(case: Case, device: torch.device, crossover: Callable[..., Crossover], say: Callable) -> Crossover | None:
    """The measured guard for chunks of a shape; None without a GPU."""
    if device.type != "cuda" and crossover is measured_crossover:
        say("  no guard is measured without a CUDA device")
        return None
    shape = {"rows": case.T, "group": case.group, "topk": case.topk, "budget": case.budget}
    shape |= {"heads": case.heads, "dim": case.dim, "dtype": getattr(torch, case.dtype)}
    start = time.monotonic()
    found = crossover(**shape, device=device)
    say(f"  measured guard {found.guard:,}, {time.monotonic() - start:.1f} s")
    for point in found.points:
        word = "faster" if point.wins else "slower" if point.loses else "even"
        times = f"dense {point.dense_ms:.3f} ms, Refine {point.pivot_ms:.3f} ms"
        say(f"    {point.kind} {point.length:,}, guard {point.guard:,}: {times}, {word}")
    return found


def fitted_r(records: list[dict[str, Any]]) -> float | None:
    """r of the cost model, from chunks all of whose groups are refined; None without any.

    The length of a chunk is the mean of its prefixes, L - T / 2.
    """
    refined = [
        r for r in records if r["kind"] == "chunk" and r["provider"] == "refine" and r["L"] - r["T"] >= r["budget"]
    ]
    if not refined:
        return None
    lengths, speeds = [r["L"] - r["T"] / 2 for r in refined], [r["over_dense"] for r in refined]
    return index_metrics.fit_r(lengths, speeds, group=refined[0]["group"], budget=refined[0]["budget"])
