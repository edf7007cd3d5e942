"""The Qrita kernels for what the others leave: wide nuclei, and rows that miss; and what `truncation` tells."""

import triton
import triton.language as tl

from .decisions import LIST, MASK, TOKEN, decide, needed, ties_kept, weighs_all
from .outputs import list_kept, mask_row
from .parts import (
    INF,
    LOG2_E,
    NOTHING,
    entries,
    estimates,
    gather_and_weigh,
    keys_of,
    mass_from,
    survey,
    value_of,
    weights,
)
from .rows import (
    COUNTER_STRIDE,
    CROWDED,
    NUMBERS,
    POINTERS,
    limits_of,
    place_threshold,
    row_of,
    scaled,
    uniform_of,
)
from .searches import nth_column, nth_column_of_row, search, spread_values

# Candidates from one pivot to the next in `wide_kernel`, as a share of what it has scratch memory for.
CELL = tl.constexpr(0.25)
# Rows whose flags are looked at together.
FLAGS = tl.constexpr(32)


@triton.jit
def masses_of_row(row, vocab, stride, t, top, rate, FIX: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of a row; and what it gains when the part below t is summed in units of t, as `hit_kernel` does.

    With the gain it is the very integer that `hit_kernel` finds. Reads the row once.
    """
    lanes, plain, tail = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab, BLOCK):
        values, _ = entries(row, start, vocab, stride, False, BLOCK)
        weight = tl.where(values > -INF, weights(values, top, rate, FIX), 0)
        is_below = (values > -INF) & (keys_of(values) < keys_of(t))
        lanes += weight
        plain += tl.where(is_below, weight, 0)
        tail += tl.where(is_below, weights(tl.minimum(values, t), t, rate, FIX), 0)
    gain = scaled(tl.sum(tail, axis=0), t, top, rate) - tl.sum(plain, axis=0)
    return tl.sum(lanes, axis=0), tl.where(t <= top, gain, 0)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def wide_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, p: tl.float64, temperature: tl.float64, all_ties, places, missed, scratch,
    FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Crowded rows with k alone or p alone, MASK: gather not what is above the cut, but what is around it.

    Grid: programs; each has scratch memory for LANES * DEPTH candidates and owns every so many rows. A row is read with
    pivots around the Gaussian cut, CELL of the scratch memory apart; the step that holds the cut is gathered; what is
    kept is copied. Entries a row: V read three times (once more where a step is still too full, four times at most),
    and written once. A row that this does not decide stays flagged.
    """
    if FAST:
        vocab, stride, out_stride = vocab // 16 * 16, 1, 1  # tells the compiler what it can divide by
    program = tl.program_id(0)
    held = scratch + program.to(tl.int64) * (LANES * DEPTH)
    for index in range(program, batch, tl.num_programs(0)):
        number = tl.cast(index, tl.int64)
        k_row, _, p_row, _, heat = limits_of(number, table, k, 0.0, p, 0.0, temperature)
        by_p = p_row < 1.0
        if (tl.load(missed + number) == CROWDED) & (by_p != (k_row < vocab)):
            rate = (tl.full([], LOG2_E, tl.float64) / heat).to(tl.float32)
            row = logits + number * row_stride
            std, mean = tl.load(places + 4 * number + 1), tl.load(places + 4 * number + 2)
            delta = tl.load(places + 4 * number + 3)
            density = tl.exp2(delta * delta * (-0.5 * LOG2_E)) * 0.39894228 * vocab  # entries per standard deviation
            cell = std * (LANES * DEPTH * CELL) / density
            lane = tl.arange(0, 8)
            pivots = keys_of(mean + delta * std + (lane - 4).to(tl.float32) * cell)
            pivots = tl.where(lane == 0, NOTHING + 1, pivots)
            lo, hi, n_cell = tl.min(pivots, axis=0), tl.max(pivots, axis=0), vocab
            target, reads, top_key = k_row.to(tl.float32), 0, lo
            while (n_cell > LANES * DEPTH // 2) & (reads < 4):
                counts, masses, top_key = estimates(
                    row, vocab, stride, pivots, mean + delta * std, rate, 8, 4 * BLOCK, LANES
                )
                found = tl.where(by_p, masses, counts.to(tl.float32))
                if by_p & (reads == 0):
                    target = tl.max(masses, axis=0) * p_row.to(tl.float32)
                hi = tl.where(reads == 0, top_key + 1, hi)
                enough = found >= target
                lo = tl.max(tl.where(enough, pivots, lo), axis=0)
                hi = tl.min(tl.where(enough, hi, pivots), axis=0)
                n_cell = tl.min(tl.where(enough, counts, vocab), axis=0) - tl.max(tl.where(enough, 0, counts), axis=0)
                pivots = tl.where(lane == 0, lo, spread_values(lo, hi, lane, 8))
                reads += 1
            if n_cell <= LANES * DEPTH // 2:
                top = value_of(top_key)
                n, n_above, from_hi, from_lo, mass = gather_and_weigh(
                    row, vocab, stride, value_of(lo), value_of(hi), top, rate, held, FIX, BLOCK, LANES, DEPTH
                )
                at_hi, at_lo, exact = n_above, n_above + n, k_row
                if by_p:
                    at_hi, at_lo, exact = from_hi, from_lo, needed(p_row, mass)
                if (n >= 0) & (at_lo >= exact) & (at_hi < exact):
                    if by_p:
                        key, above, copies = search(
                            held, n, lo, hi, at_lo, at_hi, exact, top, rate, True, FIX, SEARCH_BLOCK
                        )
                        ties = ties_kept(exact, above, copies, key, top_key, rate, all_ties, FIX)
                    else:
                        key, above, copies = search(
                            held, n, lo, hi, at_lo, at_hi, exact, top, rate, False, FIX, SEARCH_BLOCK
                        )
                        ties = tl.where(all_ties != 0, copies, exact - above)
                    bound = n * 0 + vocab
                    if ties < copies:
                        bound = nth_column(held, n, key, ties, vocab, SEARCH_BLOCK)
                    row = row_of(logits, number, row_stride, FAST)
                    written = row_of(out, number, out_row_stride, FAST)
                    mask_row(row, written, vocab, stride, out_stride, key, bound, 4 * BLOCK)
                    tl.store(missed + number, tl.zeros([], tl.int8))
            tl.debug_barrier()


@triton.jit
def rescue_row(
    number, program, held,
    logits, out, row_stride, stride, out_row_stride, out_stride, vocab,
    table, k, p, temperature, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, places, missed, counters,
    HAS_P: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Decide a row on all its entries, if it is flagged."""
    flag = tl.load(missed + number)
    if flag != 0:
        row = logits + number * row_stride
        k_row, _, p_row, _, heat = limits_of(number, table, k, 0.0, p, 0.0, temperature)
        rate = (tl.full([], LOG2_E, tl.float64) / heat).to(tl.float32)
        t, std = tl.load(places + 4 * number), tl.load(places + 4 * number + 1)
        top_key, n_all = survey(row, vocab, stride, False, 2 * BLOCK)
        all_mass, below = n_all * 0, n_all * 0
        if weighs_all(n_all, k_row, joint):
            all_mass, below = masses_of_row(row, vocab, stride, t, value_of(top_key), rate, FIX, BLOCK)
            below = tl.where(flag == CROWDED, 0, below)  # no kernel gathers such a row
        uniform = uniform_of(seeds, number, WHAT)
        _, key, ties, copies, kept, mass = decide(
            row, vocab, stride, vocab, n_all, n_all >= 0, top_key * 0 + NOTHING + 1, all_mass, below, top_key,
            k_row, p_row, joint, all_ties, uniform, width, rate, t, std, held,
            HAS_P, WHAT, False, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
        )  # fmt: skip
        bound = top_key * 0 + vocab
        if (WHAT == TOKEN and key > NOTHING) or (ties < copies):
            bound = nth_column_of_row(row, vocab, stride, key, ties, BLOCK)
        target = row_of(out, number, out_row_stride, FAST and WHAT == MASK)
        if WHAT == MASK:
            mask_row(row_of(logits, number, row_stride, FAST), target, vocab, stride, out_stride, key, bound, 2 * BLOCK)
        elif WHAT == LIST:
            counter = counters + program * COUNTER_STRIDE
            list_kept(target, row, vocab, stride, key, bound, width, counter, False, BLOCK)
            tl.store(count_ptr + number, kept.to(tl.int32))
            tl.store(mass_ptr + number, mass)
            tl.store(top_ptr + number, value_of(top_key))
        else:
            tl.store(target, tl.where(key > NOTHING, bound, -1).to(tl.int64))
        tl.debug_barrier()


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def rescue_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, p: tl.float64, temperature: tl.float64, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, places, missed, scratch, counters,
    HAS_P: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Decide the flagged rows on all their entries.

    Grid: programs; each has scratch memory for LANES * DEPTH candidates and owns every so many rows. Bytes a row: see
    the README.
    """
    if FAST:
        vocab, stride = vocab // 16 * 16, 1  # tells the compiler what it can divide by
        if WHAT == MASK:
            out_stride = 1
    program = tl.program_id(0)
    held = scratch + program * (LANES * DEPTH)
    step = tl.num_programs(0)
    flags = tl.arange(0, FLAGS) * step + program
    for begin in range(0, batch, step * FLAGS):
        # Most often there are none: one look at many flags.
        some = tl.max(tl.load(missed + begin + flags, mask=begin + flags < batch, other=0).to(tl.int32), axis=0)
        end = tl.where(some > 0, tl.minimum(begin + step * FLAGS, batch), begin)
        for index in range(begin + program, end, step):
            rescue_row(
                tl.cast(index, tl.int64), program, held,
                logits, out, row_stride, stride, out_row_stride, out_stride, vocab,
                table, k, p, temperature, joint, all_ties, seeds, width,
                count_ptr, mass_ptr, top_ptr, places, missed, counters,
                HAS_P, WHAT, FAST, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
            )  # fmt: skip


@triton.jit(do_not_specialize=[*NUMBERS, "paper"], do_not_specialize_on_alignment=POINTERS)
def truncation_kernel(
    logits, row_stride, stride, batch, vocab,
    table, k, delta_k: tl.float64, p: tl.float64, quantile_p: tl.float64, least_delta: tl.float64, margin: tl.float64,
    moments_ptr, threshold_ptr, kept_ptr, mass_ptr, joint, paper,
    FIX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where the threshold of a row lies and what it leaves. Grid: rows. Entries a row: V read three times.

    Writes mean, std and delta [3, B] and the share of the mass [B] as fp64, t [B] fp32, kept [B] int32.
    """
    index = tl.program_id(0)
    number = index.to(tl.int64)
    row = logits + number * row_stride
    k_row, delta_row, p_row, quantile_row, heat = limits_of(number, table, k, delta_k, p, quantile_p, 1.0)
    mean, std, delta, t = place_threshold(
        row, vocab, stride, k_row, delta_row, p_row, quantile_row, heat, least_delta, margin, joint, paper, False
    )
    lanes = tl.full([BLOCK], NOTHING, tl.int32)
    kept = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(row + columns.to(tl.int64) * stride, mask=columns < vocab, other=float("nan")).to(tl.float32)
        kept += (values >= t).to(tl.int32)  # NaN is not, -inf where t is -inf is
        lanes = tl.maximum(lanes, keys_of(tl.where(values == values, values, -INF)))
    top_key = tl.max(lanes, axis=0)
    rate = tl.full([], LOG2_E, tl.float32)
    top, lowest = value_of(top_key), tl.maximum(keys_of(t), NOTHING + 1)
    all_mass = mass_from(row, vocab, stride, top_key * 0 + NOTHING + 1, top, rate, False, FIX, BLOCK)
    mass = mass_from(row, vocab, stride, lowest, top, rate, False, FIX, BLOCK)
    tl.store(moments_ptr + number, mean)
    tl.store(moments_ptr + batch + number, std)
    tl.store(moments_ptr + 2 * batch + number, delta)
    tl.store(threshold_ptr + number, t)
    tl.store(kept_ptr + number, tl.sum(kept, axis=0))
    tl.store(mass_ptr + number, mass.to(tl.float64) / tl.maximum(all_mass, 1).to(tl.float64))
