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
    lane, nothing = tl.arange(0, BLOCK), tl.full([BLOCK], -INF, tl.float32).to(out.dtype.element_ty)
    rest = begin + (end - begin) // BLOCK * BLOCK
    for start in range(begin, rest, BLOCK):
        tl.store(out + tl.cast(start, tl.int64) * stride + lane.to(tl.int64) * stride, nothing)
    if rest < end:
        tl.store(out + tl.cast(rest, tl.int64) * stride + lane.to(tl.int64) * stride, nothing, mask=lane < end - rest)


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
    """Copy a row with -inf for what is dropped; `out` may be the row. The next block is read while one is written."""
    cut, lane = value_of(key), tl.arange(0, BLOCK)
    rest = vocab // (2 * BLOCK) * (2 * BLOCK)
    even, odd = load_whole(row, 0, lane, rest > 0, stride), load_whole(row, BLOCK, lane, rest > 0, stride)
    for start in range(rest, vocab, BLOCK):
        values = kept_or_nothing(load(row, start, lane, vocab, stride), start + lane, cut, bound, vocab)
        place = out + tl.cast(start, tl.int64) * out_stride + lane.to(tl.int64) * out_stride
        tl.store(place, values.to(out.dtype.element_ty), mask=lane < vocab - start)
    for start in range(0, rest, 2 * BLOCK):
        is_next = start + 2 * BLOCK < rest
        place = out + tl.cast(start, tl.int64) * out_stride + lane.to(tl.int64) * out_stride
        even = kept_or_nothing(even, start + lane, cut, bound, vocab)
        tl.store(place, even.to(out.dtype.element_ty))
        even = load_whole(row, start + 2 * BLOCK, lane, is_next, stride)
        odd = kept_or_nothing(odd, start + BLOCK + lane, cut, bound, vocab)
        tl.store(place + tl.full([], BLOCK, tl.int64) * out_stride, odd.to(out.dtype.element_ty))
        odd = load_whole(row, start + 3 * BLOCK, lane, is_next, stride)


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
