"""How a cut is written: a mask by filling and scattering, or in one pass over the row; or a list of what is kept."""

import triton
import triton.language as tl

from .parts import INF, keys_of, load


@triton.jit
def is_kept(values, columns, key, bound):
    """What the cut keeps: everything above the key, and what equals it up to column `bound`."""
    keys = keys_of(values)
    return (keys > key) | ((keys == key) & (columns <= bound))


@triton.jit
def fill(out, vocab, stride, BLOCK: tl.constexpr):
    """Write -inf over a row."""
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        nothing = tl.full([BLOCK], -INF, tl.float32).to(out.dtype.element_ty)
        tl.store(out + columns.to(tl.int64) * stride, nothing, mask=columns < vocab)


@triton.jit
def scatter(out, stride, values_ptr, columns_ptr, n, key, bound, BLOCK: tl.constexpr):
    """Write the kept candidates to their columns of a row."""
    for start in range(0, n, BLOCK):
        values, place = load(values_ptr, start, n, 1, BLOCK)
        columns = tl.load(columns_ptr + place, mask=place < n, other=0)
        keep = (place < n) & is_kept(values, columns, key, bound)
        tl.store(out + columns.to(tl.int64) * stride, values.to(out.dtype.element_ty), mask=keep)


@triton.jit
def mask_row(row, out, vocab, stride, out_stride, key, bound, BLOCK: tl.constexpr):
    """Copy a row with -inf for what is dropped; `out` may be the row."""
    for start in range(0, vocab, BLOCK):
        values, columns = load(row, start, vocab, stride, BLOCK)
        values = tl.where(is_kept(values, columns, key, bound), values, -INF)
        tl.store(out + columns.to(tl.int64) * out_stride, values.to(out.dtype.element_ty), mask=columns < vocab)


@triton.jit
def list_kept(
    out, source, n, stride, columns_ptr, key, bound, width, counter, ON_CHIP: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the kept entries of a source as key * 2**32 + (2**31 - 1 - column): descending, that is the row's order."""
    tl.debug_barrier()
    tl.store(counter, 0)
    tl.debug_barrier()
    slots = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        values, columns = load(source, start, n, stride, BLOCK)
        inside = columns < n
        if ON_CHIP:
            columns = tl.load(columns_ptr + columns, mask=inside, other=0)
        keep = inside & (values > -INF) & is_kept(values, columns, key, bound)
        slot = tl.atomic_add(counter + slots, 1, mask=keep, sem="relaxed")
        packed = (keys_of(values).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
        tl.store(out + slot, packed, mask=keep & (slot < width))
