"""Host side of the Qrita kernels: limits as numbers or as a table, scratch memory, and which kernels run.

Nothing here reads a device value, so a call can be captured in a CUDA graph. Scratch memory is allocated per call, on
the caller's stream.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .. import backend as backends
from . import configs, decisions, fallbacks, kernels, outputs, reference
from .checks import Limits
from .rows import COUNTER_STRIDE, PLACES
from .threshold import CANDIDATE_BUFFER, TruncationStats, is_hit, least_delta, quantile

MASK, LIST, TOKEN = (what.value for what in (decisions.MASK, decisions.LIST, decisions.TOKEN))
# Compiled kernels by what they are compiled for, and their constants in order. Triton finds them too, but takes 20 us.
COMPILED: dict[tuple, tuple[Any, tuple]] = {}
# Widest list that a program sorts.
MOST_SORTED = 1_024
# 1 / T is still a normal fp32 number. A higher T counts as this one: logits less than 1e30 apart weigh the same.
HOTTEST = 1e37


def mask(logits: Tensor, limits: Limits, out: Tensor, temperature: Tensor | float = 1.0) -> None:
    """Write logits [B, V] into `out`, with -inf for what k and p drop; `out` may be logits. Masses are at T."""
    if limits.off:
        reference.mask(logits, limits, out)
    else:
        launch(logits, limits, temperature, out, MASK)


def listed(logits: Tensor, limits: Limits, width: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices, logits, probabilities of the first `width` kept entries in row order, and how many are kept."""
    if width is None:
        width = int(kept_counts(logits, limits).max()) if len(logits) else 0
    if width == 0:
        nothing = torch.empty(len(logits), 0, dtype=torch.float32, device=logits.device)
        return nothing.int(), nothing, nothing, torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
    packed = torch.empty(len(logits), width, dtype=torch.int64, device=logits.device)
    count, mass, unit = launch(logits, limits, 1.0, packed, LIST, width)
    columns = torch.empty(packed.shape, dtype=torch.int32, device=logits.device)
    values, probs = torch.empty_like(columns, dtype=torch.float32), torch.empty_like(columns, dtype=torch.float32)
    if width > MOST_SORTED:
        packed.masked_fill_(torch.arange(width, device=logits.device) >= count[:, None], torch.iinfo(torch.int64).min)
        packed = packed.sort(dim=-1, descending=True).values
    block = min(1 << (width - 1).bit_length(), MOST_SORTED)
    with backends.current(logits.device):
        outputs.table_kernel[(len(logits),)](
            packed,
            logits,
            logits.stride(0),
            logits.stride(1),
            width,
            count,
            mass,
            unit,
            columns,
            values,
            probs,
            FIX=reference.fixed_point(logits.shape[-1]),
            SORT=width <= MOST_SORTED,
            BLOCK=block,
            num_warps=max(1, block // 256),
        )
    return columns, values, probs, count


def kept_counts(logits: Tensor, limits: Limits) -> Tensor:
    """How many entries of each row are kept, [B] int32."""
    packed = logits.new_empty((len(logits), 1), dtype=torch.int64)
    return launch(logits, limits, 1.0, packed, LIST, 1)[0]


def draw(logits: Tensor, limits: Limits, temperature: Tensor | float, seeds: Tensor) -> Tensor:
    """[B] int64: the token that each row's seed draws among what is kept; -1 where nothing is eligible."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    launch(logits, limits, temperature, tokens, TOKEN, seeds=seeds.contiguous())
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
    """Run the kernels; with LIST return number and mass of what is kept and the maximum, [B] each, else nothing."""
    batch, device = len(logits), logits.device
    kinds = (torch.int32, torch.int64, torch.float32) if what == LIST else ()
    found = tuple(torch.empty(batch, dtype=kind, device=device) for kind in kinds)
    if batch:
        with backends.current(device):
            Call(logits, limits, temperature, out, what, width, seeds, found).run()
    return found


class Call:
    """One launch of the kernels: what they are given, and in which order they run."""

    def __init__(self, logits, limits, temperature, out, what, width, seeds, found):
        self.logits, self.out, self.what, self.device = logits, out, what, logits.device
        self.batch, self.vocab = logits.shape
        self.cores = cores(self.device)
        self.table, numbers = limits_for_kernels(limits, temperature, self.vocab, self.device)
        self.numbers, (k, _, p, _, self.heat) = numbers, numbers
        self.all_ties, self.joint = int(limits.ties == "all"), int(limits.order == "joint")
        last = out.stride(1) if out.ndim == 2 else 1
        self.matrices = (logits, out, logits.stride(0), logits.stride(1), out.stride(0), last)
        self.limits = (self.table, k, p, self.heat)
        self.owned = (*self.matrices, self.batch, self.vocab, *self.limits)
        self.wanted = (self.joint, self.all_ties, seeds, width, *(found or (None, None, None)))
        weighs = limits.has_p or what == TOKEN
        # Where p or a draw counts within the whole row, the mass below the threshold counts too.
        tail = weighs and (not limits.has_k or self.table is not None or limits.order == "joint")
        fast = is_fast(logits) and (what != MASK or is_fast(out))
        self.fixed = {"FAST": fast, "FIX": reference.fixed_point(self.vocab)}
        self.switches = {"HAS_P": weighs, "TAIL": tail, "WHAT": what, **self.fixed}
        self.name = name = configs.line_name(self.vocab, limits, weighs)
        self.line = configs.table_for(card(self.device))[name]
        self.is_split = self.batch <= configs.few_rows_for(card(self.device)) * self.cores
        # A cut within few candidates is never too deep for them.
        self.has_window = name in ("mass", "many candidates")
        self.places = torch.empty(self.batch, PLACES.value, dtype=torch.float32, device=self.device)
        self.missed = torch.empty(self.batch, dtype=torch.int8, device=self.device)
        self.arrived = torch.empty(self.batch, dtype=torch.int32, device=self.device)
        self.cut = configs.cut_of(self.batch, self.vocab, self.line.few, self.cores)
        self.held, self.counters = self.scratch()
        self.stream = torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None
        # All that a kernel's compilation depends on besides its constants: types, and whether numbers pass 2**31.
        sizes = tuple(size >= 2**31 for size in (self.vocab, self.batch, *self.matrices[2:], width))
        self.kind = (self.device, logits.dtype, out.dtype, self.table is None, seeds is None, not found, sizes)

    def scratch(self) -> tuple[Tensor, Tensor | None]:
        """Memory for candidates, which all kernels use in turn, and (LIST) a counter a program."""
        owners = (self.line.many, configs.WIDE, configs.RESCUE)
        programs = [configs.programs_of(self.batch, config, self.cores) for config in owners]
        places = [n * config.capacity for n, config in zip(programs, owners, strict=True)]
        if self.is_split:
            places[0] = self.cut.rows * self.cut.slices * self.line.few.lanes * self.cut.depth
        held = torch.empty(max(places), dtype=torch.int64, device=self.device)
        if self.what != LIST:
            return held, None
        n = max(*programs, self.cut.rows) * COUNTER_STRIDE.value
        return held, torch.empty(n, dtype=torch.int32, device=self.device)

    def run(self) -> None:
        self.place()
        self.split() if self.is_split else self.whole()
        if self.what == MASK and self.has_window:
            self.wide()
        self.rescue()

    def place(self) -> None:
        self.call(
            kernels.place_kernel,
            self.batch,
            (
                self.logits,
                *self.matrices[2:4],
                self.vocab,
                self.table,
                *self.numbers,
                least_delta(self.vocab),
                configs.most_sampled(self.name, self.vocab),
                configs.most_sampled("mass", self.vocab),
                unit_bits(self.vocab),
                self.joint,
                self.places,
                self.missed,
                self.arrived,
            ),
            {
                "WHAT": self.what,
                "WINDOW": self.has_window,
                "FAST": self.logits.stride(1) == 1,
                "LANES": 32 * configs.PLACE_WARPS,
            },
            configs.PLACE_WARPS,
            configs.PLACE_REGISTERS,
        )

    def whole(self) -> None:
        config = self.line.many
        self.call(
            kernels.hit_kernel,
            configs.programs_of(self.batch, config, self.cores),
            (*self.owned, *self.wanted, self.places, self.missed, self.held, self.counters),
            self.switches | of(config),
            config.warps,
            config.registers,
        )

    def split(self) -> None:
        config, cut = self.line.few, self.cut
        n = cut.rows * cut.slices
        counts, tops, tails = (
            torch.empty(n, dtype=kind, device=self.device) for kind in (torch.int32, torch.float32, torch.int64)
        )
        # Out of place a row is filled before it is decided: whatever decides it writes what is kept.
        fills = self.what == MASK and self.out.data_ptr() != self.logits.data_ptr()
        constants = self.switches | of(config)
        constants |= {"DEPTH": cut.depth, "FILL": fills, "SLICES": 1 << (cut.slices - 1).bit_length()}
        for first in range(0, self.batch, cut.rows):
            cuts = (first, cut.size, cut.slices, self.arrived, counts, tops, tails)
            self.call(
                kernels.split_kernel,
                min(cut.rows, self.batch - first) * cut.slices,
                (
                    *self.matrices,
                    self.vocab,
                    *self.limits,
                    *self.wanted,
                    self.places,
                    self.missed,
                    self.held,
                    self.counters,
                    *cuts,
                ),
                constants,
                config.warps,
                config.registers,
            )

    def wide(self) -> None:
        self.call(
            fallbacks.wide_kernel,
            configs.programs_of(self.batch, configs.WIDE, self.cores),
            (*self.owned, self.all_ties, self.places, self.missed, self.held),
            {"HAS_P": self.switches["HAS_P"], **self.fixed, **of(configs.WIDE)},
            configs.WIDE.warps,
            configs.WIDE.registers,
        )

    def rescue(self) -> None:
        self.call(
            fallbacks.rescue_kernel,
            configs.programs_of(self.batch, configs.RESCUE, self.cores),
            (*self.owned, *self.wanted, self.places, self.missed, self.held, self.counters),
            {"HAS_P": True, "WHAT": self.what, **self.fixed, **of(configs.RESCUE)},
            configs.RESCUE.warps,
            configs.RESCUE.registers,
        )

    def call(self, kernel, programs: int, arguments: tuple, constants: dict, warps: int, registers: int | None) -> None:
        """Launch a kernel. What it is compiled for is `kind` and the constants: see `COMPILED`."""
        key = (kernel, self.kind, warps, registers, *constants.items())
        compiled, values = COMPILED.get(key, (None, ()))
        if compiled is not None:
            compiled[(programs, 1, 1)](*arguments, *values, stream=self.stream)
            return
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps, maxnreg=registers)
        if compiled is not None:  # nothing is compiled for the interpreter
            COMPILED[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :])


def of(config: configs.Config) -> dict[str, int | None]:
    """A configuration as arguments of a kernel that gathers and searches."""
    return {
        "BLOCK": config.block,
        "SEARCH_BLOCK": config.search_block,
        "LANES": config.lanes,
        "DEPTH": config.depth,
    }


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
            fallbacks.truncation_kernel[(batch,)](
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
                BLOCK=configs.RESCUE.block,
                LANES=configs.RESCUE.lanes,
                num_warps=configs.RESCUE.warps,
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


@functools.lru_cache(maxsize=4096)
def unit_bits(vocab: int) -> float:
    """How far above the largest entry of its sample the unit of a row's masses may lie, as a power of two.

    So far that what rounding down V weights loses is still below 2**-22 of the mass; not below it, for V entries of
    its weight must not pass 2**62.
    """
    return max(0.0, math.log2(reference.fixed_point(vocab)) - 22 - math.log2(vocab))


@functools.cache
def card(device: torch.device) -> str | None:
    """The name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


@functools.cache
def cores(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
