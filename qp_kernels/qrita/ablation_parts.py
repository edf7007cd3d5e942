"""What the kernels of the paper's variants (`ablation_kernels.py`) are made of, apart from the search."""

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
# Statistics come from this many entries at the start of the row.
SAMPLE = tl.constexpr(8192)


@triton.jit
def load_block(source, start, n, BLOCK: tl.constexpr):
    """BLOCK entries from `start` on as fp32; NaN and what is beyond n become -inf."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(source + columns, mask=columns < n, other=-INF).to(tl.float32)
    return tl.where(values == values, values, -INF)


@triton.jit
def threshold(source, n, delta, cap, margin, PER_STD: tl.constexpr, OF_VALUE: tl.constexpr):
    """t = mean + delta std less a margin: of the value (the paper's) or of delta, in standard deviations."""
    values = load_block(source, 0, n, SAMPLE)
    finite = tl.abs(values) < INF
    count = tl.maximum(tl.sum(finite.to(tl.float32), axis=0), 1.0)
    mean = tl.sum(tl.where(finite, values, 0.0), axis=0) / count
    gap = tl.where(finite, values - mean, 0.0)
    std = tl.sqrt(tl.sum(gap * gap, axis=0) / count)
    if PER_STD:
        delta = tl.minimum(delta + std, cap)
    if OF_VALUE:
        value = mean + delta * std
        value -= margin * tl.abs(value)
    else:
        value = mean + (delta - margin * tl.abs(delta)) * std
    return tl.where(tl.abs(value) < INF, value, INF)  # where a square overflows, nothing is a candidate


@triton.jit
def gather(source, scratch, n, width, t, TRUNCATE: tl.constexpr, BLOCK: tl.constexpr):
    """The row's largest and smallest eligible entry, their number, and the number >= t, which go to scratch[:width]."""
    top = tl.full((), -INF, tl.float32)
    bottom = tl.full((), INF, tl.float32)
    eligible = tl.zeros((), tl.int32)
    gathered = tl.zeros((), tl.int32)
    for start in range(0, n, BLOCK):
        values = load_block(source, start, n, BLOCK)
        real = values > -INF
        top = tl.maximum(top, tl.max(values, axis=0))
        bottom = tl.minimum(bottom, tl.min(tl.where(real, values, INF), axis=0))
        eligible += tl.sum(real.to(tl.int32), axis=0)
        if TRUNCATE:
            above = (real & (values >= t)).to(tl.int32)
            slots = gathered + tl.cumsum(above, axis=0) - 1
            tl.store(scratch + slots, values, mask=(above > 0) & (slots < width))
            gathered += tl.sum(above, axis=0)
    tl.debug_barrier()  # scratch is read by other threads than wrote it
    top = tl.where(eligible > 0, top, 0.0)
    return top, bottom, eligible, gathered


@triton.jit
def survivors(values, cut, tie, needed, seen, DUPLICATES: tl.constexpr):
    """Which of a block a cut keeps; `seen` counts entries equal to the tie in earlier blocks."""
    if DUPLICATES:
        ties = (values == tie).to(tl.int32)
        place = seen + tl.cumsum(ties, axis=0)
        keep = (values > tie) | ((ties > 0) & (place <= needed))
        seen += tl.sum(ties, axis=0)
    else:
        keep = values >= cut
    return keep & (values > -INF), seen


@triton.jit
def mass(source, n, top, cut, tie, needed, DUPLICATES: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of exp(x - top) over what a cut keeps of n entries."""
    total, seen = tl.zeros((), tl.float32), tl.zeros((), tl.int32)
    for start in range(0, n, BLOCK):
        values = load_block(source, start, n, BLOCK)
        keep, seen = survivors(values, cut, tie, needed, seen, DUPLICATES)
        total += tl.sum(tl.where(keep, tl.exp(values - top), 0.0), axis=0)
    return total


@triton.jit
def probabilities(source, scratch, n, top, total, cut, tie, needed, DUPLICATES: tl.constexpr, BLOCK: tl.constexpr):
    """Write the probabilities of what a cut keeps to scratch, closed up, and count them. `source` may be scratch."""
    written, seen = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for start in range(0, n, BLOCK):
        values = load_block(source, start, n, BLOCK)
        keep, seen = survivors(values, cut, tie, needed, seen, DUPLICATES)
        slots = written + tl.cumsum(keep.to(tl.int32), axis=0) - 1
        tl.debug_barrier()  # in place: all of the block is read before any of it is written
        tl.store(scratch + slots, tl.exp(values - top) / total, mask=keep)
        written += tl.sum(keep.to(tl.int32), axis=0)
    tl.debug_barrier()
    return written


@triton.jit
def mask_row(
    source,
    out,
    n,
    top,
    total,
    cut,
    tie,
    needed,
    p_cut,
    p_tie,
    p_needed,
    P: tl.constexpr,
    DUPLICATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy what both cuts keep, -inf elsewhere. p's cut is among probabilities, of what k's cut keeps."""
    seen, p_seen = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        original = tl.load(source + columns, mask=columns < n, other=-INF)
        values = original.to(tl.float32)
        keep, seen = survivors(values, cut, tie, needed, seen, DUPLICATES)
        if P:
            shares = tl.where(keep, tl.exp(values - top) / total, -INF)
            keep, p_seen = survivors(shares, p_cut, p_tie, p_needed, p_seen, DUPLICATES)
        tl.store(out + columns, tl.where(keep, original, -INF), mask=columns < n)
