"""Attention over selected keys against attention over all keys with a mask, in float64."""

import pytest
import torch

from qp_kernels import attention
from qp_kernels.attention import sparse_attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def masked(q, k, v, indices, scale):
    """Full attention in float64; a position counts as often as it is listed."""
    q, k, v = q.double(), k.double(), v.double()
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    count = torch.zeros(len(q), len(k), dtype=torch.float64, device=q.device)
    rows = torch.arange(len(q), device=q.device)[:, None].expand_as(indices)
    there = indices >= 0
    count.index_put_((rows[there], indices[there].long()), torch.ones(1, dtype=torch.float64, device=q.device), True)
    logits = torch.einsum("thd,shd->ths", q, k) * scale
    shares = (logits - logits.amax(-1, keepdim=True)).exp() * count[:, None]
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("ths,shd->thd", shares, v)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, kv_heads, width, values", [(4, 1, 16, 8), (6, 2, 5, 5), (3, 3, 576, 512)])
def test_equals_masked_attention(heads, kv_heads, width, values, device, monkeypatch):
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(7, heads, width, generator=generator).to(device)
    k = torch.randn(30, kv_heads, width, generator=generator).to(device)
    v = torch.randn(30, kv_heads, values, generator=generator).to(device)
    indices = torch.randint(-1, 30, (7, 9), generator=generator, dtype=torch.int32).to(device)
    indices[3] = -1
    want = masked(q, k, v, indices, width**-0.5)
    got = sparse_attention(q, k, v, indices, scale=width**-0.5)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    assert (got[3] == 0).all()
    monkeypatch.setattr(attention, "CHUNK_BYTES", 1)
    torch.testing.assert_close(sparse_attention(q, k, v, indices, scale=width**-0.5), got, rtol=1e-5, atol=1e-6)


def test_keys_that_are_not_selected_do_not_show():
    q, k, v = torch.randn(2, 2, 4), torch.randn(5, 1, 4), torch.randn(5, 1, 3)
    indices = torch.tensor([[1, 3, -1], [4, -1, -1]])
    want = sparse_attention(q, k, v, indices, scale=0.5)
    k[0], v[0] = float("nan"), float("inf")  # -1 reads position 0, whose value is left out
    assert sparse_attention(q, k, v, indices, scale=0.5).equal(want)
    assert sparse_attention(q, k[:0], v[:0], torch.full((2, 3), -1), scale=1.0).equal(torch.zeros(2, 2, 3))
    assert sparse_attention(q.half(), k.half(), v.half(), indices, scale=0.5).dtype == torch.float16


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"q": torch.randn(2, 4)}, ValueError, "q must have 3 dimensions"),
        ({"k": torch.randn(5, 1, 4).half()}, TypeError, "must share float32, bfloat16 or float16"),
        ({"k": torch.randn(5, 3, 4)}, ValueError, "Hq a multiple of Hkv"),
        ({"v": torch.randn(4, 1, 3)}, ValueError, "Hq a multiple of Hkv"),
        ({"indices": torch.zeros(2, 3)}, TypeError, "indices must be int32 or int64"),
        ({"indices": torch.zeros(3, 3, dtype=torch.int32)}, ValueError, "one row per query, 2, got 3"),
        ({"indices": torch.full((2, 3), 5)}, ValueError, r"indices must be in \[-1, 5\), got 5 .. 5"),
        ({"scale": None}, ValueError, "scale must be a finite number, got None"),
        ({"backend": "triton"}, RuntimeError, "no Triton kernels in this version"),
    ],
)
def test_bad_arguments(change, error, message):
    good = {"q": torch.randn(2, 2, 4), "k": torch.randn(5, 1, 4), "v": torch.randn(5, 1, 3)}
    good["indices"] = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(error, match=message):
        sparse_attention(**{**good, "scale": 1.0, **change})


def test_autocast_does_not_show():
    q, k, v = torch.zeros(1, 1, 2), torch.zeros(3, 1, 2), torch.full((3, 1, 1), 257.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse_attention(q, k, v, torch.tensor([[0, 1, 2]]), scale=1.0).item() == 257
