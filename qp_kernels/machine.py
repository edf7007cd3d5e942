"""What a launch asks of a device, and launches without Triton's look at every argument. Knows no kernel."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

# Shared memory of a program on a Hopper card, for the interpreter.
HOPPER_BYTES = 227 << 10
# Compiled kernels by what they are compiled for, and their constants in order. Triton finds them too, but takes long.
COMPILED: dict[tuple, tuple[Any, tuple]] = {}


@functools.cache
def limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and the bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 1, HOPPER_BYTES
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest one from `least` on that is at least `number`."""
    return max(least, 1 << (number - 1).bit_length())


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A host tensor on a device; the host does not wait for what the stream has to do before."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def run(
    kernel,
    grid: tuple[int, ...],
    arguments: tuple,
    constants: dict,
    warps: int,
    registers: int | None = None,
    *,
    fused: bool = True,
) -> None:
    """Launch a Triton kernel on the current device and stream.

    Args:
        arguments: All that are not constants, which follow them in the kernel. constants: By name.
        registers: Most of a thread; None leaves it to the compiler.
        fused: Whether a product and a sum may become one operation, with one rounding.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    key = (kernel, device, warps, registers, fused, *map(kind_of, arguments), *constants.items())
    compiled, values = COMPILED.get(key, (None, ()))
    if compiled is not None:
        stream = torch.cuda.current_stream().cuda_stream
        compiled[(*grid, 1, 1)[:3]](*arguments, *values, stream=stream)
        return
    options = {} if registers is None else {"maxnreg": registers}
    if not fused:
        options["enable_fp_fusion"] = False
    compiled = kernel[grid](*arguments, **constants, num_warps=warps, **options)
    if compiled is not None:  # nothing is compiled for the interpreter
        COMPILED[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :])


def kind_of(argument: Tensor | int | None):
    """What a compilation takes from an argument: a type, and whether 16 divides it; 1 is a constant of its own."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument if argument is None or argument == 1 else (argument % 16 == 0, -(2**31) <= argument < 2**31)
