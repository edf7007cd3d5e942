"""The launch table of the Qrita kernels, and how a batch is cut into programs. No result depends on either.

Numbers only: nothing here needs a GPU. `TABLE` was measured on an H200; `python -m qp_kernels.tune` measures another
card, and what it finds is kept per device and used from then on.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from .checks import Limits
from .threshold import MARGIN, WHOLE_ROW, quantile

# Scratch memory for candidates in all programs of a launch.
SCRATCH_BYTES = 16 << 20
CANDIDATE_BYTES = 8
# Most candidates that a search can count: four counts share an integer.
MOST_HELD = 2**15 - 1
# Most entries of a row in one program, most programs for a row, and most candidates that one of several holds.
SLICE, SLICES, SLICE_PLACES = 131_072, 32, 4_096


class Config(NamedTuple):
    """How a program works.

    Attributes:
        warps: Of 32 threads; a program that gathers has as many lanes as threads.
        block: Entries of a row that it compares at once.
        search_block: Candidates that it holds in registers while it searches.
        depth: Candidates that a lane can queue.
        per_core: Programs on a multiprocessor at once.
        registers: Most registers of a thread, so that this many fit; None leaves it to the compiler.
    """

    warps: int
    block: int
    search_block: int
    depth: int
    per_core: int
    registers: int | None = None

    @property
    def lanes(self) -> int:
        return 32 * self.warps

    @property
    def capacity(self) -> int:
        """Candidates that a program has scratch memory for."""
        return self.lanes * self.depth


class Line(NamedTuple):
    """A line of the table: what works on rows by the hundred, and what splits fewer rows."""

    many: Config
    few: Config


# By what decides a row. k = 50 leaves 460 candidates of a Gaussian row of 128,256 entries, live rows some 1,100.
TABLE = {
    "k": Line(Config(4, 1_024, 512, 32, 4, 128), Config(4, 1_024, 512, 32, 4, 128)),
    "k, then mass": Line(Config(4, 1_024, 512, 32, 4, 128), Config(4, 1_024, 512, 32, 4, 128)),
    "mass": Line(Config(4, 1_024, 512, 32, 4, 128), Config(4, 1_024, 512, 32, 4, 128)),
    "many candidates": Line(Config(8, 2_048, 512, 32, 2, 128), Config(8, 1_024, 512, 32, 2, 128)),
}
# Most candidates of a Gaussian row that the first two lines are for.
FEW_CANDIDATES = 1_024
# More candidates than these are not gathered: queues would overflow.
MOST = {"k": 1_600, "k, then mass": 1_600, "mass": 1_800, "many candidates": 3_700}
# Fewer entries of a sample say nothing.
LEAST_SAMPLED = 12.0
# Rows per multiprocessor up to which a row is split over programs.
FEW_ROWS = 2
# `place_kernel`; `wide_kernel`; `rescue_kernel`.
PLACE_WARPS, PLACE_REGISTERS = 8, 96
WIDE = Config(8, 2_048, 512, 32, 2, 128)
RESCUE = Config(16, 4_096, 1_024, 16, 1, 128)


class Cut(NamedTuple):
    """How few rows are cut: `slices` of `size` entries with `depth` candidates a lane each, `rows` in one launch."""

    slices: int
    size: int
    depth: int
    rows: int


def line_name(vocab: int, limits: Limits, weighs: bool) -> str:
    """Which line of the table is for a call; `weighs`: masses count."""
    expected = math.inf
    if limits.k_number is not None and limits.order == "k_then_p":
        expected = expected_candidates(limits.k_number, vocab)
    elif not limits.has_k and limits.p_number is not None:
        return "mass"
    if expected > FEW_CANDIDATES:
        return "many candidates"
    return "k, then mass" if weighs else "k"


def table_for(device_name: str | None) -> dict[str, Line]:
    """The table of a card by its name: what `python -m qp_kernels.tune` has measured there, else `TABLE`."""
    kept = None if device_name is None else kept_for(device_name)
    return TABLE if kept is None else kept.lines


def few_rows_for(device_name: str | None) -> float:
    """Rows per multiprocessor up to which a card's rows are split: measured there too, else `FEW_ROWS`."""
    kept = None if device_name is None else kept_for(device_name)
    return FEW_ROWS if kept is None else kept.few_rows


@functools.cache
def kept_for(device_name: str):
    """What is kept of a card (`tuned.Tuned`), or None; read once."""
    from .. import tuned

    return tuned.kept(device_name)


@functools.lru_cache(maxsize=4096)
def expected_candidates(k: int, vocab: int) -> float:
    """How many entries of a Gaussian row the threshold for k leaves; inf where it lies below the mean."""
    delta = quantile(1 - k / vocab) * (1 - MARGIN)
    return vocab * math.erfc(delta / math.sqrt(2)) / 2 if delta > 0 else math.inf


@functools.lru_cache(maxsize=4096)
def cut_of(batch: int, vocab: int, config: Config, cores: int) -> Cut:
    """Split few rows over many programs, and take as many rows at once as scratch memory holds candidates for."""
    step = 4 * config.block
    depth = min(config.depth, max(1, SLICE_PLACES // config.lanes))
    held = SCRATCH_BYTES // (config.lanes * depth * CANDIDATE_BYTES)
    wanted = min(cores * config.per_core // batch, held // batch, SLICES, -(-vocab // step))
    slices = max(-(-vocab // SLICE), wanted, 1)
    size = -(-vocab // (slices * step)) * step
    slices = -(-vocab // size)
    if slices == 1:
        depth = config.depth
    rows = max(1, SCRATCH_BYTES // (slices * config.lanes * depth * CANDIDATE_BYTES))
    return Cut(slices, size, depth, min(rows, batch))


@functools.lru_cache(maxsize=4096)
def most_sampled(name: str, vocab: int) -> float:
    """How many of a sample's entries may reach t, so that a row has seldom more than `MOST` of the line `name`."""
    if vocab <= WHOLE_ROW:
        return float(MOST[name])
    expected = MOST[name] * WHOLE_ROW / vocab
    return max(expected - 1.5 * math.sqrt(expected), LEAST_SAMPLED)


def programs_of(batch: int, config: Config, cores: int) -> int:
    """How many programs own rows, within the scratch memory there is."""
    return min(batch, cores * config.per_core, SCRATCH_BYTES // (config.capacity * CANDIDATE_BYTES))
