"""What a launch asks of a device. Knows torch; runs nothing."""

from __future__ import annotations

import functools

import torch

# Shared memory of a program on a Hopper card, for the interpreter.
HOPPER_BYTES = 227 << 10


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
