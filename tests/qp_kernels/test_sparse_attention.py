"""Attention over selected keys against attention over all keys with a mask, in float64, on every back-end."""

import functools

import pytest
import torch
from places import INTERPRETED, sparse_attention
from rows_of import same_bits

from qp_kernels import attention, machine

pytestmark = pytest.mark.usefixtures("place")
# Triton's interpreter rounds to bfloat16 towards zero.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (not INTERPRETED)


def problem(rows, heads, kv_heads, width, values, keys, topk, dtype=torch.float32, seed=0):
    """q, k, v and indices: -1 anywhere, positions twice, a row that is all -1."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, heads, width), (keys, kv_heads, width), (keys, kv_heads, values)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    indices = torch.randint(-1, keys, (rows, topk), generator=generator, dtype=torch.int32)
    indices[rows // 2, : topk // 2] = -1
    if rows > 2:
        indices[2] = -1
    return q, k, v, indices


def masked(q, k, v, indices, scale):
    """Full attention in float64, and Σ share·|v| and Σ |v| with it; a position counts as often as it is listed."""
    q, k, v = q.double(), k.double(), v.double()
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    count = torch.zeros(len(q), len(k), dtype=torch.float64)
    rows = torch.arange(len(q))[:, None].expand_as(indices)
    there = indices >= 0
    count.index_put_((rows[there], indices[there].long()), torch.ones(1, dtype=torch.float64), True)
    logits = torch.einsum("thd,shd->ths", q, k) * scale
    best = logits.masked_fill(count[:, None] == 0, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e300)
    shares = (logits - best).clamp(max=0).exp() * count[:, None]
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-300)
    absolute = v.abs()
    sums = (torch.einsum("ths,shd->thd", weights, x) for weights, x in ((shares, v), (shares, absolute)))
    return *sums, torch.einsum("ts,shd->thd", count, absolute)


def check(got, q, k, v, indices, scale):
    """Every output within what its roundings explain, whichever back-end made it.

    A share errs by twice the error of its logit, 2^-20·scale·|q||k| (IEEE float32: TF32 is 2^9 times as coarse), by the
    exponential and the sums, 2^-19, and by its rounding to the dtype of v; then the output is rounded.
    """
    assert got.dtype == q.dtype and got.shape == (len(q), q.shape[1], v.shape[2])
    want, absolute, values = masked(q, k, v, indices, scale)
    unit = torch.finfo(q.dtype).eps / 2
    least = unit * torch.finfo(q.dtype).smallest_normal  # half of the smallest number
    longest = k[indices[indices >= 0].long()].double().norm(dim=-1).amax(0)  # [Hkv]
    longest = longest.repeat_interleave(q.shape[1] // k.shape[1])
    logit = 2.0**-20 * abs(scale) * q.double().norm(dim=-1) * longest  # [T, Hq]
    bound = (2 * logit[..., None] + 2.0**-19 + unit) * absolute + unit * want.abs() + least * (values + 1)
    error = (got.double() - want).abs()
    assert (error <= bound).all(), f"{(error / bound).max():.2f} times the bound"
    assert (got[~(indices >= 0).any(1)] == 0).all()


SIZES = [
    # heads, kv_heads, width, values
    (4, 1, 16, 8),
    (6, 2, 5, 5),
    (20, 1, 70, 33),
    (3, 3, 576, 512),
    (2, 1, 700, 530),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, kv_heads, width, values", SIZES)
def test_equals_masked_attention(heads, kv_heads, width, values, dtype):
    q, k, v, indices = problem(4, heads, kv_heads, width, values, 30, 70, dtype, seed=heads)
    check(sparse_attention(q, k, v, indices, scale=width**-0.5), q, k, v, indices, width**-0.5)
    check(sparse_attention(q, k, v, indices[:, :1].long(), scale=-3), q, k, v, indices[:, :1], -3)


@pytest.mark.plain
def test_chunks_of_rows(monkeypatch):
    q, k, v, indices = problem(7, 6, 2, 5, 5, 30, 9)
    monkeypatch.setattr(attention, "CHUNK_BYTES", 1)
    check(sparse_attention(q, k, v, indices, scale=0.5), q, k, v, indices, 0.5)


@pytest.mark.big
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, heads, mla", [(1, 128, True), (3, 16, True), (140, 64, False), (2, 16, False)])
def test_sizes_of_sparse_mla(rows, heads, mla, dtype):
    """Decode and prefill; values apart, or the first columns of the keys."""
    q, k, v, indices = problem(rows, heads, 1, 576, 512, 500, 2048 if rows < 9 else 300, dtype)
    v = k[..., :512] if mla else v
    check(sparse_attention(q, k, v, indices, scale=576**-0.5), q, k, v, indices, 576**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_columns_of_the_keys(dtype):
    q, k, _, indices = problem(3, 4, 2, 24, 16, 30, 70, dtype)
    for v in (k[..., :16], k[..., 8:], k[..., :15], k[..., :16].clone()):
        check(sparse_attention(q, k, v, indices, scale=0.2), q, k, v, indices, 0.2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype):
    q, k, v, indices = problem(4, 6, 2, 20, 9, 30, 40, dtype)
    views = (
        (q.transpose(0, 1).contiguous().transpose(0, 1), k.permute(2, 1, 0).contiguous().permute(2, 1, 0)),
        (q[:1].expand_as(q), k.repeat_interleave(3, 2)[..., ::3]),
        (torch.cat([q, q], 2)[..., 3:23], k[:, :1].expand_as(k)),
    )
    wide = indices.repeat_interleave(2, 1)[:, ::2].long()
    tables = (indices.t().contiguous().t(), wide, indices[:1].expand_as(indices))
    for (some, keys), table in zip(views, tables, strict=True):
        values = v.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        check(sparse_attention(some, keys, values, table, scale=0.3), some, keys, values, table, 0.3)


def test_keys_that_are_not_selected_do_not_show():
    q, k, v = torch.randn(2, 2, 4), torch.randn(5, 1, 4), torch.randn(5, 1, 3)
    indices = torch.tensor([[1, -1, 3], [-1, 4, -1]])
    want = sparse_attention(q, k, v, indices, scale=0.5)
    check(want, q, k, v, indices, 0.5)
    for poison in (float("nan"), float("inf")):  # -1 reads position 0, whose value is left out
        k[0], v[0], k[2], v[2] = -poison, poison, poison, -poison
        assert sparse_attention(q, k, v, indices, scale=0.5).equal(want)
    assert sparse_attention(q, k[:0], v[:0], torch.full((2, 3), -1), scale=1.0).equal(torch.zeros(2, 2, 3))
    assert sparse_attention(q, k, v, torch.full((2, 70), -1), scale=1.0).equal(torch.zeros(2, 2, 3))
    assert sparse_attention(q, k, v, indices[:, :0], scale=1.0).equal(torch.zeros(2, 2, 3))


@pytest.mark.parametrize("topk", [3, 200])
def test_selected_numbers_that_are_not_finite(topk):
    """As softmax has it: a logit of -inf weighs nothing beside others, and NaN alone."""
    q, k = torch.ones(4, 2, 2), torch.tensor([[-torch.inf, 0], [1, 1], [torch.nan, 0], [torch.inf, 0]])[:, None]
    v = torch.tensor([1.0, 2, 3, 4])[:, None, None]
    indices = torch.full((4, topk), -1)
    indices[:, 0], indices[:, -1] = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 3])
    got = sparse_attention(q, k, v, indices, scale=1.0)
    assert got[1].eq(2).all() and got[[0, 2, 3]].isnan().all()
    indices[:, 0], indices[:, -1] = indices[:, -1], indices[:, 0].clone()
    assert sparse_attention(q, k, v, indices, scale=1.0)[1].eq(2).all()


def test_float32_is_never_tf32():
    q, k = torch.ones(1, 1, 32), torch.zeros(2, 1, 32)
    k[:, 0, 0] = torch.tensor([1, 1 + 2.0**-13])  # logits that differ by 1
    v = torch.tensor([0.0, 1 + 2.0**-20])[:, None, None]
    got = sparse_attention(q, k, v, torch.tensor([[0, 1]]), scale=2.0**13)
    assert abs(got.item() - torch.sigmoid(torch.tensor(1.0)).item()) < 2e-6
    assert sparse_attention(q, k, v, torch.tensor([[1]]), scale=1.0).item() == 1 + 2.0**-20


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slots", [1, 8, 99])
def test_a_row_split_over_programs(slots, dtype, monkeypatch):
    from qp_kernels import attention_launch as launch

    monkeypatch.setattr(launch, "limits", lambda device: (slots, 99 << 10))
    q, k, v, indices = problem(3, 18, 1, 40, 20, 50, 250, dtype)
    indices[1, 60:70], indices[1, 128:] = -1, -1  # whole splits without keys
    got = sparse_attention(q, k, v, indices, scale=0.4)
    check(got, q, k, v, indices, 0.4)
    assert same_bits(got, sparse_attention(q, k, v, indices, scale=0.4))
    k[:] = -torch.inf
    got = sparse_attention(q.abs(), k, v, indices, scale=0.4)
    assert got[:2].isnan().all() and (got[2] == 0).all()
    k[7], indices[indices == 7], indices[:, 200] = 0.0, 8, 7
    assert sparse_attention(q.abs(), k, v, indices, scale=0.4).equal(v[7].expand_as(got))


@pytest.mark.plain
def test_blocks_and_cuts():
    pytest.importorskip("triton")
    from qp_kernels import attention_launch as launch

    for (topk, block, programs, slots), cut in {
        (2048, 64, 1, 132): (64, 32),
        (2048, 64, 2, 20): (256, 8),
        (2048, 64, 70, 132): (2048, 1),
        (2048, 64, 900, 132): (2048, 1),
        (50, 64, 1, 132): (64, 1),
        (65536, 64, 1, 132): (1024, 64),
        (250, 32, 3, 9): (96, 3),
    }.items():
        assert launch.cut_of(topk, block, programs, slots) == cut
    widths = {1: (16, 0), 16: (16, 0), 17: (16, 16), 24: (16, 16), 25: (32, 0), 192: (128, 64), 576: (512, 64)}
    assert {width: launch.columns_of(width) for width in widths} == widths
    k = torch.empty(2, 1, 576, dtype=torch.bfloat16)
    hopper = machine.HOPPER_BYTES - launch.SPARE_BYTES
    mla, apart = (launch.blocks_of(k, v, 128, hopper) for v in (k[..., :512], k[..., 64:]))
    assert (mla.heads, mla.keys, mla.shared) == (64, 64, True)
    assert (apart.heads, apart.keys, apart.shared) == (64, 32, False)
    cache = k[:, 0]
    assert launch.blocks_of(cache[:, None], cache[:, :512][:, None], 16, hopper).shared
    assert launch.blocks_of(k, k[..., :512], 128, 90 << 10).heads == 32


@pytest.mark.gpu
@pytest.mark.plain
@pytest.mark.parametrize("rows", [1, 200])
def test_in_a_cuda_graph(rows):
    q, k, v, indices = (t.cuda() for t in problem(rows, 16, 1, 576, 512, 300, 700, torch.bfloat16))
    run = functools.partial(attention.sparse_attention, q, k, v, indices, scale=0.05)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for _ in range(2):
        q.normal_()
        graph.replay()
        assert same_bits(out, run())


@pytest.mark.gpu
@pytest.mark.plain
def test_offsets_beyond_32_bits():
    """And positions beyond the keys, which are none there."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of the GPU's memory")
    memory = torch.empty(2**31 + 4096, dtype=torch.float16, device="cuda")
    q, k, v, indices = problem(2, 4, 1, 32, 32, 9, 40, torch.float16)
    for stride in ((2**28, 64, 1), (1, 1, 2**26)):
        far = memory.as_strided(k.shape, stride).copy_(k)
        out_of_range = indices.masked_fill(indices < 0, 9).cuda()
        check(attention.sparse_attention(q.cuda(), far, far, out_of_range, scale=0.2).cpu(), q, k, k, indices, 0.2)


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
        ({"backend": "triton"}, RuntimeError, "CUDA tensors or TRITON_INTERPRET=1"),
    ],
)
@pytest.mark.plain
def test_bad_arguments(change, error, message):
    good = {"q": torch.randn(2, 2, 4), "k": torch.randn(5, 1, 4), "v": torch.randn(5, 1, 3)}
    good["indices"] = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(error, match=message):
        sparse_attention(**{**good, "scale": 1.0, **change})


@pytest.mark.plain
def test_autocast_does_not_show():
    q, k, v = torch.zeros(1, 1, 2), torch.zeros(3, 1, 2), torch.full((3, 1, 1), 257.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse_attention(q, k, v, torch.tensor([[0, 1, 2]]), scale=1.0).item() == 257
