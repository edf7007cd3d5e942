"""Host side of the Qrita kernels: limits as numbers or as a table, scratch memory, and one table of configurations.

Nothing here reads a device value, so a call can be captured in a CUDA graph. Scratch memory is allocated per call, on
the caller's stream.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import backend as backends
from . import kernels, reference
from .checks import Limits
from .threshold import CANDIDATE_BUFFER, MARGIN, TruncationStats, is_hit, least_delta, quantile

# Scratch memory for candidates in all programs of a launch.
SCRATCH_BYTES = 16 << 20
CANDIDATE_BYTES = 8
# Expected candidates, as a multiple of the capacity, from which on a row is not gathered at all.
CROWDED = 1.25
# From here on all finite logits weigh the same, and 1 / T is still a normal fp32 number.
HOTTEST = 1e37


class Config(NamedTuple):
    """One line of the launch table. No result depends on it.

    Attributes:
        capacity: Candidates a program holds.
        block, search_block: Entries of a row, and of the candidates, that a step reads.
        warps: Of 32 threads. per_core: Programs a multiprocessor is to run at once.
    """

    capacity: int
    block: int
    search_block: int
    warps: int
    per_core: int


# By the number of candidates that a Gaussian row would leave: k = 50 of 128,256 leaves 460, live rows some 1,100.
TABLE = (
    (1_024, Config(capacity=4_096, block=2_048, search_block=1_024, warps=8, per_core=2)),
    (float("inf"), Config(capacity=CANDIDATE_BUFFER, block=2_048, search_block=1_024, warps=16, per_core=1)),
)
RESCUE = Config(capacity=CANDIDATE_BUFFER, block=2_048, search_block=1_024, warps=8, per_core=1)


def configure(vocab: int, limits: Limits) -> Config:
    """The line of the table for a call."""
    expected = float("inf")
    if limits.k_number is not None and limits.order == "k_then_p":
        expected = expected_candidates(limits.k_number, vocab)
    return next(config for most, config in TABLE if expected <= most)


@functools.lru_cache(maxsize=4096)
def expected_candidates(k: int, vocab: int) -> float:
    """How many entries of a Gaussian row the threshold for k leaves; inf where it lies below the mean."""
    delta = quantile(1 - k / vocab) * (1 - MARGIN)
    return vocab * math.erfc(delta / math.sqrt(2)) / 2 if delta > 0 else float("inf")


def mask(logits: Tensor, limits: Limits, out: Tensor, temperature: Tensor | float = 1.0) -> None:
    """Write logits [B, V] into `out`, with -inf for what k and p drop; `out` may be logits. Masses are at T."""
    if limits.off:
        reference.mask(logits, limits, out)
    else:
        launch(logits, limits, temperature, out, kernels.MASK.value)


def listed(logits: Tensor, limits: Limits, width: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices, logits, probabilities of the first `width` kept entries in row order, and how many are kept."""
    if width is None:
        width = int(kept_counts(logits, limits).max()) if len(logits) else 0
    if width == 0:
        nothing = torch.empty(len(logits), 0, dtype=torch.float32, device=logits.device)
        return nothing.int(), nothing, nothing, torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
    packed = logits.new_full((len(logits), width), torch.iinfo(torch.int64).min, dtype=torch.int64)
    count, mass, top = launch(logits, limits, 1.0, packed, kernels.LIST.value, width)
    packed = packed.sort(dim=-1, descending=True).values
    filled = torch.arange(width, device=logits.device) < count[:, None]
    indices = torch.where(filled, 0x7FFFFFFF - (packed & 0xFFFFFFFF), 0)
    values = logits.gather(1, indices).float()
    shares = torch.where(values == top[:, None], 1.0, (values.double() - top[:, None]).exp())
    probs = shares * (reference.fixed_point(logits.shape[-1]) / mass[:, None].double())
    filled_with = [(indices, -1), (values, 0), (probs, 0)]
    indices, values, probs = (torch.where(filled, field, nothing) for field, nothing in filled_with)
    return indices.int(), values, probs.float(), count


def kept_counts(logits: Tensor, limits: Limits) -> Tensor:
    """How many entries of each row are kept, [B] int32."""
    packed = logits.new_empty((len(logits), 1), dtype=torch.int64)
    return launch(logits, limits, 1.0, packed, kernels.LIST.value, 1)[0]


