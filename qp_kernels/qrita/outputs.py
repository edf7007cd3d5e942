"""How a cut is written: a mask by filling and scattering, or in one pass over the row; or a list of what is kept."""

import triton
import triton.language as tl

from .parts import INF, entries, keys_of


@triton.jit
def is_kept(values, columns, key, bound):
    """What the cut keeps: everything above the key, and what equals it up to column `bound`."""
    keys = keys_of(values)
    return (keys > key) | ((keys == key) & (columns <= bound))


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
    for start in range(0, n, BLOCK):
        values, columns = entries(held, start, n, 1, True, BLOCK)
        keep = (values > -INF) & is_kept(values, columns, key, bound)
        tl.store(out + columns.to(tl.int64) * stride, values.to(out.dtype.element_ty), mask=keep)


@triton.jit
def mask_row(row, out, vocab, stride, out_stride, key, bound, BLOCK: tl.constexpr):
    """Copy a row with -inf for what is dropped; `out` may be the row."""
    for start in range(0, vocab, BLOCK):
        values, columns = entries(row, start, vocab, stride, False, BLOCK)
        values = tl.where(is_kept(values, columns, key, bound), values, -INF)
        tl.store(out + columns.to(tl.int64) * out_stride, values.to(out.dtype.element_ty), mask=columns < vocab)


@triton.jit
def list_kept(out, source, n, stride, key, bound, width, counter, HELD: tl.constexpr, BLOCK: tl.constexpr):
    """Write the kept entries of a source as key * 2**32 + (2**31 - 1 - column): descending, that is the row's order."""
    tl.debug_barrier()
    tl.store(counter, 0)
    tl.debug_barrier()
    slots = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, columns = entries(source, start, n, stride, HELD, BLOCK)
        keep = (values > -INF) & is_kept(values, columns, key, bound)
        slot = tl.atomic_add(counter + slots, 1, mask=keep, sem="relaxed")
        packed = (keys_of(values).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
        tl.store(out + slot, packed, mask=keep & (slot < width))
