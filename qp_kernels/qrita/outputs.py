"""How a cut is written: a mask by filling and scattering, or in one pass over the row; or a list of what is kept."""

import triton
import triton.language as tl

from .parts import INF, entries, keys_of, load, load_whole, value_of


@triton.jit
def is_kept(values, columns, cut, bound):
    """What a cut keeps: every value above the cut's, and what equals it up to column `bound`. No NaN."""
    return (values > cut) | ((values == cut) & (columns <= bound))


@triton.jit
def fill(out, begin, end, stride, FAST: tl.constexpr, BLOCK: tl.constexpr):
    """Write -inf over columns [begin, end) of a row. FAST: both are multiples of 16."""
    if FAST:
        begin, end = begin // 16 * 16, end // 16 * 16
    for start in range(begin, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        nothing = tl.full([BLOCK], -INF, tl.float32).to(out.dtype.element_ty)
        tl.store(out + columns.to(tl.int64) * stride, nothing, mask=columns < end)


@triton.jit
def join(held, counts, n_slices, n, SLICES: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr):
    """Move the candidates of n_slices slices, each from a multiple of CAPACITY on, to the first n places.

    None moves up, so a block never overwrites what a later one reads.
    """
    for start in range(0, n, BLOCK):
        place = start + tl.arange(0, BLOCK)
        source, before = place, tl.zeros([], tl.int32)
        for i in tl.static_range(SLICES):
            source = tl.where(place >= before, i * CAPACITY + place - before, source)
            before += tl.load(counts + i, mask=i < n_slices, other=0)
        packed = tl.load(held + source, mask=place < n, other=0)
        tl.debug_barrier()
        tl.store(held + place, packed, mask=place < n)
    tl.debug_barrier()


@triton.jit
def scatter(out, stride, held, n, key, bound, BLOCK: tl.constexpr):
    """Write the kept candidates to their columns of a row."""
    cut = value_of(key)
    for start in range(0, n, BLOCK):
        values, columns = entries(held, start, n, 1, True, BLOCK)
        keep = (values > -INF) & is_kept(values, columns, cut, bound)
        tl.store(out + columns.to(tl.int64) * stride, values.to(out.dtype.element_ty), mask=keep)


@triton.jit
def mask_row(row, out, vocab, stride, out_stride, key, bound, BLOCK: tl.constexpr):
    """Copy a row with -inf for what is dropped; `out` may be the row. Three blocks ahead are on their way."""
    cut, lane = value_of(key), tl.arange(0, BLOCK)
    rest = vocab // (4 * BLOCK) * (4 * BLOCK)
    a, b = load_whole(row, 0, lane, rest > 0, stride), load_whole(row, BLOCK, lane, rest > 0, stride)
    c, d = load_whole(row, 2 * BLOCK, lane, rest > 0, stride), load_whole(row, 3 * BLOCK, lane, rest > 0, stride)
    for start in range(0, rest, 4 * BLOCK):
        then = start + 4 * BLOCK
        write_kept(out, a, start, lane, rest, out_stride, cut, bound, vocab)
        a = load_whole(row, then, lane, then < rest, stride)
        write_kept(out, b, start + BLOCK, lane, rest, out_stride, cut, bound, vocab)
        b = load_whole(row, then + BLOCK, lane, then < rest, stride)
        write_kept(out, c, start + 2 * BLOCK, lane, rest, out_stride, cut, bound, vocab)
        c = load_whole(row, then + 2 * BLOCK, lane, then < rest, stride)
        write_kept(out, d, start + 3 * BLOCK, lane, rest, out_stride, cut, bound, vocab)
        d = load_whole(row, then + 3 * BLOCK, lane, then < rest, stride)
    for start in range(rest, vocab, BLOCK):
        a = load(row, start, lane, vocab, stride)
        write_kept(out, a, start, lane, vocab, out_stride, cut, bound, vocab)


@triton.jit
def write_kept(out, values, start, lane, end, stride, cut, bound, vocab):
    """Write a block, as far as it lies before `end`, with -inf for what is dropped."""
    columns = start + lane
    values = kept_or_nothing(values, columns, cut, bound, vocab)
    tl.store(out + columns.to(tl.int64) * stride, values.to(out.dtype.element_ty), mask=columns < end)


@triton.jit
def kept_or_nothing(values, columns, cut, bound, vocab):
    """Values with -inf for what is dropped, and for NaN."""
    if bound < vocab:
        values = tl.where(is_kept(values, columns, cut, bound), values, -INF)
    else:
        values = tl.where(values >= cut, values, -INF)
    return values


@triton.jit
def list_kept(out, source, n, stride, key, bound, width, counter, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """Write the kept entries of a source as key * 2**32 + (2**31 - 1 - column): descending, that is the row's order."""
    tl.debug_barrier()
    tl.store(counter, 0)
    tl.debug_barrier()
    slots, cut = tl.zeros([BLOCK], tl.int32), value_of(key)
    for start in range(0, n, BLOCK):
        values, columns = entries(source, start, n, stride, HELD, BLOCK)
        keep = (values > -INF) & is_kept(values, columns, cut, bound)
        slot = tl.atomic_add(counter + slots, 1, mask=keep, sem="relaxed")
        packed = (keys_of(values).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
        tl.store(out + slot, packed, mask=keep & (slot < width))


@triton.jit(do_not_specialize=["row_stride", "stride", "width"], do_not_specialize_on_alignment=["logits"])
def table_kernel(
    packed, logits, row_stride, stride, width, counts, masses, units, columns_ptr, values_ptr, probs_ptr,
    FIX: tl.constexpr, SORT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Column, logit and probability of each listed entry, [B, width] each, in row order; -1, 0, 0 beyond them.

    Grid: rows. SORT: the list of `list_kept` is in any order, and not longer than BLOCK.
    """
    number = tl.program_id(0).to(tl.int64)
    n = tl.minimum(tl.load(counts + number), width)
    unit, mass = tl.load(units + number), tl.load(masses + number).to(tl.float64)
    for start in range(0, width, BLOCK):
        place = start + tl.arange(0, BLOCK)
        one = tl.load(packed + number * width + place, mask=place < n, other=-(2**63))
        if SORT:
            one = tl.sort(one, descending=True)
        there = place < n
        column = 0x7FFFFFFF - (one & 0xFFFFFFFF)
        value = tl.load(logits + number * row_stride + column * stride, mask=there, other=0.0).to(tl.float32)
        share = tl.where(value == unit, 1.0, tl.exp(value.to(tl.float64) - unit.to(tl.float64)))
        target = number * width + place
        tl.store(columns_ptr + target, tl.where(there, column, -1).to(tl.int32), mask=place < width)
        tl.store(values_ptr + target, tl.where(there, value, 0.0), mask=place < width)
        tl.store(probs_ptr + target, tl.where(there, share * (FIX / mass), 0.0).to(tl.float32), mask=place < width)
