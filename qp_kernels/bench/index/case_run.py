"""One case: everybody checked on whole numbers first, then timed in turn on others of the same shapes.

Nothing is timed while our own kernels are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import backend
from ...timing import Timing, measure, wake
from .. import floors
from ..case_run import WrongResult
from . import check, providers
from .cases import PAPER_REFINE, Case, modes, target
from .inputs import Inputs, draw, draw_scores
from .rates import Rates
from .work import Work, flat, work

FIELDS = (
    *("case", "kind", "T", "L", "dtype", "batch", "scores", "heads", "dim", "topk", "budget", "group"),
    *("mode", "provider", "version", "guard", "median_us", "p20_us", "p80_us", "repetitions", "late"),
    *("operations", "tflops", "floor_us", "times_floor", "scores_us", "over_dense", "paper_over_dense"),
    *("target_us", "target_over_dense", "target_tflops", "target_peak_bytes"),
    *("checked_rows", "wrong_rows", "peak_bytes"),
)
WAKE_S = 0.1
# Long calls need fewer samples.
FEWER_SAMPLES, LEAST_SAMPLES = 3, 3


class Entry(NamedTuple):
    """A call without arguments that was checked; guard: what PIVOT was given, None is its own."""

    provider: str
    version: str
    wrong_rows: int = 0
    checked_rows: int = 0
    call: Callable[[], Any] = lambda: None
    guard: int | None = None


class Given(NamedTuple):
    """Inputs of a model to time on, instead of drawn ones.

    Attributes:
        inputs: Of the shapes of the case; the queries are the last positions of the keys.
        checks: What is timed of the kinds with several selections, by name: takes what a selection found on all of
            these inputs, [T, topk], and returns [T] bool, the rows that the contract does not allow.
    """

    inputs: Inputs
    checks: dict[str, Callable[[Tensor], Tensor]]


class Run(NamedTuple):
    """What the cases of a run share."""

    device: torch.device
    rates: Rates
    repetitions: int
    say: Callable[[str], Any]
    timer: Callable[..., Timing] = measure


def run_case(case: Case, run: Run, guard: int | None = None, given: Given | None = None) -> list[dict[str, Any]]:
    """Check and time one case.

    Args:
        guard: A measured guard, for the kind "chunk".
        given: Inputs to time on; None draws them. Whole numbers of the same shapes are checked first in any case.
    Returns:
        One record a provider, with the fields `FIELDS`; first one of reading, where that is timed by itself. A provider
        that is not there is left out, and `run.say` tells why.
    Raises:
        WrongResult: our own kernels differ from the reference. ValueError: a case that cannot be.
    """
    with backend.current(run.device), torch.no_grad():
        try:
            entries, read = _entries(case, run, guard, given)
        except providers.Missing as error:
            run.say(f"  {case.name} is left out: {error}")
            return []
        wake(run.device, WAKE_S)
        timings: list[tuple[Entry, Timing, int | None]] = []
        if read is not None:
            way, timing = floors.fastest("floor_read", read, lambda way: _timed(case, run, lambda: way(read)))
            timings.append((Entry("floor_read", way), timing, None))
        for entry in entries:
            peak = peak_bytes(entry.call, run.device)
            timings.append((entry, _timed(case, run, entry.call), peak))
    read_us = timings[0][1].median_us if read is not None else None
    dense_us = next((timing.median_us for entry, timing, _ in timings if entry.provider == "dense"), None)
    return [_record(case, run.rates, entry, timing, peak, read_us, dense_us) for entry, timing, peak in timings]


def _entries(case: Case, run: Run, guard: int | None, given: Given | None) -> tuple[list[Entry], Tensor | None]:
    """Everybody checked, and the matrix whose reading is a floor by itself, if any."""
    if case.kind == "select":
        scores = draw_scores(case, run.device) if given is None else providers.scores_inside(given.inputs)
        calls = providers.selectors(case, run.device)
        found = [_entry(case, run.device, name, *check.wrong_top(case, call, scores)) for name, call in calls.items()]
        return [one._replace(call=lambda c=calls[one.provider]: c(scores)) for one in found], scores
    if case.kind == "scan":
        scan = providers.scan()
        entry = _entry(case, run.device, "qp_kernels", *check.wrong_scans(case, scan, run.device))
        inputs = _timed_on(case, run, given)
        return [entry._replace(call=lambda: scan(inputs))], None
    runs = providers.selections(case, guard)
    if given is not None:
        runs = {name: one for name, one in runs.items() if name in given.checks}
    found = [
        _entry(case, run.device, name, *check.wrong_selections(case, one, run.device)) for name, one in runs.items()
    ]
    inputs = _timed_on(case, run, given)
    if given is not None:
        found = [_also_on(inputs, case, run.device, one, runs[one.provider], given) for one in found]
    entries = [
        one._replace(
            call=lambda select=runs[one.provider]: select(inputs, "auto"),
            guard=guard if one.provider == "refine_measured" else None,
        )
        for one in found
    ]
    return entries, _as_read(inputs.k) if case.kind == "decode" else None


def _as_read(keys: Tensor) -> Tensor:
    """The same memory in a dtype of which a largest entry can be taken: float8 has none, and four are a float32."""
    if keys.dtype != torch.float8_e4m3fn:
        return keys
    return keys.flatten()[: keys.numel() // 4 * 4].view(torch.float32)[None]


def _timed_on(case: Case, run: Run, given: Given | None) -> Inputs:
    return draw(case, run.device, whole=False) if given is None else given.inputs


def _also_on(
    inputs: Inputs, case: Case, device: torch.device, entry: Entry, select: providers.Run, given: Given
) -> Entry:
    """The entry of a selection that is right on the given inputs as well, all of whose rows are compared."""
    wrong = given.checks[entry.provider](select(inputs, "auto"))
    return _entry(case, device, entry.provider, int(wrong.sum()), entry.checked_rows + len(wrong))


def _entry(case: Case, device: torch.device, name: str, wrong: int, checked: int) -> Entry:
    if wrong and name != "torch_topk":
        raise WrongResult(f"{case.name}, {name}: {wrong} of {checked} rows differ from the reference; nothing is timed")
    version = f"torch {torch.__version__}" if name == "torch_topk" else backend.resolve(device).name
    return Entry(name, version, wrong, checked)


def _timed(case: Case, run: Run, call: Callable[[], Any]) -> Timing:
    """The time in the best mode that the call bears."""
    repetitions = run.repetitions if case.kind != "chunk" else max(LEAST_SAMPLES, run.repetitions // FEWER_SAMPLES)
    *rest, last = modes(case, run.device)
    for mode in rest:
        try:
            return run.timer(call, repetitions=repetitions, mode=mode, device=run.device)
        except ValueError as error:  # no graph can hold it
            run.say(f"  {case.name}: {error}")
    return run.timer(call, repetitions=repetitions, mode=last, device=run.device)


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    """The largest memory beyond inputs and result during a call; None on a CPU, which does not count it."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    kept = result.nbytes if isinstance(result, Tensor) else 0
    return max(0, torch.cuda.max_memory_allocated(device) - before - kept)


