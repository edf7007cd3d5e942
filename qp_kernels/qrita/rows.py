"""What every Qrita kernel begins with: where its row lies, its limits, and what `place_kernel` has found."""

import triton
import triton.language as tl

from .decisions import TOKEN
from .parts import INF, LOG2_E

# Of each row `place_kernel` writes PLACES numbers (fp32): its threshold t, its standard deviation, a window around its
# cut (from, to), and the value that masses are in units of where the cut lies there.
T, STD, FROM, TO, UNIT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
PLACES = tl.constexpr(8)
# Each counter has 128 bytes of memory for itself: neighbours would wait for each other.
COUNTER_STRIDE = tl.constexpr(32)
# Flags of rows that are not decided yet, all others are 0: there was no room for what is above t; or the cut is not
# there, or too much is.
FULL, WIDE = tl.constexpr(1), tl.constexpr(2)
# No kernel of its own is compiled for a value or an alignment of these: where it pays there is FAST.
NUMBERS = ["row_stride", "stride", "out_row_stride", "out_stride", "batch", "vocab", "first", "slice_size", "n_slices"]
NUMBERS += ["k", "joint", "all_ties", "width"]
POINTERS = ["logits", "out", "table", "seeds", "scratch"]


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
def rate_of(temperature):
    """log2(e) / T as fp32."""
    return (tl.full([], LOG2_E, tl.float64) / temperature).to(tl.float32)


@triton.jit
def rate_at(row, table, temperature):
    """The same for a row."""
    heat = tl.full([], temperature, tl.float64)
    if table is not None:
        heat = tl.load(table + row * 5 + 4)
    return rate_of(heat)


@triton.jit
def uniform_of(seeds, row, WHAT: tl.constexpr):
    """The number in [0, 1) that a row's seed draws, fp32; 0 where nothing is drawn."""
    uniform = tl.full([], 0.0, tl.float32)
    if WHAT == TOKEN:
        uniform = tl.rand(tl.load(seeds + row), tl.program_id(0) * 0)
    return uniform


@triton.jit
def is_unit(unit, top, n_above, rate, FIX: tl.constexpr):
    """Whether int64 can hold the masses of a row in units of the weight of `unit`, with n_above entries above TO."""
    return (unit < INF) & (tl.exp2((top - unit) * rate) * (n_above + 1).to(tl.float32) * FIX < 2.0**62)


@triton.jit
def scaled(mass, below, top, rate):
    """A mass in units of the weight of `below`, which is at most `top`, in units of the weight of `top`."""
    share = tl.where(below >= top, 1.0, tl.exp2((below - top) * rate))  # inf - inf and 0 * inf are no numbers
    return (mass.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
