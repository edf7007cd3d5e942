"""Which configurations `python -m qp_kernels.tune` tries: numbers alone, nothing here runs a kernel.

A candidate must be one that the kernels can work with (`tuned.problem_of`), fit a core's threads and registers and the
scratch memory, and queue what a row leaves no worse than the default does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from . import tuned
from .qrita import configs
from .qrita.configs import Config

STEPS = ("shape", "block", "search", "depth", "registers")
WARPS, RESIDENT_WARPS = (4, 8, 16), (16, 24, 32, 40)
ENTRIES_A_LANE = (2, 4, 8)
LARGEST_BLOCK = 4_096
SEARCH_BLOCKS = (256, 512, 1_024)
LEAST_REGISTERS, MOST_REGISTERS = 40, 128
# Candidates that rows leave: live rows where k is small (a Gaussian row half of that), and k = 1,000.
CANDIDATES = {False: 1_200, True: 5_000}
# How often a queue may be too short, unless the default's is more often.
OVERFLOW = 0.01

Can = Callable[[Config], bool]


class Card(NamedTuple):
    """What a multiprocessor has, and how many there are."""

    name: str
    cores: int
    threads: int
    registers: int

    @classmethod
    def of(cls, device: torch.device) -> Card:
        found = torch.cuda.get_device_properties(device)
        registers = getattr(found, "regs_per_multiprocessor", 65_536)
        return cls(found.name, found.multi_processor_count, found.max_threads_per_multi_processor, registers)


def variations(config: Config, step: str, *, default: Config, side: str, card: Card, crowd: bool) -> list[Config]:
    """Configurations around one that differ in what a step of `STEPS` varies.

    Args:
        default: Of the table; its queues are long enough. side: "many" or "few" rows.
        crowd: Whether rows leave thousands of candidates.
    """

    def can(one: Config) -> bool:
        return fits(one, default, side, card, crowd)

    found = dict.fromkeys(STEP_RULES[step](config, side, card, can))
    return [one for one in found if one != config and can(one)]


def fits(config: Config, default: Config, side: str, card: Card, crowd: bool) -> bool:
    """Whether a configuration can be tried."""
    if tuned.problem_of(config, side) or config.block > LARGEST_BLOCK:
        return False
    if config.lanes * config.per_core > card.threads:
        return False
    if (config.registers or LEAST_REGISTERS) * config.lanes * config.per_core > card.registers:
        return False
    programs = card.cores * config.per_core
    # Few rows share scratch memory by launches; many by programs, of which each core should not lack a whole one.
    if side == "many" and configs.programs_of(programs, config, card.cores) <= programs - card.cores:
        return False
    n = CANDIDATES[crowd]
    return overflow(config, n) <= max(OVERFLOW, overflow(default, n))


def overflow(config: Config, candidates: int) -> float:
    """About how often one of a row's queues is too short for candidates that fall anywhere.

    >>> overflow(Config(4, 1_024, 512, 16, 4), 1_200) > 0.5 > 1e-6 > overflow(Config(4, 1_024, 512, 32, 4), 1_200)
    True
    """
    mean = candidates / config.lanes
    term = within = math.exp(-mean)
    for i in range(1, config.depth + 1):
        term *= mean / i
        within += term
    return min(1.0, config.lanes * max(0.0, 1 - within))


def registers_that_fit(warps: int, per_core: int, card: Card) -> int:
    """Most registers of a thread with which so many programs share a core; the hardware deals them out by eights."""
    return min(MOST_REGISTERS, card.registers // (32 * warps * per_core) // 8 * 8)


def _shapes(config: Config, side: str, card: Card, can: Can) -> list[Config]:
    """Warps and programs per core; blocks of at least two entries a lane, and the shortest queues that will do."""
    found = []
    for warps in WARPS:
        for resident in RESIDENT_WARPS:
            per_core, rest = divmod(resident, warps)
            registers = 0 if rest else registers_that_fit(warps, per_core, card)
            if registers < LEAST_REGISTERS:
                continue
            shape = config._replace(warps=warps, per_core=per_core, registers=registers)
            shape = shape._replace(block=max(config.block, 2 * shape.lanes))
            depth = max(1, config.capacity // shape.lanes)
            found += [one for one in (shape._replace(depth=depth), shape._replace(depth=2 * depth)) if can(one)][:1]
    return found


def _blocks(config: Config, side: str, card: Card, can: Can) -> list[Config]:
    return [config._replace(block=entries * config.lanes) for entries in ENTRIES_A_LANE]


def _searches(config: Config, side: str, card: Card, can: Can) -> list[Config]:
    return [config._replace(search_block=block) for block in SEARCH_BLOCKS]


def _depths(config: Config, side: str, card: Card, can: Can) -> list[Config]:
    return [config._replace(depth=depth) for depth in (config.depth // 2, 2 * config.depth)]


def _registers(config: Config, side: str, card: Card, can: Can) -> list[Config]:
    return [
        config._replace(registers=number) for number in (None, registers_that_fit(config.warps, config.per_core, card))
    ]


STEP_RULES = dict(zip(STEPS, (_shapes, _blocks, _searches, _depths, _registers)))
