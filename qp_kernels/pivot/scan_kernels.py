"""Triton kernels that score: one scan of the keys, or of a list of them, for many query heads at once; sums of rows.

    I[t, s] = k_scale[s] * sum over j of w[t, j] * relu(q[t, j] . k[s])

A tile of keys [BLOCK, D] meets the heads of ROWS queries [ROWS * HEADS, D], which stay where they are, in one product.
ReLU, weights and the sum over heads happen in registers: of ROWS * HEADS products a key, ROWS scores are written.
"""

import triton
import triton.language as tl

from ..qrita.parts import INTERPRETED
from .selection_parts import number_of

# Of other values nothing is compiled: they change from one step of a decode to the next.
NUMBERS = ["rows", "per", "parts", "keys", "lo", "hi", "step", "span", "width", "block"]


@triton.jit
def heads_of(
    q,
    first,
    count,
    chunk,
    H: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Query heads chunk * HEADS ... of ROWS rows from `first` on: [ROWS * HEADS, DEPTH]; zeros where there is none."""
    i = tl.arange(0, ROWS * HEADS)
    d = tl.arange(0, DEPTH)
    row, head = i // HEADS, chunk * HEADS + i % HEADS
    there = ((row < count) & (head < H))[:, None] & (d < D)[None, :]
    place = ((first + row).to(tl.int64) * H + head)[:, None] * D + d[None, :]
    return tl.load(q + place, mask=there, other=0.0)


@triton.jit
def weights_of(w, first, count, chunk, H: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """The weights of the same heads: [ROWS * HEADS]."""
    i = tl.arange(0, ROWS * HEADS)
    row, head = i // HEADS, chunk * HEADS + i % HEADS
    return tl.load(w + (first + row).to(tl.int64) * H + head, mask=(row < count) & (head < H), other=0.0)


@triton.jit
def power_of_two(exponent):
    """2**exponent for exponents from -149 to 127, as fp32."""
    bits = tl.where(exponent < -126, 1 << tl.maximum(exponent + 149, 0), (exponent + 127) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def rounded(total, TYPE: tl.constexpr):
    """Sums [M, D] in a type of q and k, and their scales [M]: 1, but for float8 the least power of two that fits."""
    scale = tl.full([total.shape[0]], 1.0, tl.float32)
    if TYPE == tl.float8e4nv:
        magnitudes = tl.abs(total)
        largest = tl.max(magnitudes, axis=1)
        # On a GPU the maximum drops NaN.
        largest = tl.where(tl.sum((magnitudes != magnitudes).to(tl.int32), axis=1) > 0, float("nan"), largest)
        # 448 = 1.75 * 2**8. A subnormal number is made a normal one first.
        is_small = largest < 1.1754943508222875e-38
        bits = tl.where(is_small, largest * 16777216.0, largest).to(tl.int32, bitcast=True)
        exponent = (bits >> 23) - 127 - tl.where(is_small, 24, 0) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
        exponent = tl.where((largest > 0.0) & (largest < float("inf")), tl.maximum(exponent, -149), 0)
        scale = power_of_two(exponent)
        # In two steps: 2**149 is not an fp32 number.
        half = -exponent // 2
        total = total * power_of_two(half)[:, None] * power_of_two(-exponent - half)[:, None]
        # A cast saturates; what is not finite has to stay so.
        total = tl.where(tl.abs(total) == float("inf"), float("nan"), total)
    return total.to(TYPE), scale


@triton.jit
def tile_scores(
    keys,
    heads,
    weights,
    chunk: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """sum over heads of weight * relu(head . key): [BLOCK, ROWS]. A NaN stays one."""
    if INTERPRETED:  # its products of 16-bit and 8-bit numbers are wrong
        keys, heads = keys.to(tl.float32), heads.to(tl.float32)
    products = tl.dot(keys, tl.trans(heads), input_precision="ieee")
    terms = tl.maximum(products, 0.0, propagate_nan=tl.PropagateNan.ALL) * weights[None, :]
    terms = tl.reshape(terms, [BLOCK, ROWS, HEADS])
    if H % HEADS != 0:  # 0 * inf of heads that are none
        terms = tl.where((chunk * HEADS + tl.arange(0, HEADS) < H)[None, None, :], terms, 0.0)
    return tl.sum(terms, axis=2)


@triton.jit(do_not_specialize=NUMBERS)
def scores_kernel(
    q, w, k, k_scale, out, out_stride, blocks, rows, per, parts, keys, lo, hi, step, span,
    lists, list_stride, width, row_table, arrived,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, SCALED: tl.constexpr, LISTED: tl.constexpr,
    BLOCKED: tl.constexpr, TABLED: tl.constexpr, COUNTED: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, spans of keys). Scores of at most ROWS rows against `span` keys, or places of a list.

    A block are rows that share lo, or a list. It is found in `blocks` [B, 5] (first row, rows, list, lo, end; BLOCKED),
    or computed: group b // parts of `per` rows, and of it part b % parts. out[row, key - lo], or [row, place in the
    list]; there NaN for keys that the row may not select. COUNTED: Sets arrived [rows] to 0, for `select_kernel`.
    """
    block = tl.program_id(0)
    group = block // parts
    first = group * per + (block % parts) * ROWS
    count = tl.minimum(tl.minimum(group * per + per, rows) - first, ROWS)
    base, end = lo, tl.minimum(hi + step * (first + count - 1), keys)
    if BLOCKED:
        blocks += 5 * block
        first, count, group = tl.load(blocks), tl.load(blocks + 1), tl.load(blocks + 2)
        base, end = tl.load(blocks + 3), tl.load(blocks + 4)
    begin = tl.program_id(1) * span
    stop = begin + span
    if LISTED:
        stop = tl.minimum(stop, width)
    else:
        begin, stop = begin + base, tl.minimum(stop + base, end)
    CHUNKS: tl.constexpr = (H + HEADS - 1) // HEADS
    d = tl.arange(0, DEPTH)
    r = tl.arange(0, ROWS)
    row_end = tl.zeros([ROWS], tl.int32)
    if LISTED:
        row_end = number_of(tl.minimum(first + r, rows - 1), row_table, hi, step, 2, FIELDS, TABLED)
    if count > 0:
        if COUNTED:
            tl.store(arrived + first + r, 0, mask=(r < count) & (tl.program_id(1) == 0))
        heads = heads_of(q, first, count, 0, H, D, ROWS, HEADS, DEPTH)
        weights = weights_of(w, first, count, 0, H, ROWS, HEADS)
        for start in tl.range(begin, stop, BLOCK, num_stages=STAGES):
            place = start + tl.arange(0, BLOCK)
            there = place < stop
            key = place
            if LISTED:
                key = tl.load(lists + group.to(tl.int64) * list_stride + place, mask=there, other=-1)
                there = key >= 0
            of_tile = k + key.to(tl.int64)[:, None] * D + d[None, :]
            tile = tl.load(of_tile, mask=there[:, None] & (d < D)[None, :], other=0.0)
            total = tile_scores(tile, heads, weights, 0, H, ROWS, HEADS, BLOCK)
            for chunk in tl.static_range(1, CHUNKS):
                more = heads_of(q, first, count, chunk, H, D, ROWS, HEADS, DEPTH)
                more_weights = weights_of(w, first, count, chunk, H, ROWS, HEADS)
                total += tile_scores(tile, more, more_weights, chunk, H, ROWS, HEADS, BLOCK)
            if SCALED:
                total = total * tl.load(k_scale + key, mask=there, other=0.0)[:, None]
            column = place
            if LISTED:
                total = tl.where(there[:, None] & (key[:, None] < row_end[None, :]), total, float("nan"))
            else:
                column = place - base
            to = out + (first + r).to(tl.int64)[None, :] * out_stride + column[:, None]
            tl.store(to, total, mask=(place < stop)[:, None] & (r < count)[None, :])


@triton.jit(do_not_specialize=NUMBERS)
def proxy_kernel(
    q, w, q_scale, to_q, to_w, to_scale, table, rows, per,
    H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    SCALED: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (groups, chunks of HEADS heads). Proxies of groups of `per` rows each, or of table [G, 2]: first row, rows.

    Sums over a group's rows, in order, in fp32: of w, and of the de-quantised q, which is rounded to the type of q.
    """
    group, chunk = tl.program_id(0), tl.program_id(1)
    first, count = group * per, tl.minimum(per, rows - group * per)
    if TABLE:
        first, count = tl.load(table + 2 * group), tl.load(table + 2 * group + 1)
    head = chunk * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, DEPTH)
    there = (head < H)[:, None] & (d < D)[None, :]
    total, weight = tl.zeros([HEADS, DEPTH], tl.float32), tl.zeros([HEADS], tl.float32)
    for member in range(count):
        at = (first + member).to(tl.int64) * H + head
        values = tl.load(q + at[:, None] * D + d[None, :], mask=there, other=0.0).to(tl.float32)
        if SCALED:
            values = values * tl.load(q_scale + at, mask=head < H, other=0.0)[:, None]
        total += values
        weight += tl.load(w + at, mask=head < H, other=0.0)
    heads, scale = rounded(total, q.dtype.element_ty)
    at = group.to(tl.int64) * H + head
    tl.store(to_q + at[:, None] * D + d[None, :], heads, mask=there)
    tl.store(to_w + at, weight, mask=head < H)
    tl.store(to_scale + at, scale, mask=head < H)


@triton.jit(do_not_specialize=NUMBERS)
def block_sums_kernel(
    k, k_scale, to_k, to_scale, block,
    D: tl.constexpr, DEPTH: tl.constexpr, KEYS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Grid (blocks). The sum of `block` de-quantised keys in fp32, rounded to their type. KEYS at a time."""
    number = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DEPTH)
    total = tl.zeros([1, DEPTH], tl.float32)
    for start in range(0, block, KEYS):
        i = start + tl.arange(0, KEYS)
        key = number * block + i
        values = tl.load(k + key[:, None] * D + d[None, :], mask=(i < block)[:, None] & (d < D)[None, :], other=0.0)
        values = values.to(tl.float32)
        if SCALED:
            values = values * tl.load(k_scale + key, mask=i < block, other=0.0)[:, None]
        total += tl.sum(values, axis=0)[None, :]
    sums, scale = rounded(total, k.dtype.element_ty)
    tl.store(to_k + number * D + d[None, :], sums, mask=(d < D)[None, :])
    tl.store(to_scale + number + tl.arange(0, 1), scale)
