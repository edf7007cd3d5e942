"""Attention over selected keys. Knows positions, not how they were selected.

Here are the arguments and the reference in torch; `attention_launch.py` runs the Triton kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import backend as backends
from .pivot.checks import tensor
from .pivot.reference import in_float32

# Bytes that the gathered keys and values of a chunk of rows may take.
CHUNK_BYTES = 256 << 20


@in_float32
def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, indices: Tensor, *, scale: float, backend: str = "auto"
) -> Tensor:
    """Softmax attention of each query over its selected keys.

    Args:
        q: [T, Hq, D]; k: [N, Hkv, D]; v: [N, Hkv, Dv], Hq a multiple of Hkv (query head h attends with key head
            h // (Hq / Hkv)); float32, bfloat16 or float16, one dtype.
        indices: [T, topk] int32 or int64 in [0, N), shared by the heads; -1, anywhere, is none. A position twice
            counts twice. On a CUDA device they are not checked: the kernels take what is out of range for none.
        scale: Of q . k, often D ** -.5.
        backend: "auto" (Triton on CUDA tensors, else torch), "triton" or "torch".
    Returns:
        [T, Hq, Dv] of the dtype of q. A row without keys gives zeros; NaN and inf of what is not selected never show.
    Raises:
        TypeError, ValueError: a type, dtype, shape, device or (on a CPU) position out of range. RuntimeError: the
            back-end cannot run here.
    Exactness: sums are float32, products of float32 never TF32. With 16-bit values the kernels round the shares to
    their dtype as well. On one device a Triton call repeats bit for bit; the host does not wait for it.
    Memory: the kernels read a row's keys and values once for up to 64 query heads of a kv head (float32: 32), and of
    16-bit sparse MLA, where v = k[..., :512], the keys alone. Few rows are split over programs by their keys. Torch
    gathers the keys and values of a chunk of rows.

    Source: DeepSeek-V3.2 (sparse multi-query attention).

    >>> one = torch.ones(1, 1, 1)
    >>> values = torch.tensor([[[2.0]], [[4.0]], [[9.0]]])
    >>> sparse_attention(one, torch.ones(3, 1, 1), values, torch.tensor([[0, 1, -1]]), scale=1.0)
    tensor([[[3.]]])
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        tensor(name, value, 3)
        if value.dtype not in (torch.float32, torch.bfloat16, torch.float16) or value.dtype != q.dtype:
            raise TypeError(f"q, k and v must share float32, bfloat16 or float16, got {name} of {value.dtype}")
    tensor("indices", indices, 2)
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, got {indices.dtype}")
    (rows, heads, width), (keys, kv_heads, _) = q.shape, k.shape
    if k.shape[2] != width or v.shape[:2] != k.shape[:2] or min(kv_heads, width) < 1 or heads % kv_heads:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"k must be [N, Hkv, D] and v [N, Hkv, Dv] with Hq a multiple of Hkv, got {shapes}")
    if len(indices) != rows:
        raise ValueError(f"indices must have one row per query, {rows}, got {len(indices)}")
    if any(value.device != q.device for value in (k, v, indices)):
        raise ValueError(f"k, v and indices must be on {q.device} as q is")
    if not indices.is_cuda and indices.numel() and not bool(((indices >= -1) & (indices < keys)).all()):
        raise ValueError(f"indices must be in [-1, {keys}), got {int(indices.min())} .. {int(indices.max())}")
    by = backends.resolve(q, backend).name
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    topk = indices.shape[1]
    if 0 in (keys, topk, rows, heads, v.shape[2]):
        return q.new_zeros(rows, heads, v.shape[2])
    if by == "triton":
        from . import attention_launch

        return attention_launch.attend(q, k, v, indices, scale)
    out = q.new_empty(rows, heads, v.shape[2])
    step = max(1, CHUNK_BYTES // (4 * topk * kv_heads * (k.shape[2] + v.shape[2])))
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        out[chunk] = _attend(q[chunk], k, v, indices[chunk].long(), scale).to(q.dtype)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float) -> Tensor:
    there = indices >= 0
    places = indices.clamp(min=0)
    keys, values = k[places].float(), v[places].float()  # [T, topk, Hkv, D]
    grouped = q.float().unflatten(1, (k.shape[1], -1))  # [T, Hkv, Hq / Hkv, D]
    logits = torch.einsum("tghd,tsgd->tghs", grouped, keys) * scale
    logits = logits.masked_fill(~there[:, None, None, :], -torch.inf)
    shares = logits.softmax(-1).masked_fill(~there.any(1)[:, None, None, None], 0.0)
    values = values.masked_fill(~there[:, :, None, None], 0.0)
    return torch.einsum("tghs,tsgd->tghd", shares, values).flatten(1, 2)
