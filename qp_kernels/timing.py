"""How long a call takes on a GPU or a CPU: quantiles over repetitions, on distinct inputs, with a cold cache.

Knows clocks, events, graphs and caches; does not know what is timed. What the numbers of a mode hold:

* "gpu": from a CUDA event before the call to one after it, with everything enqueued before the GPU reaches the first.
  So it holds the kernels, the gaps of about a microsecond between them, and 2 to 4 us to start the first; not what the
  host spends on launches. A call that waits for the GPU itself cannot be enqueued ahead; `Timing.late` counts that.
* "graph": the same around the replay of a CUDA graph of the call. It holds the start of the graph on the GPU, also a
  few microseconds, and the same gaps, shortened. Nothing is subtracted: an empty call does not take 0.
* "wall": host time of an eager call and of waiting for its end, which is what a program that needs the result sees.

Cold: before every repetition, outside the timed part, twice the L2 is written and twice the L2 is read. The reading
leaves no changed line in the cache whose write-back would fall into the timed part, for a kernel and its floor alike.
A CPU has no such flush here: there, inputs that together exceed the cache are what makes it cold.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import numbers
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import backend

MODES = ("auto", "gpu", "graph", "wall")
# Clock cycles that the GPU idles before the timed part so that the host can run ahead of it: about 0.1 ms to 20 ms.
FIRST_HEADROOM, MOST_HEADROOM = 200_000, 40_000_000
SMALLEST_FLUSH_BYTES = 32 << 20
# The clocks of an idle card rise within this time.
WAKE_S = 0.3

Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Timing:
    """Times of one call, in microseconds.

    Attributes:
        median_us, p20_us, p80_us: Quantiles of the samples.
        samples_us: In the order measured.
        mode: "gpu", "graph" or "wall", see the top of this file.
        late: Samples of "gpu" or "graph" during which the GPU may have waited for the host.
    """

    median_us: float
    p20_us: float
    p80_us: float
    samples_us: tuple[float, ...]
    mode: str
    late: int = 0


@torch.no_grad()
def measure(
    fn: Callable[..., Any],
    inputs: Sequence[Any] = (),
    *,
    repetitions: int = 30,
    warmup: int = 3,
    mode: str = "auto",
    cold: bool = True,
    device: torch.device | str | None = None,
    prepare: Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Timing:
    """Time `fn(x)`, or `fn()` without inputs.

    Args:
        fn: What is timed; its result is dropped.
        inputs: Tensors that take turns, so that none is in a cache from the call before.
        repetitions: Samples, >= 1. warmup: Calls before them, >= 0; "graph" makes at least one.
        mode: "gpu", "graph", "wall", or "auto": "gpu" on a CUDA device, "wall" on a CPU.
        cold: Whether the L2 of a CUDA device is flushed before every repetition.
        device: Where `fn` runs. None is the device of the inputs; without inputs, the GPU where there is one.
        prepare: Called as `fn` is before every call of it, untimed: restores what `fn` changes in place.
        progress: Called with (samples done, repetitions) after each sample; what it raises ends the measurement.
    Returns:
        `Timing`, times in microseconds.
    Raises:
        ValueError: an argument out of range; a mode for GPUs on a CPU; a call that no CUDA graph can capture.

    >>> timing = measure(torch.sort, [torch.rand(100), torch.rand(100)], repetitions=5, device="cpu")
    >>> timing.mode, len(timing.samples_us), timing.p20_us <= timing.median_us <= timing.p80_us
    ('wall', 5, True)
    """
    arguments = _arguments(inputs)
    device = _device(arguments, device)
    mode = _mode(mode, device)
    repetitions, warmup = _whole("repetitions", repetitions, 1), _whole("warmup", warmup, 0)
    fn, prepare, progress = _callables(fn, prepare, progress)
    with backend.current(device), _no_collection():
        for i in range(warmup):
            prepare(*arguments[i % len(arguments)])
            fn(*arguments[i % len(arguments)])
        calls, prepares = ([functools.partial(each, *one) for one in arguments] for each in (fn, prepare))
        flush = _Flush(device) if cold and device.type == "cuda" else _nothing
        timer = _WallTimer(flush, device) if mode == "wall" else _EventTimer(flush)
        if mode == "graph":
            calls = _captured(calls, prepares)
        samples = []
        for i in range(repetitions):
            samples.append(timer.sample(calls[i % len(calls)], prepares[i % len(calls)]))
            progress(i + 1, repetitions)
    return _timing(samples, mode, timer.late)


def wake(device: torch.device | str, seconds: float = WAKE_S) -> None:
    """Keep a GPU busy until its clocks are up; nothing on a CPU."""
    device = torch.device(device)
    if device.type != "cuda":
        return
    with backend.current(device):
        source = torch.linspace(0.0, 1.0, 1 << 24, device=device)
        target = torch.empty_like(source)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(20):
                torch.sin(source, out=target)
            torch.cuda.synchronize(device)


class _EventTimer:
    """Samples between two events, with the host ahead of the GPU."""

    def __init__(self, flush: Callable[[], Any]):
        self.flush, self.late = flush, 0
        self.headroom, self.hopeless = FIRST_HEADROOM, False
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(self, call: Callable[[], Any], prepare: Callable[[], Any]) -> float:
        """One sample; it is taken again with more headroom while the host is late.

        The host was ahead if the GPU had not reached the first event when the last one was enqueued.
        """
        while True:
            torch.cuda._sleep(self.headroom)
            prepare()
            self.flush()
            self.start.record()
            call()
            self.end.record()
            ahead = not self.start.query()
            self.end.synchronize()
            if not ahead and self.headroom >= MOST_HEADROOM:  # the call waits for the GPU: no headroom helps
                self.headroom, self.hopeless = FIRST_HEADROOM, True
            if ahead or self.hopeless:
                break
            self.headroom = min(2 * self.headroom, MOST_HEADROOM)
        self.late += not ahead
        return self.start.elapsed_time(self.end) * 1e3


class _WallTimer:
    """Samples of the host's clock."""

    def __init__(self, flush: Callable[[], Any], device: torch.device):
        self.flush, self.late = flush, 0
        self.wait = torch.cuda.synchronize if device.type == "cuda" else _nothing

    def sample(self, call: Callable[[], Any], prepare: Callable[[], Any]) -> float:
        prepare()
        self.flush()
        self.wait()
        start = time.perf_counter_ns()
        call()
        self.wait()
        return (time.perf_counter_ns() - start) / 1e3


