"""Which back-end runs, and why.

Knows: devices, the driver, whether Triton kernels exist for them. Does not know: any operation.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass

import torch

BACKENDS = ("auto", "triton", "torch")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Resolution:
    """The back-end that runs (`"torch"` or `"triton"`) and the reason, one sentence for a caption."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def resolve(device_or_tensor: torch.device | str | torch.Tensor = "cpu", requested: str = "auto") -> Resolution:
    """Tell which back-end runs on a device.

    Args:
        device_or_tensor: A tensor, a `torch.device` or its name.
        requested: "auto" (Triton on CUDA tensors where it can run, else torch), "triton" or "torch".
    Returns:
        `Resolution(name, reason)`.
    Raises:
        ValueError: an unknown back-end.
        RuntimeError: a device this package does not run on, or `requested="triton"` where Triton cannot run; the
            message says what to do.

    >>> resolve("cpu", "torch")
    Resolution(name='torch', reason='asked for')
    """
    if requested not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {requested!r}")
    is_tensor = isinstance(device_or_tensor, torch.Tensor)
    device = device_or_tensor.device if is_tensor else torch.device(device_or_tensor)
    if device.type not in DEVICES:
        raise RuntimeError(f"device {str(device)!r} is not supported (cpu and cuda are): pass logits.cpu()")
    if requested == "torch":
        return Resolution("torch", "asked for")
    # The interpreter is for tests: it runs only where it is asked for.
    obstacle = _triton_obstacle(device.type, requested == "triton" and os.environ.get("TRITON_INTERPRET") == "1")
    if obstacle is None:
        return Resolution("triton", "asked for" if requested == "triton" else f"the tensors are on {device}")
    if requested == "triton":
        raise RuntimeError(f"backend='triton' cannot run here: {obstacle}. Use backend='auto' or backend='torch'")
    return Resolution("torch", obstacle)


def _triton_obstacle(device_type: str, interpreted: bool) -> str | None:
    """Why Triton cannot run on tensors of this device, or None."""
    if device_type == "cpu" and not interpreted:
        problem = card_problem()
        where = "the tensors are on the CPU; Triton needs CUDA tensors or TRITON_INTERPRET=1 set before import"
        return f"{where} ({problem})" if problem else where
    if not has_triton():
        return "triton is not installed (it has wheels for Linux only)"
    return None


def current(device: torch.device) -> contextlib.AbstractContextManager:
    """Make a device the current one: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


@functools.cache
def has_triton() -> bool:
    """Whether triton is installed; it is not imported."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def card_problem() -> str | None:
    """What keeps torch from the NVIDIA card of this machine, or None (no card, or it works)."""
    if torch.cuda.is_available():
        return None
    card = nvidia_smi("name")
    if card is None:
        return None
    if torch.version.cuda is None:
        return f"{card} is there, but torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # "driver too old" arrives here
        return f"{card} is there but unusable: {str(error).splitlines()[0]}"
    return f"{card} is there, but torch sees no usable device (is CUDA_VISIBLE_DEVICES empty?)"


def nvidia_smi(field: str) -> str | None:
    """First answer of `nvidia-smi --query-gpu=<field>`; None where there is no working driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0].strip() if lines else None
