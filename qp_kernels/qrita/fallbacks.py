"""The Qrita kernels for what the others leave: wide nuclei, and rows that miss; and what `truncation` tells."""

import triton
import triton.language as tl

from .decisions import LIST, MASK, TOKEN, decide, needed, suffices, ties_kept, weighs_all
from .outputs import list_kept, mask_row
from .parts import (
    INF,
    LOG2_E,
    NOTHING,
    count_from,
    entries,
    gather_and_weigh,
    keys_of,
    mass_from,
    survey,
    value_of,
    weights,
)
from .rows import (
    COUNTER_STRIDE,
    FROM,
    NUMBERS,
    PLACES,
    POINTERS,
    STD,
    TO,
    UNIT,
    WIDE,
    T,
    is_unit,
    limits_of,
    rate_of,
    row_of,
    scaled,
    uniform_of,
)
from .samples import gaussian_threshold, load_sample, moments
from .searches import nth_column, nth_column_of_row, search

# Reads of a row in `wide_kernel` until it leaves the row to the rescue.
READS = tl.constexpr(4)
# Rows whose flags are looked at together.
FLAGS = tl.constexpr(32)


@triton.jit
def masses_of_row(row, vocab, stride, t, top, rate, FIX: tl.constexpr, BLOCK: tl.constexpr):
    """What `hit_kernel` finds of a row, in one read: number and mass of the entries from t on, and the mass below t.

    And what that is in units of the top, entry by entry: not the same integer.
    """
    counts, lanes = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int64)
    plain, tail = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    lowest = tl.maximum(keys_of(t), NOTHING + 1)
    for start in range(0, vocab, BLOCK):
        values, _ = entries(row, start, vocab, stride, False, BLOCK)
        weight = tl.where(values > -INF, weights(values, top, rate, FIX), 0)
        is_above = keys_of(values) >= lowest
        is_below = (values > -INF) & (is_above == 0)
        counts += is_above.to(tl.int32)
        lanes += tl.where(is_above, weight, 0)
        plain += tl.where(is_below, weight, 0)
        tail += tl.where(is_below, weights(tl.minimum(values, t), t, rate, FIX), 0)
    below, plain = scaled(tl.sum(tail, axis=0), t, top, rate), tl.sum(plain, axis=0)
    # Above the top t is infinite: all is below it.
    return tl.sum(counts, axis=0).to(tl.int64), tl.sum(lanes, axis=0), tl.where(t <= top, below, plain), plain


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def wide_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, p: tl.float64, temperature: tl.float64, all_ties, places, missed, scratch,
    HAS_P: tl.constexpr, FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Rows flagged WIDE with k alone or p alone, MASK: gather not what is above the cut, but what is around it.

    Grid: programs; each has scratch memory for LANES * DEPTH candidates and owns every so many rows. One read gathers
    a window around the expected cut, and weighs the row; if the cut is there, a second one copies what is kept. Else
    what the row weighs says where to look. Entries a row: V read twice (READS + 1 times at most), and written once. A
    row that this does not decide stays flagged.
    """
    if FAST:
        vocab, stride, out_stride = vocab // 16 * 16, 1, 1  # tells the compiler what it can divide by
    program = tl.program_id(0)
    held = scratch + program.to(tl.int64) * (LANES * DEPTH)
    for index in range(program, batch, tl.num_programs(0)):
        number = tl.cast(index, tl.int64)
        k_row, _, p_row, _, heat = limits_of(number, table, k, 0.0, p, 0.0, temperature)
        by_p = p_row < 1.0
        if (tl.load(missed + number) == WIDE) & (by_p != (k_row < vocab)):
            rate = rate_of(heat)
            row, place = logits + number * row_stride, places + PLACES * number
            t, lo, hi, unit = tl.load(place + T), tl.load(place + FROM), tl.load(place + TO), tl.load(place + UNIT)
            half = (hi - lo) * 0.5
            # The cut is in [a, b), where these amounts are.
            a, b = half * 0.0 - INF, half * 0.0 + INF
            at_a, at_b = half * 0.0 + INF, half * 0.0
            reads, is_looking = tl.zeros([], tl.int32), hi > lo
            while is_looking:
                n, n_above, above, whole, top = gather_and_weigh(
                    row, vocab, stride, lo, hi, unit, rate, held, HAS_P, FIX, BLOCK, LANES, DEPTH
                )
                reads += 1
                is_weighed = True
                if by_p & (reads == 1):
                    is_weighed = is_unit(unit, top, n_above, rate, FIX)
                at_hi, exact = n_above, k_row
                at_lo = at_hi + n
                if by_p:
                    at_hi, exact = above, needed(p_row, whole)
                    at_lo = at_hi
                    if n > 0:
                        at_lo += mass_from(held, n, 1, NOTHING, unit, rate, True, FIX, SEARCH_BLOCK)
                wanted = exact.to(tl.float32)
                slope = (at_lo - at_hi).to(tl.float32) / (hi - lo)
                if is_weighed & (n >= 0) & (at_lo >= exact) & (at_hi < exact):
                    is_looking = False
                    guess, reach = lo + (at_lo - exact).to(tl.float32) / slope, half * 0.05
                    from_key, to_key = keys_of(lo), keys_of(hi)
                    if by_p:
                        key, over, copies = search(
                            held, n, from_key, to_key, at_lo, at_hi, exact, unit, rate, True, FIX, SEARCH_BLOCK,
                            guess, reach, True,
                        )  # fmt: skip
                        ties = ties_kept(exact, over, copies, key, unit, rate, all_ties, FIX)
                    else:
                        key, over, copies = search(
                            held, n, from_key, to_key, at_lo, at_hi, exact, unit, rate, False, FIX, SEARCH_BLOCK,
                            guess, reach, True,
                        )  # fmt: skip
                        ties = tl.where(all_ties != 0, copies, exact - over)
                    bound = n * 0 + vocab
                    if ties < copies:
                        bound = nth_column(held, n, key, ties, vocab, SEARCH_BLOCK)
                    source = row_of(logits, number, row_stride, FAST)
                    written = row_of(out, number, out_row_stride, FAST)
                    mask_row(source, written, vocab, stride, out_stride, key, bound, BLOCK // 2)
                    tl.store(missed + number, tl.zeros([], tl.int8))
                elif is_weighed == 0:
                    # The row's largest entries are far above what the sample holds, and most of its mass.
                    unit, is_looking = top, (top < INF) & (rate < INF)
                    lo, hi = tl.where(t > lo, t, lo), half * 0.0 + INF
                else:
                    is_above, is_full = at_hi >= exact, n < 0
                    a, at_a = tl.where(is_above, hi, a), tl.where(is_above, at_hi.to(tl.float32), at_a)
                    b, at_b = tl.where(is_above, b, hi), tl.where(is_above, at_b, at_hi.to(tl.float32))
                    if (is_full | is_above) == 0:
                        b, at_b = lo, at_lo.to(tl.float32)
                    center = tl.where(is_above, hi + (at_hi.to(tl.float32) - wanted) / slope, lo)
                    center = tl.where(is_above, center, lo - (wanted - at_lo.to(tl.float32)) / slope)
                    center = tl.minimum(tl.maximum(center, lo - 16.0 * half), hi + 16.0 * half)
                    if (a > -INF) & (b < INF):
                        center = a + (b - a) * ((at_a - wanted) / (at_a - at_b))
                    if is_full & (is_above == 0):
                        center, half = (lo + hi) * 0.5, half * 0.5
                    to_the_top = is_above & (reads == 1) & (t > hi)
                    lo, hi = tl.where(to_the_top, t, center - half), tl.where(to_the_top, INF, center + half)
                    is_looking = (reads < READS) & (hi > lo)
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
        rate = rate_of(heat)
        place = places + PLACES * number
        t, std = tl.load(place + T), tl.load(place + STD)
        top_key, n_all = survey(row, vocab, stride, False, 2 * BLOCK)
        unit = value_of(top_key)
        all_mass, below = n_all * 0, n_all * 0
        if weighs_all(n_all, k_row, joint):
            n_above, above, tail, plain = masses_of_row(row, vocab, stride, t, unit, rate, FIX, BLOCK)
            all_mass, below = above + plain, tail - plain
            if (p_row < 1.0) & ((k_row >= vocab) | (joint != 0)):
                enough = suffices(n_above, t == -INF, above, tail, k_row, p_row, joint, vocab, True)
                if (flag == WIDE) | (enough == 0):
                    # Weighed as `wide_kernel` does: a row's cut depends on nothing but the row.
                    n_over = count_from(row, vocab, stride, keys_of(tl.load(place + TO)), False, BLOCK)
                    if is_unit(tl.load(place + UNIT), unit, n_over, rate, FIX):
                        unit = tl.load(place + UNIT)
                    all_mass = mass_from(row, vocab, stride, top_key * 0 + NOTHING + 1, unit, rate, False, FIX, BLOCK)
                    below = n_all * 0
                    t = (tl.load(place + FROM) + tl.load(place + TO)) * 0.5
        uniform = uniform_of(seeds, number, WHAT)
        _, key, ties, copies, kept, mass = decide(
            row, vocab, stride, vocab, n_all, n_all >= 0, top_key * 0 + NOTHING + 1, all_mass, below, top_key,
            k_row, p_row, joint, all_ties, uniform, width, unit, rate, t, std, held,
            HAS_P, WHAT, False, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
        )  # fmt: skip
        bound = top_key * 0 + vocab
        if (WHAT == TOKEN and key > NOTHING) or (ties < copies):
            bound = nth_column_of_row(row, vocab, stride, key, ties, BLOCK)
        target = row_of(out, number, out_row_stride, FAST and WHAT == MASK)
        if WHAT == MASK:
            mask_row(
                row_of(logits, number, row_stride, FAST), target, vocab, stride, out_stride, key, bound, BLOCK // 2
            )
        elif WHAT == LIST:
            counter = counters + program * COUNTER_STRIDE
            list_kept(target, row, vocab, stride, key, bound, width, counter, False, BLOCK)
            tl.store(count_ptr + number, kept.to(tl.int32))
            tl.store(mass_ptr + number, mass)
            tl.store(top_ptr + number, unit)
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
    # Most often there are none: one look at many flags.
    some = tl.zeros([FLAGS], tl.int32)
    for begin in range(program, batch, step * FLAGS):
        index = begin + tl.arange(0, FLAGS) * step
        some = tl.maximum(some, tl.load(missed + index, mask=index < batch, other=0).to(tl.int32))
    if tl.max(some, axis=0) > 0:
        for index in range(program, batch, step):
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
    FIX: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Where the threshold of a row lies and what it leaves. Grid: rows. Entries a row: V read three times.

    Writes mean, std and delta [3, B] and the share of the mass [B] as fp64, t [B] fp32, kept [B] int32.
    """
    index = tl.program_id(0)
    number = index.to(tl.int64)
    row = logits + number * row_stride
    k_row, delta_row, p_row, quantile_row, one = limits_of(number, table, k, delta_k, p, quantile_p, 1.0)
    _, _, mean, std = moments(load_sample(row, vocab, stride), LANES)
    delta, t = gaussian_threshold(
        mean, std, vocab, delta_row, p_row, quantile_row, one, least_delta, margin, joint, paper, False
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