class _Flush:
    """Leaves nothing in the L2 that was there, and nothing changed."""

    def __init__(self, device: torch.device):
        size = max(2 * torch.cuda.get_device_properties(device).L2_cache_size, SMALLEST_FLUSH_BYTES) // 4
        self.written, self.read = (torch.ones(size, dtype=torch.float32, device=device) for _ in range(2))
        self.largest = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        self.written.fill_(1.0)
        torch.amax(self.read, 0, out=self.largest)


def _captured(calls: list[Callable[[], Any]], prepares: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Replays of a graph of each call; they share one pool of memory, for they run one after another."""
    stream, now = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(now)
    with torch.cuda.stream(stream):  # libraries set themselves up per stream, which no capture may hold
        prepares[0]()
        calls[0]()
        if all(_waits(calls[0], prepares[0]) for _ in range(3)):  # a host that pauses does not do so three times
            raise ValueError("mode='graph': this call waits for the GPU, which no CUDA graph can hold")
    now.wait_stream(stream)
    graphs: list[torch.cuda.CUDAGraph] = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        pool = {"pool": graphs[0].pool()} if graphs else {}
        try:
            # The panels' other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local", **pool):
                call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"mode='graph': this call cannot be captured in a CUDA graph: {reason}") from error
        graphs.append(graph)
    for graph, prepare in zip(graphs, prepares):  # the first replay also uploads the graph
        prepare()
        graph.replay()
    return [graph.replay for graph in graphs]


def _waits(call: Callable[[], Any], prepare: Callable[[], Any]) -> bool:
    """Whether a call waits for the GPU. To try that in a capture would leave torch's generator unusable."""
    reached = torch.cuda.Event()
    prepare()
    torch.cuda._sleep(MOST_HEADROOM)
    reached.record()
    call()
    return reached.query()


def _timing(samples: list[float], mode: str, late: int) -> Timing:
    p20, median, p80 = (float(value) for value in np.quantile(samples, [0.2, 0.5, 0.8]))
    return Timing(median, p20, p80, tuple(samples), mode, late)


def _callables(fn: Any, prepare: Any, progress: Any) -> tuple[Callable[..., Any], ...]:
    """The three functions, with one that does nothing for None."""
    for name, function in (("fn", fn), ("prepare", prepare or _nothing), ("progress", progress or _nothing)):
        if not callable(function):
            raise ValueError(f"{name} must be callable, got {type(function).__name__}")
    return fn, prepare or _nothing, progress or _nothing


def _arguments(inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The positional arguments of each call in turn."""
    if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
        raise ValueError(f"inputs must be a list of tensors, got {type(inputs).__name__}: pass [x] for one")
    return [(one,) for one in inputs] or [()]


def _device(arguments: list[tuple[Any, ...]], device: torch.device | str | None) -> torch.device:
    found = {one.device for pair in arguments for one in pair if isinstance(one, Tensor)}
    if len(found) > 1:
        raise ValueError(f"inputs must be on one device, got {', '.join(sorted(map(str, found)))}")
    if device is None:
        device = found.pop() if found else "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(device)
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a device of torch, got {device!r}") from error
    if found and next(iter(found)).type != device.type:
        raise ValueError(f"inputs are on {found.pop()}, and device is {str(device)!r}")
    return device


def _mode(mode: str, device: torch.device) -> str:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    if mode == "auto":
        return "gpu" if device.type == "cuda" else "wall"
    if mode != "wall" and device.type != "cuda":
        raise ValueError(f"mode={mode!r} needs a CUDA device, got {str(device)!r}: use mode='wall'")
    return mode


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be an int >= {least}, got {value!r}")
    return int(value)


def _nothing(*_: Any) -> None:
    pass


@contextlib.contextmanager
def _no_collection():
    """Without Python's garbage collector, whose pauses are not the call's."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
