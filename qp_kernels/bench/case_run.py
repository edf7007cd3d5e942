"""One case: everybody checked on the very inputs first, then everybody and the floor timed in turn.

Nothing is timed while our own kernels are wrong. Others are timed, and their wrong rows counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import backend
from ..timing import Progress, Timing, measure, wake
from . import floors
from .cases import Case, check, target
from .cases import modes as modes_of
from .check import wrong_rows
from .providers import OURS, Call, Provider
from .providers import providers as all_providers
from .rows import batches, make

FIELDS = (
    *("case", "rows", "batch", "vocab", "k", "p", "dtype", "operation", "mode", "provider", "version"),
    *("median_us", "p20_us", "p80_us", "repetitions", "late", "bytes_moved", "gbps"),
    *("times_floor", "target_times_floor", "target_us", "correct", "wrong_rows", "peak_bytes", "in_place"),
)
WAKE_S = 0.15


class WrongResult(RuntimeError):
    """Our own kernels broke the contract, so that there is nothing to time."""


class Checked(NamedTuple):
    """A call that was tried on every batch."""

    provider: Provider
    call: Call
    wrong_rows: int
    peak_bytes: int | None


def run_case(
    case: Case,
    rows: Tensor | None = None,
    providers: Mapping[str, Provider] | None = None,
    *,
    repetitions: int = 30,
    modes: tuple[str, ...] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], Any] | None = None,
) -> list[dict[str, Any]]:
    """Check and time one case.

    Args:
        rows: [R, V] on the device to measure on, in the dtype of the case, R >= B; several batches of it take turns.
            None draws them, on the GPU where there is one.
        providers: As `providers()` returns; None is all of those.
        repetitions: Samples of each. modes: Of "gpu", "graph", "wall"; None is what suits the case.
        progress: Called with (samples done, all); what it raises ends the case.
        say: Called with a line for each provider that is left out, and why.
    Returns:
        One record for each mode and provider, and for each mode and floor, with the fields `FIELDS`.
    Raises:
        ValueError: a case that cannot be, or rows that are not of it.
        WrongResult: our own kernels break the contract on these rows.
    """
    if rows is None:
        rows = make(check(case), "cuda" if torch.cuda.is_available() else "cpu")
    inputs = batches(rows, check(case))
    device = inputs[0].device
    providers = all_providers(device) if providers is None else providers
    modes = modes_of(case, device) if modes is None else modes
    with backend.current(device), torch.no_grad():
        checked = _checked(case, inputs, providers, say or _silent)
        steps = (len(checked) + floors.number(case.floor, device)) * len(modes)
        ticks = _Ticks(progress, steps * repetitions)
        wake(device, WAKE_S)
        records = []
        for mode in modes:
            records += _timed(case, inputs, checked, mode, repetitions, ticks, say or _silent)
    return records


def _checked(case: Case, inputs: list[Tensor], providers: Mapping[str, Provider], say: Callable) -> list[Checked]:
    """Those that can do the case, with what they got wrong."""
    found = []
    for provider in providers.values():
        try:
            call = provider.call(case, inputs[0].device)
            if call is not None:
                found.append(_tried(case, inputs, provider, call))
        except Exception as error:  # somebody else's code may fail in any way, and the others still count
            if provider.must:
                raise
            say(_left_out(provider, error))
    return found


def _tried(case: Case, inputs: list[Tensor], provider: Provider, call: Call) -> Checked:
    wrong, peak = 0, None
    for i, batch in enumerate(inputs):
        work = batch.clone() if call.in_place else batch
        if i == 0:
            result, peak = _with_peak(provider, call, work)
        else:
            result = call.run(work)
        result = work if result is None and call.in_place else result
        if result is None:
            raise ValueError(f"{provider.name} returned nothing and changed nothing")
        wrong += wrong_rows(call.kind, result, batch, case.k, case.p)
        del result, work
    if wrong and provider.name == OURS:
        raise WrongResult(
            f"{case.name}: {wrong} of {len(inputs) * case.batch} rows break the contract; nothing is timed"
        )
    return Checked(provider, call, wrong, peak)


def _with_peak(provider: Provider, call: Call, work: Tensor) -> tuple[Any, int | None]:
    """The result, and the largest memory beyond input and result during a first call, with what it keeps for later."""
    if work.device.type != "cuda":
        return call.run(work), None
    provider.forget()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call.run(work)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return result, max(0, peak - (0 if call.in_place else _bytes(result)))


def _bytes(result: Any) -> int:
    tensors = [result] if isinstance(result, Tensor) else result or ()
    return sum(one.numel() * one.element_size() for one in tensors)


def _timed(
    case: Case,
    inputs: list[Tensor],
    checked: list[Checked],
    mode: str,
    repetitions: int,
    ticks: _Ticks,
    say: Callable,
) -> list[dict[str, Any]]:
    """The records of one mode, the floor first."""

    def of_way(way: floors.Way) -> Timing:
        return measure(way, inputs, repetitions=repetitions, mode=mode, progress=ticks)

    way, floor = floors.fastest(case.floor, inputs[0], of_way)
    records = [_record(case, case.floor, way, floor, None, None)]
    for one in checked:
        try:
            timing = _timing_of(one.call, inputs, mode, repetitions, ticks)
        except (RuntimeError, ValueError) as error:  # out of memory, or no graph can hold it
            if one.provider.must:
                raise
            say(_left_out(one.provider, error))
            continue
        records.append(_record(case, one.provider.name, one.provider.version, timing, floor, one))
    return records


def _timing_of(call: Call, inputs: list[Tensor], mode: str, repetitions: int, ticks: _Ticks) -> Timing:
    settings = {"repetitions": repetitions, "mode": mode, "progress": ticks}
    if not call.in_place:
        return measure(call.run, inputs, **settings)
    # What works in place gets fresh rows in one buffer, untimed and before the flush.
    work, turn = torch.empty_like(inputs[0]), iter(range(1 << 62))
    return measure(call.run, [work], prepare=lambda x: x.copy_(inputs[next(turn) % len(inputs)]), **settings)


def _record(
    case: Case, provider: str, version: str, timing: Timing, floor: Timing | None, found: Checked | None
) -> dict[str, Any]:
    aim = target(case, timing.mode) if found else target(case, "")
    record = {
        "case": case.name,
        **case._asdict(),
        "mode": timing.mode,
        "provider": provider,
        "version": version,
        "median_us": timing.median_us,
        "p20_us": timing.p20_us,
        "p80_us": timing.p80_us,
        "repetitions": len(timing.samples_us),
        "late": timing.late,
        "bytes_moved": case.bytes_moved,
        "gbps": case.bytes_moved / timing.median_us / 1e3,
        "times_floor": timing.median_us / floor.median_us if floor else None,
        "target_times_floor": aim.times_floor,
        "target_us": aim.us,
        "correct": not (found and found.wrong_rows),
        "wrong_rows": found.wrong_rows if found else 0,
        "peak_bytes": found.peak_bytes if found else None,
        "in_place": bool(found and found.call.in_place),
    }
    return {name: record[name] for name in FIELDS}


class _Ticks:
    """Counts samples over several measurements."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, *_: int) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def _left_out(provider: Provider, error: Exception) -> str:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return f"  without {provider.name}: {reason}"


def _silent(_: str) -> None:
    pass
