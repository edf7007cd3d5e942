"""Triton kernels that score: one scan of the keys, or of a list of them, for many query heads at once, and the proxy.

    I[t, s] = k_scale[s] * sum over j of w[t, j] * relu(q[t, j] . k[s])

A tile of keys [BLOCK, D] meets the heads of ROWS queries [ROWS * HEADS, D], which stay where they are, in one product.
ReLU, weights and the sum over heads happen in registers: of ROWS * HEADS products a key, ROWS scores are written.
"""

import triton
import triton.language as tl

from ..qrita.parts import INTERPRETED
from .selection_kernels import number_of


@triton.jit
def heads_of(q, first, count, chunk, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr):
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
def tile_scores(keys, heads, weights, chunk: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """sum over heads of weight * relu(head . key): [BLOCK, ROWS]. A NaN stays one."""
    if INTERPRETED:  # its products of 16-bit and 8-bit numbers are wrong
        keys, heads = keys.to(tl.float32), heads.to(tl.float32)
    products = tl.dot(keys, tl.trans(heads), input_precision="ieee")
    terms = tl.maximum(products, 0.0, propagate_nan=tl.PropagateNan.ALL) * weights[None, :]
    terms = tl.reshape(terms, [BLOCK, ROWS, HEADS])
    if H % HEADS != 0:  # 0 * inf of heads that are none
        terms = tl.where((chunk * HEADS + tl.arange(0, HEADS) < H)[None, None, :], terms, 0.0)
    return tl.sum(terms, axis=2)


@triton.jit
def scores_kernel(
    q, w, k, k_scale, out, out_stride, blocks, rows, per, parts, keys, lo, hi, step, span,
    lists, list_stride, width, row_table,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, SCALED: tl.constexpr, LISTED: tl.constexpr,
    BLOCKED: tl.constexpr, TABLED: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, spans of keys). Scores of at most ROWS rows against `span` keys, or places of a list.

    A block are rows that share lo, or a list. It is found in `blocks` [B, 5] (first row, rows, list, lo, end; BLOCKED),
    or computed: group b // parts of `per` rows, and of it part b % parts. out[row, key - lo], or [row, place in the
    list]; there NaN for keys that the row may not select.
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


@triton.jit
def proxy_kernel(
    q, w, q_scale, to_q, to_w, groups, rows, per,
    H: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Grid (groups, H). Sums over a group's rows, in order, in fp32: of the de-quantised q [D], and of w.

    groups [G, 2]: first row and how many, or `per` rows each.
    """
    group, head = tl.program_id(0), tl.program_id(1)
    first, count = group * per, tl.minimum(per, rows - group * per)
    if TABLE:
        first, count = tl.load(groups + 2 * group), tl.load(groups + 2 * group + 1)
    d = tl.arange(0, DEPTH)
    total, weight = tl.zeros([DEPTH], tl.float32), 0.0
    for i in range(count):
        at = (first + i).to(tl.int64) * H + head
        values = tl.load(q + at * D + d, mask=d < D, other=0.0).to(tl.float32)
        if SCALED:
            values = values * tl.load(q_scale + at)
        total += values
        weight += tl.load(w + at)
    at = group.to(tl.int64) * H + head
    tl.store(to_q + at * D + d, total.to(to_q.dtype.element_ty), mask=d < D)
    tl.store(to_w + at, weight)
