"""What runs here: versions, devices, driver, back-end and why. Knows nothing of the operations."""

from __future__ import annotations

import html
import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

from . import backend


@dataclass(frozen=True)
class Report:
    """Rows of (name, value) text. Shows as a table in a notebook and as lines in a terminal."""

    rows: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, str]:
        """A copy of the rows, ready for JSON."""
        return dict(self.rows)

    def __str__(self) -> str:
        width = max(map(len, self.rows), default=0)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self.rows.items()
        )
        return f"<table>{''.join(cells)}</table>"


def report() -> Report:
    """Collect versions, CPU, GPU, driver, and the back-end `backend="auto"` takes here with its reason.

    >>> sorted(report().as_dict())
    ['CPU', 'GPU', 'back-end', 'device', 'driver', 'numpy', 'python', 'system', 'torch', 'triton']
    """
    usable = torch.cuda.is_available()
    chosen = backend.resolve("cuda" if usable else "cpu")
    return Report(
        {
            "python": platform.python_version(),
            "torch": str(torch.__version__),  # with its build, which the metadata may lack
            "triton": _version("triton"),
            "numpy": _version("numpy"),
            "system": platform.platform(),
            "CPU": f"{_cpu_model()}, {_cores()} cores, {torch.get_num_threads()} torch threads",
            "GPU": _gpus() if usable else backend.card_problem() or "none",
            "driver": backend.nvidia_smi("driver_version") or "none",
            "device": "cuda" if usable else "cpu",
            "back-end": f"{chosen.name}: {chosen.reason}",
        }
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpus() -> str:
    names = [
        f"{p.name} ({p.total_memory / 2**30:.0f} GiB)"
        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    return ", ".join(names)
