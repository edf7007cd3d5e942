"""The Qrita kernels: exact top-k / top-p of logit rows.

`hit_kernel` reads a row once, gathers what is above its Gaussian threshold and decides among those candidates. A row
whose candidates are too few or too many is left untouched and flagged; `rescue_kernel` decides those on the whole row.
Both end in the same cut (key, ties): every entry above the key and the first `ties` entries equal to it. A row's cut is
a function of its entries, k and p alone: it is the same whichever kernel finds it.

Read `parts.py` first (keys, weights, the sample, gathering), then `searches.py`, `decisions.py` and `outputs.py`.
"""

import triton
import triton.language as tl

from . import threshold as thresholds
from .decisions import LIST, MASK, TOKEN, decide, weighs_all
from .outputs import fill, list_kept, mask_row, scatter
from .parts import (
    BEYOND,
    INF,
    LOG2_E,
    NOTHING,
    gather,
    keys_of,
    largest,
    load,
    mass_from,
    sample_moments,
    survey,
    threshold,
    value_of,
    weights,
)
from .searches import nth_column, nth_column_of_row

# Nothing is truncated in smaller vocabularies.
SMALL_VOCABULARY = tl.constexpr(thresholds.SMALL_VOCABULARY)
MARGIN = tl.constexpr(thresholds.MARGIN)
# No kernel of its own is compiled for a value or an alignment of these: where it pays there is FAST.
NUMBERS = ["row_stride", "stride", "out_row_stride", "out_stride", "batch", "vocab", "k", "joint", "all_ties", "width"]
POINTERS = ["logits", "out", "table", "seeds"]


@triton.jit
def row_of(matrix, number, row_stride, FAST: tl.constexpr):
    """Where a row (int64 number) begins; FAST promises the compiler that this is a multiple of 16 bytes."""
    row = matrix + number * row_stride
    if FAST:
        row = tl.multiple_of(row, 16)
    return row


@triton.jit
def limits_of(row, table, k, delta_k, p, quantile_p, temperature):
    """k, delta_k, p, the normal quantile of p, and T of a row: from its line of the table [B, 5], if there is one."""
    if table is not None:
        line = table + row * 5
        k, delta_k, p = tl.load(line), tl.load(line + 1), tl.load(line + 2)
        quantile_p, temperature = tl.load(line + 3), tl.load(line + 4)
    k, delta_k = tl.full([], k, tl.float64).to(tl.int64), tl.full([], delta_k, tl.float64)
    p, quantile_p = tl.full([], p, tl.float64), tl.full([], quantile_p, tl.float64)
    return k, delta_k, p, quantile_p, tl.full([], temperature, tl.float64)