def draw(logits: Tensor, limits: Limits, temperature: Tensor | float, seeds: Tensor) -> Tensor:
    """[B] int64: the token that each row's seed draws among what is kept; -1 where nothing is eligible."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    launch(logits, limits, temperature, tokens, kernels.TOKEN.value, seeds=seeds.contiguous())
    return tokens


def launch(
    logits: Tensor,
    limits: Limits,
    temperature: Tensor | float,
    out: Tensor,
    what: int,
    width: int = 1,
    seeds: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Run both kernels; with LIST return number and mass of what is kept and the maximum, [B] each, else nothing."""
    batch, vocab = logits.shape
    device = logits.device
    is_list = what == kernels.LIST.value
    kinds = (torch.int32, torch.int64, torch.float32) if is_list else ()
    found = tuple(torch.empty(batch, dtype=kind, device=device) for kind in kinds)
    if not batch:
        return found
    table, numbers = limits_for_kernels(limits, temperature, vocab, device)
    missed = torch.empty(batch, dtype=torch.int8, device=device)
    # Where p or a draw counts within the whole row, the mass below the threshold counts too.
    by_row = not limits.has_k or table is not None or limits.order == "joint"
    weighs = limits.has_p or what == kernels.TOKEN.value
    with backends.current(device):
        for kernel, config, switches in (
            (kernels.hit_kernel, configure(vocab, limits), {"HAS_P": weighs, "TAIL": weighs and by_row}),
            (kernels.rescue_kernel, RESCUE, {"HAS_P": True, "TAIL": False}),
        ):
            programs = min(batch, programs_of(device, config))
            values = torch.empty(programs * config.capacity, dtype=torch.float32, device=device)
            columns = torch.empty(programs * config.capacity, dtype=torch.int32, device=device)
            counters = torch.empty(programs, dtype=torch.int32, device=device)
            kernel[(programs,)](
                logits,
                out,
                logits.stride(0),
                logits.stride(1),
                out.stride(0),
                out.stride(1) if out.ndim == 2 else 1,
                batch,
                vocab,
                table,
                *numbers,
                least_delta(vocab),
                quantile(max(0.0, 1 - CROWDED * config.capacity / vocab)),
                int(limits.order == "joint"),
                int(limits.ties == "all"),
                seeds,
                width,
                *(found or (None, None, None)),
                missed,
                values,
                columns,
                counters,
                **switches,
                FAST=is_fast(logits) and (what != kernels.MASK.value or is_fast(out)),
                WHAT=what,
                FIX=reference.fixed_point(vocab),
                CAPACITY=config.capacity,
                BLOCK=config.block,
                SEARCH_BLOCK=config.search_block,
                num_warps=config.warps,
            )
    return found


def truncate(logits: Tensor, limits: Limits, margin: float, rule: str) -> TruncationStats:
    """The statistics of logits [B, V]."""
    batch, vocab = logits.shape
    device = logits.device
    moments = torch.empty(3, batch, dtype=torch.float64, device=device)
    value = torch.empty(batch, dtype=torch.float32, device=device)
    kept = torch.empty(batch, dtype=torch.int32, device=device)
    mass = torch.empty(batch, dtype=torch.float64, device=device)
    table, numbers = limits_for_kernels(limits, 1.0, vocab, device)
    if batch:
        with backends.current(device):
            kernels.truncation_kernel[(batch,)](
                logits,
                logits.stride(0),
                logits.stride(1),
                batch,
                vocab,
                table,
                *numbers[:4],
                least_delta(vocab),
                margin,
                moments,
                value,
                kept,
                mass,
                int(limits.order == "joint"),
                int(rule == "paper"),
                FIX=reference.fixed_point(vocab),
                BLOCK=RESCUE.block,
                num_warps=RESCUE.warps,
            )
    mean, std, delta = moments.float().unbind(0)
    hit = is_hit(kept.long(), mass, limits, vocab)
    return TruncationStats(mean, std, delta, value, kept, mass.float(), hit, kept > CANDIDATE_BUFFER)


def is_fast(rows: Tensor) -> bool:
    """Whether the kernels may read or write 16 bytes at once."""
    vocab, row_stride = rows.shape[1], rows.stride(0)
    return rows.stride(1) == 1 and vocab % 16 == 0 and row_stride % 16 == 0 and rows.data_ptr() % 16 == 0


def limits_for_kernels(
    limits: Limits, temperature: Tensor | float, vocab: int, device: torch.device
) -> tuple[Tensor | None, tuple[int, float, float, float, float]]:
    """k, delta_k, p, the normal quantile of p, and T: as numbers, or where one differs by row as a table [B, 5] fp64.

    T = 0 becomes k = 1, and T beyond HOTTEST is HOTTEST.
    """
    if limits.k_rows is None and limits.p_rows is None and not isinstance(temperature, Tensor):
        k, p = limits.k_number or vocab, 1.0 if limits.p_number is None else limits.p_number
        if temperature == 0:
            return None, (1, quantile(1 - 1 / vocab), 1.0, float("inf"), 1.0)
        return None, (k, quantile(1 - k / vocab), p, quantile(p), min(temperature, HOTTEST))
    batch = limits.batch
    k = limits.k.double() if limits.k is not None else torch.full((batch,), vocab, dtype=torch.float64, device=device)
    p = limits.p if limits.p is not None else torch.ones(batch, dtype=torch.float64, device=device)
    heat = torch.ones_like(p)
    if isinstance(temperature, Tensor) or temperature != 1:
        heat = heat * temperature
        k, p = torch.where(heat > 0, k, 1.0), torch.where(heat > 0, p, 1.0)
        heat = torch.where(heat > 0, heat, 1.0).clamp(max=HOTTEST)
    delta_k = torch.special.ndtri(1 - k / vocab).where(k < vocab, -float("inf"))
    quantile_p = torch.special.ndtri(p)
    return torch.stack([k, delta_k, p, quantile_p, heat], dim=1), (vocab, 0.0, 1.0, 0.0, 1.0)


@functools.cache
def cores(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def programs_of(device: torch.device, config: Config) -> int:
    """How many programs run, within the scratch memory there is."""
    return min(cores(device) * config.per_core, SCRATCH_BYTES // (config.capacity * CANDIDATE_BYTES))
