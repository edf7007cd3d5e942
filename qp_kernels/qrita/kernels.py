"""The Qrita kernels that decide most rows: place the threshold, gather what is above it, and decide among that.

Many rows: `place_kernel`, `hit_kernel`. Few rows, each split over programs: `place_kernel`, `split_kernel`. A row that
these do not decide is flagged and left as it is, for `fallbacks.py`. All end in the same cut (key, ties): every entry
above the key and the first `ties` entries equal to it. A row's cut is a function of its entries, k and p alone: it is
the same whichever kernel finds it.

Read `parts.py` first (keys, weights, gathering), then `samples.py` (the threshold), `searches.py`, `decisions.py`,
`outputs.py` and `rows.py`.
"""

import triton
import triton.language as tl

from .decisions import LIST, MASK, TOKEN, decide, suffices, weighs_all
from .outputs import fill, join, list_kept, scatter
from .parts import INF, LOG2_E, NOTHING, gather, keys_of, mass_from, value_of
from .rows import (
    COUNTER_STRIDE,
    FROM,
    FULL,
    NUMBERS,
    PLACES,
    POINTERS,
    STD,
    TO,
    UNIT,
    WIDE,
    T,
    limits_of,
    rate_at,
    rate_of,
    row_of,
    scaled,
    uniform_of,
)
from .samples import MARGIN, agree, gaussian_threshold, load_sample, moments, window
from .searches import MOST_HELD, nth_column