@triton.jit
def place_threshold(
    row, vocab, stride, k, delta_k, p, quantile_p, temperature, least_delta, margin,
    joint, paper, TOKEN_ONLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mean, std, delta (fp64) and t (fp32) of a row."""
    mean, std = sample_moments(row, vocab, stride, BLOCK)
    floor_p = tl.full([], least_delta, tl.float64)
    delta_p = std / temperature - quantile_p
    delta_p = tl.where(delta_p > floor_p, floor_p, delta_p)  # without a finite entry NaN
    delta_p = tl.where(p < 1.0, delta_p, -INF)
    delta = tl.where(delta_k > -INF, delta_k, delta_p)
    if joint:
        delta = tl.where(delta_k > delta_p, delta_k, delta_p)
    if TOKEN_ONLY:  # nothing is cut, but a draw seldom looks beyond the head
        delta = tl.where(delta > -INF, delta, floor_p)
    value = threshold(mean, std, delta, tl.full([], margin, tl.float64), paper)
    return mean, std, delta, tl.where(vocab <= SMALL_VOCABULARY, -INF, value)


@triton.jit
def uniform_of(seeds, row, WHAT: tl.constexpr):
    """The number in [0, 1) that a row's seed draws, fp32; 0 where nothing is drawn."""
    uniform = tl.full([], 0.0, tl.float32)
    if WHAT == TOKEN:
        uniform = tl.rand(tl.load(seeds + row), tl.program_id(0) * 0)
    return uniform


@triton.jit
def scaled(mass, below, top, rate):
    """A mass in units of the weight of `below` in units of the weight of `top`."""
    return (mass.to(tl.float64) * tl.exp2((below - top) * rate).to(tl.float64)).to(tl.int64)


@triton.jit
def masses_of_row(row, vocab, stride, t, top, rate, FIX: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of a row; and what it gains when the part below t is summed in units of t, as `hit_kernel` does.

    With the gain it is the very integer that `hit_kernel` finds. Reads the row once.
    """
    lanes, plain, tail = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab, BLOCK):
        values, _ = load(row, start, vocab, stride, BLOCK)
        weight = tl.where(values > -INF, weights(values, top, rate, FIX), 0)
        is_below = (values > -INF) & (keys_of(values) < keys_of(t))
        lanes += weight
        plain += tl.where(is_below, weight, 0)
        tail += tl.where(is_below, weights(tl.minimum(values, t), t, rate, FIX), 0)
    gain = scaled(tl.sum(tail, axis=0), t, top, rate) - tl.sum(plain, axis=0)
    return tl.sum(lanes, axis=0), tl.where(t <= top, gain, 0)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def hit_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, delta_k: tl.float64, p: tl.float64, quantile_p: tl.float64, temperature: tl.float64,
    least_delta: tl.float64, crowded: tl.float64, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, missed, values_ptr, columns_ptr, counters,
    HAS_P: tl.constexpr, TAIL: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr,
    FIX: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
):  # fmt: skip
    """Decide rows among their candidates; flag those that this does not decide, and leave them as they are.

    Grid: programs; each has scratch memory for CAPACITY candidates and owns every so many rows.
    FAST: Rows of logits (and of `out`, MASK) are contiguous, aligned to 16 entries and have a multiple of 16.
    Entries a row: V read once, and V written once (MASK); of a row that is too crowded to gather only the sample, whose
    8,192 entries are read before and stay in the cache.
    """
    if FAST:
        vocab, stride = vocab // 16 * 16, 1  # tells the compiler what it can divide by
        if WHAT == MASK:
            out_stride = 1
    program = tl.program_id(0)
    values_ptr += program * CAPACITY
    columns_ptr += program * CAPACITY
    counter = counters + program
    for index in range(program, batch, tl.num_programs(0)):
        number = tl.cast(index, tl.int64)
        row = row_of(logits, number, row_stride, FAST)
        k_row, delta_row, p_row, quantile_row, heat = limits_of(number, table, k, delta_k, p, quantile_p, temperature)
        rate = (tl.full([], LOG2_E, tl.float64) / heat).to(tl.float32)
        mean, std, _, t = place_threshold(
            row,
            vocab,
            stride,
            k_row,
            delta_row,
            p_row,
            quantile_row,
            heat,
            least_delta,
            MARGIN,
            joint,
            0,
            WHAT == TOKEN,
            BLOCK,
        )
        lowest = tl.maximum(keys_of(t), NOTHING + 1)
        n, tail = lowest * 0 + CAPACITY + 1, lowest.to(tl.int64) * 0
        # Where a Gaussian row would leave too many, the candidates need not be gathered to know it.
        if (t == -INF) | (t.to(tl.float64) >= mean + crowded * std):
            n, tail = gather(
                row, vocab, stride, lowest, BEYOND, t, rate, values_ptr, columns_ptr, counter, CAPACITY, TAIL, FIX,
                BLOCK,
            )  # fmt: skip
        decided = False
        if n <= CAPACITY:
            top_key = largest(values_ptr, n, 1, SEARCH_BLOCK)
            complete = t == -INF
            below = tail
            if TAIL:
                below = scaled(tail, t, value_of(top_key), rate)
            all_mass = below * 0
            if (HAS_P or WHAT != MASK) and weighs_all(n, k_row, joint):
                all_mass = mass_from(values_ptr, n, 1, lowest, value_of(top_key), rate, FIX, SEARCH_BLOCK)
            uniform = uniform_of(seeds, index, WHAT)
            decided, key, ties, copies, kept, mass = decide(
                values_ptr, n, 1, vocab, n.to(tl.int64), complete, lowest, all_mass, below, top_key,
                k_row, p_row, joint, all_ties, uniform, width, rate, t, 0.0, values_ptr, columns_ptr, counter,
                HAS_P, WHAT, True, FIX, CAPACITY, BLOCK, SEARCH_BLOCK,
            )  # fmt: skip
            if decided:
                bound = n * 0 + vocab
                if (WHAT == TOKEN and key > NOTHING) or (ties < copies):
                    bound = nth_column(values_ptr, columns_ptr, n, key, ties, vocab, SEARCH_BLOCK)
                target = row_of(out, number, out_row_stride, FAST and WHAT == MASK)
                if WHAT == MASK:
                    fill(target, vocab, out_stride, BLOCK)
                    tl.debug_barrier()
                    scatter(target, out_stride, values_ptr, columns_ptr, n, key, bound, SEARCH_BLOCK)
                elif WHAT == LIST:
                    list_kept(target, values_ptr, n, 1, columns_ptr, key, bound, width, counter, True, SEARCH_BLOCK)
                    tl.store(count_ptr + index, kept.to(tl.int32))
                    tl.store(mass_ptr + index, mass)
                    tl.store(top_ptr + index, value_of(top_key))
                else:
                    tl.store(target, tl.where(key > NOTHING, bound, -1).to(tl.int64))
        tl.store(missed + index, tl.where(decided, 0, 1).to(tl.int8))
        tl.debug_barrier()


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def rescue_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, delta_k: tl.float64, p: tl.float64, quantile_p: tl.float64, temperature: tl.float64,
    least_delta: tl.float64, crowded: tl.float64, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, missed, values_ptr, columns_ptr, counters,
    HAS_P: tl.constexpr, TAIL: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr,
    FIX: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
):  # fmt: skip
    """Decide the flagged rows on all their entries. Grid and scratch as `hit_kernel`; bytes a row: see the README."""
    if FAST:
        vocab, stride = vocab // 16 * 16, 1  # tells the compiler what it can divide by
        if WHAT == MASK:
            out_stride = 1
    program = tl.program_id(0)
    values_ptr += program * CAPACITY
    columns_ptr += program * CAPACITY
    counter = counters + program
    for index in range(program, batch, tl.num_programs(0)):
        if tl.load(missed + index) != 0:
            number = tl.cast(index, tl.int64)
            row = row_of(logits, number, row_stride, FAST)
            k_row, delta_row, p_row, quantile_row, heat = limits_of(
                number, table, k, delta_k, p, quantile_p, temperature
            )
            rate = (tl.full([], LOG2_E, tl.float64) / heat).to(tl.float32)
            _, std, _, t = place_threshold(
                row, vocab, stride, k_row, delta_row, p_row, quantile_row, heat, least_delta, MARGIN, joint, 0,
                WHAT == TOKEN, BLOCK,
            )  # fmt: skip
            top_key, n_all = survey(row, vocab, stride, BLOCK)
            all_mass, below = n_all * 0, n_all * 0
            if weighs_all(n_all, k_row, joint):
                all_mass, below = masses_of_row(row, vocab, stride, t, value_of(top_key), rate, FIX, BLOCK)
            uniform = uniform_of(seeds, index, WHAT)
            _, key, ties, copies, kept, mass = decide(
                row, vocab, stride, vocab, n_all, n_all >= 0, top_key * 0 + NOTHING + 1, all_mass, below, top_key,
                k_row, p_row, joint, all_ties, uniform, width, rate, t, std.to(tl.float32), values_ptr, columns_ptr,
                counter,
                HAS_P, WHAT, False, FIX, CAPACITY, BLOCK, SEARCH_BLOCK,
            )  # fmt: skip
            bound = top_key * 0 + vocab
            if (WHAT == TOKEN and key > NOTHING) or (ties < copies):
                bound = nth_column_of_row(row, vocab, stride, key, ties, BLOCK)
            target = row_of(out, number, out_row_stride, FAST and WHAT == MASK)
            if WHAT == MASK:
                mask_row(row, target, vocab, stride, out_stride, key, bound, BLOCK)
            elif WHAT == LIST:
                list_kept(target, row, vocab, stride, columns_ptr, key, bound, width, counter, False, BLOCK)
                tl.store(count_ptr + index, kept.to(tl.int32))
                tl.store(mass_ptr + index, mass)
                tl.store(top_ptr + index, value_of(top_key))
            else:
                tl.store(target, tl.where(key > NOTHING, bound, -1).to(tl.int64))
            tl.debug_barrier()


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
        row, vocab, stride, k_row, delta_row, p_row, quantile_row, heat, least_delta, margin, joint, paper, False, BLOCK
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
    all_mass = mass_from(row, vocab, stride, top_key * 0 + NOTHING + 1, top, rate, FIX, BLOCK)
    mass = mass_from(row, vocab, stride, lowest, top, rate, FIX, BLOCK)
    tl.store(moments_ptr + number, mean)
    tl.store(moments_ptr + batch + number, std)
    tl.store(moments_ptr + 2 * batch + number, delta)
    tl.store(threshold_ptr + number, t)
    tl.store(kept_ptr + number, tl.sum(kept, axis=0))
    tl.store(mass_ptr + number, mass.to(tl.float64) / tl.maximum(all_mass, 1).to(tl.float64))
