"""The paper's pivot search as a Triton function with a switch for every idea, for `ablation_kernels.py`."""

import triton
import triton.language as tl

from .ablation_parts import load_block

INF = tl.constexpr(float("inf"))


@triton.jit
def tally(values, pivot, amount, least, times, MASS: tl.constexpr, DUPLICATES: tl.constexpr):
    """Add a block to what is known of a pivot: the amount >= it, the smallest such value, how often that occurs."""
    above = values >= pivot
    amount += tl.sum(tl.where(above, values if MASS else 1.0, 0.0), axis=0)
    smallest = tl.min(tl.where(above, values, INF), axis=0)
    if DUPLICATES:
        here = tl.sum((above & (values == smallest)).to(tl.float32), axis=0)
        times = tl.where(smallest < least, here, tl.where(smallest == least, times + here, times))
    least = tl.minimum(least, smallest)
    return amount, least, times


@triton.jit
def at_pivot(source, n, pivot, MASS: tl.constexpr, DUPLICATES: tl.constexpr, BLOCK: tl.constexpr):
    """`tally` of one pivot over n entries."""
    amount = tl.zeros((), tl.float32)
    least = tl.full((), INF, tl.float32)
    times = tl.full((), 1.0, tl.float32)
    for start in range(0, n, BLOCK):
        values = load_block(source, start, n, BLOCK)
        amount, least, times = tally(values, pivot, amount, least, times, MASS, DUPLICATES)
    return amount, least, times


@triton.jit
def between(lo, hi, share):
    """lo + share (hi - lo), where the difference may overflow; inside the interval whatever is rounded."""
    return tl.minimum(tl.maximum(lo * (1.0 - share) + hi * share, lo), hi)


@triton.jit
def look(
    source, n, target, lo, hi, MASS: tl.constexpr, WAYS: tl.constexpr, DUPLICATES: tl.constexpr, BLOCK: tl.constexpr
):
    """One look at n entries: the tightest bracket of the pivots, what is at or above its lower end, and whether that
    end was a pivot.
    """
    zero = tl.zeros((), tl.float32)
    one = tl.full((), 1.0, tl.float32)
    inf = tl.full((), INF, tl.float32)
    q2, amount2, least2, times2 = between(lo, hi, 0.5), zero, inf, one
    if WAYS == 4:
        q1, amount1, least1, times1 = between(lo, hi, 0.25), zero, inf, one
        q3, amount3, least3, times3 = between(lo, hi, 0.75), zero, inf, one
    for start in range(0, n, BLOCK):
        values = load_block(source, start, n, BLOCK)
        amount2, least2, times2 = tally(values, q2, amount2, least2, times2, MASS, DUPLICATES)
        if WAYS == 4:
            amount1, least1, times1 = tally(values, q1, amount1, least1, times1, MASS, DUPLICATES)
            amount3, least3, times3 = tally(values, q3, amount3, least3, times3, MASS, DUPLICATES)
    reached = amount2 >= target
    inner_lo, inner_hi = tl.where(reached, q2, lo), tl.where(reached, hi, q2)
    amount, least, times = amount2, least2, times2
    if WAYS == 4:
        high, low = amount3 >= target, amount1 >= target
        inner_lo = tl.where(high, q3, tl.where(reached, q2, tl.where(low, q1, lo)))
        inner_hi = tl.where(high, hi, tl.where(reached, q3, tl.where(low, q2, q1)))
        amount = tl.where(high, amount3, tl.where(reached, amount2, amount1))
        least = tl.where(high, least3, tl.where(reached, least2, least1))
        times = tl.where(high, times3, tl.where(reached, times2, times1))
        reached = low
    return inner_lo, inner_hi, amount, least, times, reached


@triton.jit
def search(
    source,
    n,
    target,
    lo,
    hi,
    MASS: tl.constexpr,
    WAYS: tl.constexpr,
    DUPLICATES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A pivot with amount(>= pivot) >= target that is missed without the smallest value above it.

    Returns the pivot, that value, and how many entries equal to it the target needs. Without DUPLICATES a value is
    taken to occur once, so at a tie no pivot passes, and the interval shrinks until it holds no other float.
    """
    amount, least, times = tl.zeros((), tl.float32), tl.zeros((), tl.float32), tl.full((), 1.0, tl.float32)
    running, passed, step = tl.full((), 1, tl.int32), tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    while running > 0:
        inner_lo, inner_hi, amount, least, times, reached = look(
            source, n, target, lo, hi, MASS, WAYS, DUPLICATES, BLOCK
        )
        found = reached & (amount - times * (least if MASS else 1.0) < target)
        shrinks = (inner_lo > lo) | (inner_hi < hi)
        lo, hi = inner_lo, inner_hi
        step += 1
        passed = found.to(tl.int32)
        running = (shrinks & (step < STEPS)).to(tl.int32) * (1 - passed)
    if passed == 0:  # the answer is an end of what is left
        amount, least, times = at_pivot(source, n, hi, MASS, DUPLICATES, BLOCK)
        if amount >= target:
            lo = hi
        else:
            amount, least, times = at_pivot(source, n, lo, MASS, DUPLICATES, BLOCK)
    needed = target - (amount - times * (least if MASS else 1.0))
    if MASS:
        needed = tl.ceil(needed / tl.where(least > 0.0, least, 1.0))
    return lo, least, tl.minimum(tl.maximum(needed, 1.0), times)
