"""Timing on this machine, for `TimingExplorer`: who can run here, which sizes fit, and one measurement at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

import torch

from qp_kernels import backend, bench
from qp_kernels.bench import rows as bench_rows
from qp_kernels.bench.cases import DTYPES, OPERATIONS, check, modes
from qp_kernels.report import report
from widgets.controls import k_grid, p_grid
from widgets.timing_records import OURS, Spot, Timings, quantity

# Ways that are shown from the start, where they can run.
FIRST_SHOWN = (OURS, "vllm", "flashinfer", "torch_topk", "torch_sort")
WAYS = (*FIRST_SHOWN, "transformers_rule")
CPU_BYTES, GPU_SHARE, CPU_BATCH = 32 << 20, 1 / 16, 64
MADE = ("gauss", "miss", "lie")
CPU_REPETITIONS, GPU_REPETITIONS = 10, 30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 132, 256, 512, 1024)
VOCABS = (1024, 4096, 8192, 16_384, 32_768, 65_536, 128_256, 262_144)
LINE = {"k": (1, 10, 50, 200, 1000, 5000, 20_000), "p": (0.1, 0.5, 0.9, 0.99, 0.999), "batch": BATCHES, "vocab": VOCABS}
_one_at_a_time = threading.Lock()  # two panels that measure at once would time each other


class LiveTimings(Timings):
    """Measured on one device, and kept.

    Args:
        device: "cuda", "cpu", or None for the GPU where there is one. own: As `bench.providers` takes them.
        logits: Rows [R, V] of a model, which are measured as rows "live".
    """

    def __init__(
        self,
        device: str | None = None,
        own: Mapping[str, Callable] | None = None,
        logits: torch.Tensor | None = None,
    ):
        self.where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.on_gpu = self.where.type == "cuda"
        name = report().as_dict()["GPU" if self.on_gpu else "CPU"]
        used = backend.resolve(self.where).name
        caption = f"measured here on {'the GPU' if self.on_gpu else 'the CPU'} {name} · {used} back-end"
        caption += "" if self.on_gpu else " on one thread"
        super().__init__(caption, self._word(), False)
        if logits is not None and (logits.ndim != 2 or not logits.is_floating_point()):
            raise ValueError(f"logits must be floating point [R, V], got {logits.dtype} {list(logits.shape)}")
        self.logits = logits
        self.own = dict(own or {})
        self.tried: dict[Spot, set[str]] = {}
        self.left_out: dict[Spot, list[str]] = {}
        self._ways: dict | None = None
        self._rows: tuple | None = None

    def _word(self) -> str:
        return torch.cuda.get_device_name(self.where) if self.on_gpu else "this CPU"

    @property
    def most_bytes(self) -> int:
        """Largest matrix that is measured."""
        return int(torch.cuda.get_device_properties(self.where).total_memory * GPU_SHARE) if self.on_gpu else CPU_BYTES

    @property
    def repetitions(self) -> int:
        return GPU_REPETITIONS if self.on_gpu else CPU_REPETITIONS

    def clocks(self, spot: Spot) -> list[str]:
        """Clocks that a case is timed by."""
        return sorted({"wall" if mode == "wall" else "gpu" for mode in modes(spot.case, self.where)})

    @property
    def names(self) -> list[str]:
        """Ways that can run here, or that may, until they were looked for."""
        return list(self._ways) if self._ways is not None else [*WAYS, *self.own]

    def choices(self, spot: Spot) -> dict[str, list]:
        """What the controls of a spot can be set to here."""
        return {
            "rows": [*MADE, *(["live"] if self.logits is not None else [])],
            "batch": [batch for batch in BATCHES if self.on_gpu or batch <= CPU_BATCH],
            "vocab": self._vocabs(spot),
            "k": k_grid(spot.vocab),
            "p": p_grid(),
            "dtype": list(DTYPES),
            "operation": list(OPERATIONS),
            "clock": self.clocks(spot),
        }

    def _vocabs(self, spot: Spot) -> list[int]:
        """Sizes up to that of the model's logits, where those are measured."""
        if spot.rows != "live" or self.logits is None:
            return list(VOCABS)
        width = self.logits.shape[1]
        return [*(vocab for vocab in VOCABS if vocab < width), width]

    def check(self, spot: Spot) -> None:
        """Raises ValueError where a spot cannot be measured here."""
        for name in ("rows", "dtype", "operation", "clock"):
            if getattr(spot, name) not in (known := self.choices(spot)[name]):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {getattr(spot, name)!r}")
        check(spot.case)
        size = spot.batch * spot.vocab * getattr(torch, spot.dtype).itemsize
        if size > self.most_bytes:
            raise ValueError(
                f"B × V is {size / 1e6:,.0f} MB of logits, and at most {self.most_bytes / 1e6:,.0f} MB are measured on "
                f"{self.device}: take fewer rows or a smaller vocabulary"
            )

    def ways(self) -> dict:
        """Provider name -> provider that can run here; asked once, since other libraries load slowly."""
        if self._ways is None:
            self._ways = bench.providers(self.where, own=self.own)
        return self._ways

    def lacks(self, spot: Spot, names: tuple[str, ...]) -> bool:
        """Whether a way that can run here was not measured at a spot."""
        known = self.tried.get(spot, set())
        return any(name not in known and (self._ways is None or name in self._ways) for name in names)

    def line_of(self, spot: Spot, over: str) -> list[Spot]:
        """The spots that a line over a quantity is measured at: a fixed grid, and the spot itself."""
        values = {*LINE[over], getattr(spot, over)} - {None}
        line = [spot._replace(**{over: value}) for value in sorted(values, key=lambda v: quantity(over, v))]
        return [one for one in line if self._fits(one)]

    def _fits(self, spot: Spot) -> bool:
        try:
            self.check(spot)
        except ValueError:
            return False
        return spot.clock in self.clocks(spot) and (spot.k is None or spot.k <= spot.vocab)

    def measure(self, spot: Spot, names: tuple[str, ...], repetitions: int, progress: Callable[[int, int, str], None]):
        """Time the named ways and the floors at a spot, by all its clocks."""
        progress(0, 0, "looking for the libraries that are here")
        ways = {name: way for name, way in self.ways().items() if name in names}
        what = f"B = {spot.batch:,}, V = {spot.vocab:,}: call"
        with self._turn(progress), self._one_thread():
            progress(0, 0, "making the rows")
            rows, said = self._rows_of(spot), []
            found = bench.run_case(
                spot.case,
                rows,
                ways,
                repetitions=repetitions,
                progress=lambda done, total: progress(done, total, what),
                say=lambda line: said.append(line.strip()),
            )
        self.add(found)
        for clock in self.clocks(spot):
            here = spot._replace(clock=clock)
            self.tried.setdefault(here, set()).update(names)
            self.left_out[here] = said

    def notes(self, spot: Spot) -> list[str]:
        return self.left_out.get(spot, [])

    def _rows_of(self, spot: Spot) -> torch.Tensor:
        key = (spot.rows, spot.batch, spot.vocab, spot.dtype, spot.k if spot.rows in ("miss", "lie") else None)
        if self._rows is None or self._rows[0] != key:
            self._rows = None  # freed before the next is made
            self._rows = (key, bench_rows.make(spot.case, self.where, self.logits))
        return self._rows[1]

    @contextlib.contextmanager
    def _turn(self, progress: Callable[[int, int, str], None]) -> Iterator[None]:
        while not _one_at_a_time.acquire(timeout=0.1):
            progress(0, 0, "another panel measures")
        try:
            yield
        finally:
            _one_at_a_time.release()

    @contextlib.contextmanager
    def _one_thread(self) -> Iterator[None]:
        """On a CPU torch waits for the slowest of its threads, and beside other work that is what would be timed."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads if self.on_gpu else 1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def release(self) -> None:
        """Free rows and libraries."""
        self._rows = self._ways = self.logits = None
