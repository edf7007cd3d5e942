"""What this device does at best, measured in the same run: reads and writes memory, multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...pivot.reference import in_float32
from ...timing import Timing, measure
from .. import floors
from .cases import FP8
from .work import Work

GPU_BYTES, CPU_BYTES = 512 << 20, 8 << 20
GPU_SIDE, CPU_SIDE = 8192, 256


@dataclass(frozen=True)
class Rates:
    """GB/s of reading and of writing a large matrix once; TFLOP/s of a square product, by dtype."""

    read_gbps: float
    write_gbps: float
    tflops: dict[str, float]

    def floor_us(self, work: Work, dtype: str, read_us: float | None = None) -> float | None:
        """No selection is faster: the longer of its products and of moving its inputs and result.

        Args:
            read_us: Time of reading the keys, or the scores, where it was measured by itself.
        Returns:
            None where there is no rate for the dtype.
        """
        if work.operations and dtype not in self.tflops:
            return None
        products = work.operations / self.tflops[dtype] / 1e6 if work.operations else 0.0
        return max(products, read_us if read_us is not None else work.bytes / self.read_gbps / 1e3)

    def scores_us(self, work: Work) -> float:
        """What it takes to write the scores once and to read them once."""
        return work.score_bytes * (1 / self.write_gbps + 1 / self.read_gbps) / 1e3

    def about(self) -> dict[str, float]:
        """Flat fields for the results file."""
        rates = {f"matmul_{dtype}_tflops": rate for dtype, rate in self.tflops.items()}
        return {"read_gbps": self.read_gbps, "write_gbps": self.write_gbps, **rates}


def measured(device: torch.device, repetitions: int = 10, timer: Callable[..., Timing] = measure) -> Rates:
    """Measure them; a dtype whose product this device does not have is left out; a CPU has float32 only."""
    on_gpu = device.type == "cuda"
    size, side = (GPU_BYTES, GPU_SIDE) if on_gpu else (CPU_BYTES, CPU_SIDE)
    rows = torch.ones(1024, size // 4096, device=device)
    timed = {"repetitions": repetitions, "device": device}
    _, read = floors.fastest("floor_read", rows, lambda way: timer(way, [rows], **timed))
    write = timer(lambda: rows.fill_(1.0), **timed)
    tflops = {}
    for dtype in ("float32", "bfloat16", "float16", FP8) if on_gpu else ("float32",):
        try:
            time = timer(_product(side, dtype, device), **timed)
        except (RuntimeError, AttributeError, ValueError):
            continue
        tflops[dtype] = 2 * side**3 / time.median_us / 1e6
    return Rates(size / read.median_us / 1e3, size / write.median_us / 1e3, tflops)


def _product(side: int, dtype: str, device: torch.device) -> Callable[[], Tensor]:
    """A square matrix product of random entries: cuBLAS on a GPU; float32 without TF32."""
    rng = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=rng, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if dtype == FP8:
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return in_float32(lambda: a @ b)