def _record(
    case: Case,
    rates: Rates,
    entry: Entry,
    timing: Timing,
    peak: int | None,
    read_us: float | None,
    dense_us: float | None,
) -> dict[str, Any]:
    is_floor = entry.provider == "floor_read"
    least = Work(0, 0, 0) if is_floor else work(case, entry.provider, entry.guard)
    floor = None if is_floor else rates.floor_us(least, case.dtype, read_us)
    aim, us = target(case, entry.provider), timing.median_us
    compared = dense_us is not None and not is_floor
    paper = PAPER_REFINE.get(case.L) if case.kind == "chunk" and entry.provider.startswith("refine") else None
    record = {
        **flat(case),
        "mode": timing.mode,
        "provider": entry.provider,
        "version": entry.version,
        "guard": entry.guard,
        "median_us": us,
        "p20_us": timing.p20_us,
        "p80_us": timing.p80_us,
        "repetitions": len(timing.samples_us),
        "late": timing.late,
        "operations": least.operations,
        "tflops": least.operations / us / 1e6 if least.operations else None,
        "floor_us": floor,
        "times_floor": us / floor if floor else None,
        "scores_us": rates.scores_us(least) if least.score_bytes else None,
        "over_dense": dense_us / us if compared else None,
        "paper_over_dense": paper,
        "target_us": aim.us,
        "target_over_dense": aim.over_dense,
        "target_tflops": aim.tflops,
        "target_peak_bytes": aim.peak_bytes,
        "checked_rows": entry.checked_rows,
        "wrong_rows": entry.wrong_rows,
        "peak_bytes": peak,
    }
    return {name: record[name] for name in FIELDS}