# Entries written at once by a fill. Another shape than all others has, for Triton gives equal shapes equal layouts.
FILLED = tl.constexpr(16_384)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def place_kernel(
    logits, row_stride, stride, vocab,
    table, k, delta_k: tl.float64, p: tl.float64, quantile_p: tl.float64, temperature: tl.float64,
    least_delta: tl.float64, most: tl.float32, most_by_p: tl.float32, bits: tl.float32, joint, places, missed, arrived,
    WHAT: tl.constexpr, WINDOW: tl.constexpr, FAST: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Where the threshold of each row lies, from its sample. Grid: rows. Reads 8,192 entries.

    Writes places [B, PLACES] (`rows.py`; the last three with WINDOW, UNIT `bits` above the sample's largest entry), and
    WIDE where more of the sample than `most` entries (`most_by_p` for p alone) would be gathered, and the cut lies
    among them.
    """
    if FAST:
        stride = 1
    number = tl.program_id(0).to(tl.int64)
    k_row, delta_row, p_row, quantile_row, heat = limits_of(number, table, k, delta_k, p, quantile_p, temperature)
    cold = 1.0 / heat
    rate = (cold * LOG2_E).to(tl.float32)
    sample, top, mean, std = moments(load_sample(logits + number * row_stride, vocab, stride), LANES)
    delta, t = gaussian_threshold(
        mean, std, vocab, delta_row, p_row, quantile_row, cold, least_delta, MARGIN, joint, 0, WHAT == TOKEN
    )
    most = tl.where((k_row >= vocab) & (p_row < 1.0), most_by_p, most)  # however k and p are passed
    t, is_wide = agree(sample, top, t, k_row, p_row, joint, rate, vocab, most)
    place = places + PLACES * number
    tl.store(place + T, t)
    tl.store(place + STD, std.to(tl.float32))
    if WINDOW:
        lo, hi = t - 0.125 * std.to(tl.float32), t  # should the cut not be above t, it is not far below
        if is_wide:
            lo, hi = window(sample, top, mean, std, delta, k_row, p_row, rate, vocab)
        tl.store(place + FROM, lo)
        tl.store(place + TO, hi)
        tl.store(place + UNIT, top + bits / rate)
    tl.store(missed + number, tl.where(is_wide, WIDE, 0).to(tl.int8))
    tl.store(arrived + number, 0)


@triton.jit
def conclude(
    held, n, top, tail, t, number, program,
    out, out_row_stride, out_stride, vocab, table, k, p, temperature, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, counters,
    HAS_P: tl.constexpr, TAIL: tl.constexpr, WHAT: tl.constexpr, FILL: tl.constexpr, FAST: tl.constexpr,
    FIX: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
):  # fmt: skip
    """Decide a row among its n candidates, and write what it gives; whether they suffice."""
    k_row, _, p_row, _, heat = limits_of(number, table, k, 0.0, p, 0.0, temperature)
    rate = rate_of(heat)
    lowest, top_key = tl.maximum(keys_of(t), NOTHING + 1), keys_of(top)
    n_all, complete = n.to(tl.int64), t == -INF
    below, all_mass = n_all * 0, n_all * 0
    if TAIL:
        below = scaled(tail, value_of(lowest), top, rate)
    if (HAS_P or WHAT != MASK) and weighs_all(n_all, k_row, joint):
        all_mass = mass_from(held, n, 1, lowest, top, rate, True, FIX, SEARCH_BLOCK)
    target = row_of(out, number, out_row_stride, FAST and WHAT == MASK)
    if FILL:
        # The candidates are held, so the row can go, also in place; what is written drains during the search.
        if suffices(n_all, complete, all_mass, below, k_row, p_row, joint, vocab, HAS_P):
            fill(target, 0, vocab, out_stride, FAST, FILLED)
    decided, key, ties, copies, kept, mass = decide(
        held, n, 1, vocab, n_all, complete, lowest, all_mass, below, top_key,
        k_row, p_row, joint, all_ties, uniform_of(seeds, number, WHAT), width, top, rate, t, 0.0, held,
        HAS_P, WHAT, True, FIX, SEARCH_BLOCK, SEARCH_BLOCK, 1, 1,
    )  # fmt: skip
    if decided:
        bound = n * 0 + vocab
        if (WHAT == TOKEN and key > NOTHING) or (ties < copies):
            bound = nth_column(held, n, key, ties, vocab, SEARCH_BLOCK)
        if WHAT == MASK:
            tl.debug_barrier()
            scatter(target, out_stride, held, n, key, bound, SEARCH_BLOCK)
        elif WHAT == LIST:
            list_kept(target, held, n, 1, key, bound, width, counters + program * COUNTER_STRIDE, True, SEARCH_BLOCK)
            tl.store(count_ptr + number, kept.to(tl.int32))
            tl.store(mass_ptr + number, mass)
            tl.store(top_ptr + number, top)
        else:
            tl.store(target, tl.where(key > NOTHING, bound, -1).to(tl.int64))
    return decided


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def hit_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, batch, vocab,
    table, k, p: tl.float64, temperature: tl.float64, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, places, missed, scratch, counters,
    HAS_P: tl.constexpr, TAIL: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Many rows: gather the candidates of a row and decide among them. Flags rows that this does not decide.

    Grid: programs; each has scratch memory for LANES * DEPTH candidates and owns every so many rows.
    FAST: Rows of logits (and of `out`, MASK) are contiguous, aligned to 16 entries and have a multiple of 16.
    Entries a row: V read once (none of a row that is missed already), and V written once (MASK).
    """
    if FAST:
        vocab, stride = vocab // 16 * 16, 1  # tells the compiler what it can divide by
        if WHAT == MASK:
            out_stride = 1
    program = tl.program_id(0)
    held = scratch + program.to(tl.int64) * (LANES * DEPTH)
    for index in range(program, batch, tl.num_programs(0)):
        number = tl.cast(index, tl.int64)
        if tl.load(missed + number) == 0:
            rate = rate_at(number, table, temperature)
            t = tl.load(places + PLACES * number + T)
            lowest = tl.maximum(keys_of(t), NOTHING + 1)
            n, top, tail = gather(
                logits + number * row_stride, 0, vocab, stride, value_of(lowest), float("nan"), rate, held,
                TAIL, FIX, BLOCK, LANES, DEPTH,
            )  # fmt: skip
            flag = n * 0 + FULL
            if n >= 0:
                decided = conclude(
                    held, n, top, tail, t, number, program,
                    out, out_row_stride, out_stride, vocab, table, k, p, temperature, joint, all_ties, seeds, width,
                    count_ptr, mass_ptr, top_ptr, counters,
                    HAS_P, TAIL, WHAT, WHAT == MASK, FAST, FIX, SEARCH_BLOCK,
                )  # fmt: skip
                flag = tl.where(decided, 0, WIDE)
            tl.store(missed + number, flag.to(tl.int8))
            tl.debug_barrier()


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def split_kernel(
    logits, out, row_stride, stride, out_row_stride, out_stride, vocab,
    table, k, p: tl.float64, temperature: tl.float64, joint, all_ties, seeds, width,
    count_ptr, mass_ptr, top_ptr, places, missed, scratch, counters,
    first, slice_size, n_slices, arrived, counts, tops, tails,
    HAS_P: tl.constexpr, TAIL: tl.constexpr, WHAT: tl.constexpr, FAST: tl.constexpr, FIX: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
    FILL: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Few rows: gather the candidates of a slice of a row; the program that is the last one to do so decides the row.

    Grid: rows from `first` on, times n_slices <= SLICES; each program has scratch memory for LANES * DEPTH candidates.
    None waits: each counts itself in `arrived` [B] when its slice is done. Flags rows that this does not decide.
    FILL: Each fills its slice of `out` first, out of place; else the last one fills the row, if it decides it.
    FAST: Rows of logits (and of `out`, MASK) are contiguous, aligned to 16 entries and have a multiple of 16.
    Entries a row: V read once (none of a row that is missed already), and V written once (MASK).
    """
    if FAST:
        vocab, stride = vocab // 16 * 16, 1  # tells the compiler what it can divide by
        if WHAT == MASK:
            out_stride = 1
    program = tl.program_id(0)
    number = first + (program // n_slices).to(tl.int64)
    if tl.load(missed + number) == 0:
        begin = (program % n_slices) * slice_size
        end = tl.minimum(begin + slice_size, vocab)
        rate, t = rate_at(number, table, temperature), tl.load(places + PLACES * number + T)
        lowest = tl.maximum(keys_of(t), NOTHING + 1)
        if FILL:
            fill(row_of(out, number, out_row_stride, FAST), begin, end, out_stride, FAST, FILLED)
        n, top, tail = gather(
            logits + number * row_stride, begin, end, stride, value_of(lowest), float("nan"), rate,
            scratch + program.to(tl.int64) * (LANES * DEPTH), TAIL, FIX, BLOCK, LANES, DEPTH,
        )  # fmt: skip
        tl.store(counts + program, n)
        tl.store(tops + program, top)
        if TAIL:
            tl.store(tails + program, tail)
        tl.debug_barrier()  # all that this program has written comes before its arrival
        if tl.atomic_add(arrived + number, 1, sem="acq_rel") == n_slices - 1:
            tl.debug_barrier()
            program = program // n_slices
            held = scratch + program.to(tl.int64) * n_slices * (LANES * DEPTH)
            piece = tl.arange(0, SLICES)
            there = piece < n_slices
            piece += program * n_slices
            n_of = tl.load(counts + piece, mask=there, other=0)
            top = tl.max(tl.load(tops + piece, mask=there, other=-INF), axis=0)
            n, tail = tl.sum(n_of, axis=0), tl.zeros([], tl.int64)
            if TAIL:
                tail = tl.sum(tl.load(tails + piece, mask=there, other=0), axis=0)
            flag = n * 0 + FULL
            if (tl.min(n_of, axis=0) >= 0) & (n <= MOST_HELD):
                if SLICES > 1:
                    join(held, counts + program * n_slices, n_slices, n, SLICES, LANES * DEPTH, SEARCH_BLOCK)
                decided = conclude(
                    held, n, top, tail, t, number, program,
                    out, out_row_stride, out_stride, vocab, table, k, p, temperature, joint, all_ties, seeds, width,
                    count_ptr, mass_ptr, top_ptr, counters,
                    HAS_P, TAIL, WHAT, (WHAT == MASK) and not FILL, FAST, FIX, SEARCH_BLOCK,
                )  # fmt: skip
                flag = tl.where(decided, 0, WIDE)
            tl.store(missed + number, flag.to(tl.int8))
