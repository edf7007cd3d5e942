"""Attention over selected keys in Triton: online softmax over blocks of gathered keys, and the merge of a split row.

Shares are exp(logit - the largest so far). Products of float32 are IEEE, never TF32; 16-bit numbers are multiplied as
they are, shares in the dtype of v, and all sums are float32.
"""

import triton
import triton.language as tl

from .qrita.parts import INF, INTERPRETED, LOG2_E


@triton.jit(do_not_specialize=["rows", "keys", "topk", "span"])
def attend_kernel(
    q_ptr, k_ptr, v_ptr, indices_ptr, out_ptr, tops_ptr, totals_ptr,
    stride_qt, stride_qh, stride_qd, stride_kn, stride_kh, stride_kd, stride_vn, stride_vh, stride_vd,
    stride_it, stride_is, scale, rows, kv_heads, group, keys, topk, span,
    D: tl.constexpr, DV: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, WHOLE: tl.constexpr,
    SHARED: tl.constexpr, SPLIT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Attend with some heads of a query to its selected keys, or (SPLIT) to `span` of them.

    Grid: (T * Hkv * blocks of BLOCK_H of a kv head's query heads * blocks of BLOCK_V of DV columns, splits). A program
    reads its heads of q once, and D + BLOCK_V numbers of each selected key; D where v is the first columns of k
    (SHARED). The D columns are MAIN and REST, powers of two; unless WHOLE, they are taken MAIN at a time, and q is read
    again for every block of keys. It writes its heads' BLOCK_V columns of out [T, Hq, DV]; a split, of [splits, T, Hq,
    DV], before the division, with the largest logit and the sum of shares in tops and totals [splits, T, Hq].
    """
    V_BLOCKS: tl.constexpr = (DV + BLOCK_V - 1) // BLOCK_V
    program, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first_column = (program % V_BLOCKS).to(tl.int32) * BLOCK_V
    program = program // V_BLOCKS
    head_blocks = tl.cdiv(group, BLOCK_H)
    head = (program % head_blocks).to(tl.int32) * BLOCK_H + tl.arange(0, BLOCK_H)
    program = program // head_blocks
    kv_head, row = program % kv_heads, program // kv_heads
    is_head = head < group
    head = kv_head * group + head

    q_at = q_ptr + row * stride_qt + head * stride_qh  # [BLOCK_H]
    if WHOLE:
        q_main = columns_of(q_at, is_head, 0, stride_qd, D, MAIN)
        if REST:
            q_rest = columns_of(q_at, is_head, MAIN, stride_qd, D, REST)
    tops = tl.full([BLOCK_H], -INF, tl.float32)
    totals = tl.zeros([BLOCK_H], tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    found = tl.zeros([BLOCK_K], tl.int32)
    last = tl.minimum((split + 1) * span, topk)
    for start in range(split * span, last, BLOCK_K):
        slot = start + tl.arange(0, BLOCK_K)
        selected = indices_ptr + row * stride_it + slot.to(tl.int64) * stride_is
        place = tl.load(selected, mask=slot < last, other=-1).to(tl.int64)
        there = (place >= 0) & (place < keys)
        k_at = k_ptr + kv_head * stride_kh + place * stride_kn  # [BLOCK_K]
        if WHOLE:
            k_main = columns_of(k_at, there, 0, stride_kd, D, MAIN)
            logits = tl.dot(q_main, tl.trans(k_main), input_precision="ieee")
            if REST:
                k_rest = columns_of(k_at, there, MAIN, stride_kd, D, REST)
                logits = tl.dot(q_rest, tl.trans(k_rest), logits, input_precision="ieee")
        else:
            logits = tl.zeros([BLOCK_H, BLOCK_K], tl.float32)
            for column in range(0, D, MAIN):
                q_part = columns_of(q_at, is_head, column, stride_qd, D, MAIN)
                k_part = columns_of(k_at, there, column, stride_kd, D, MAIN)
                logits = tl.dot(q_part, tl.trans(k_part), logits, input_precision="ieee")
        if SHARED:
            values = k_main
        else:
            v_at = v_ptr + kv_head * stride_vh + place * stride_vn
            values = columns_of(v_at, there, first_column, stride_vd, DV, BLOCK_V)

        logits = tl.where(there[None, :], logits * scale, -INF)
        # A NaN may be lost here, but not in the shares.
        higher = tl.maximum(tops, tl.max(logits, axis=1))
        finite = tl.where(higher == -INF, 0.0, higher)  # -inf - -inf is no number
        shares = tl.exp2((logits - finite[:, None]) * LOG2_E)
        fading = tl.exp2((tops - finite) * LOG2_E)
        totals = totals * fading + tl.sum(shares, axis=1)
        sums = tl.dot(shares.to(values.dtype), values, sums * fading[:, None], input_precision="ieee")
        tops = higher
        found += there.to(tl.int32)

    # Only without keys a total is 0: where all logits are -inf the result is 0 / 0, as softmax has it.
    has_keys = tl.sum(found, axis=0) > 0
    column = first_column + tl.arange(0, BLOCK_V)
    target = (split.to(tl.int64) * rows + row) * (kv_heads * group) + head
    inside = is_head[:, None] & (column < DV)[None, :]
    if SPLIT:
        tl.store(tops_ptr + target, tops, mask=is_head)
        tl.store(totals_ptr + target, tl.where(has_keys & (tops == -INF), 1.0, totals), mask=is_head)
    else:
        sums = tl.where(has_keys, sums / totals[:, None], 0.0)
    tl.store(out_ptr + target[:, None] * DV + column[None, :], sums.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def columns_of(at, there, first, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK columns from `first` on of the rows of D numbers at `at`; 0 beyond D and of a row that is not there."""
    column = first + tl.arange(0, BLOCK)
    place = at[:, None] + column.to(tl.int64)[None, :] * stride
    values = tl.load(place, mask=there[:, None] & (column < D)[None, :], other=0.0)
    if INTERPRETED:  # which multiplies no 16-bit numbers
        values = values.to(tl.float32)
    return values


@triton.jit(do_not_specialize=["heads", "splits"])
def merge_kernel(
    sums_ptr, tops_ptr, totals_ptr, out_ptr, heads, splits,
    DV: tl.constexpr, SPLITS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Add up the splits of a head of a query, for BLOCK_V columns.

    Grid: (T * Hq, blocks of BLOCK_V of DV columns). Reads splits * (BLOCK_V + 2) numbers and writes BLOCK_V of
    out [T, Hq, DV]. heads: T * Hq.
    """
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    at, inside = split.to(tl.int64) * heads + head, split < splits
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    tops = tl.load(tops_ptr + at, mask=inside, other=-INF)
    totals = tl.load(totals_ptr + at, mask=inside, other=0.0)
    wanted = inside[:, None] & (column < DV)[None, :]
    sums = tl.load(sums_ptr + at[:, None] * DV + column[None, :], mask=wanted, other=0.0)  # [SPLITS, BLOCK_V]
    highest = tl.max(tops, axis=0)
    finite = tl.where(highest == -INF, 0.0, highest)
    weight = tl.exp2((tops - finite) * LOG2_E)
    total = tl.sum(weight * totals, axis=0)
    has_keys = tl.sum((totals != 0.0).to(tl.int32), axis=0) > 0
    result = tl.where(has_keys, tl.sum(weight[:, None] * sums, axis=0) / total, 0.0)
    tl.store(out_ptr + head * DV + column, result.to(out_ptr.dtype.element_ty), mask=column < DV)
