"""The same row gives the same bits: in every batch, place, layout, run, stream and graph, and beyond 2**31 entries."""

import math

import oracle_torch
import pytest
import torch
from rows_of import random_rows, same_bits

from qp_kernels.qrita import sample, select, top_k_top_p, truncation

pytestmark = pytest.mark.gpu
BATCHES = (1, 2, 131, 133, 1025)
LIMITS = (
    {"k": 50},
    {"p": 0.9},
    {"k": 200, "p": 0.95},
    {"k": 40, "p": 0.5, "order": "joint"},
    {"p": 0.999},
)
VOCABULARIES = (509, 8192, 50_257)


@pytest.fixture(params=["torch", "triton"])
def by(request):
    """The back-end."""
    return request.param


def hard_rows(vocab, dtype=torch.float32):
    """Rows with ties at the cut, NaN, infinities, masks, wide nuclei, and one model-like row; on the device."""
    rows = [random_rows(9, 13, vocab)]
    rng = torch.Generator().manual_seed(9)
    for scale in (0.05, 1.0, 4.3):
        rows.append(torch.randn(2, vocab, generator=rng) * scale)
    rows.append((torch.randn(2, vocab, generator=rng) * 4.3).bfloat16().float())
    return torch.cat(rows).to(dtype).cuda()


def everything(logits, limits, by):
    """Every function on the same rows: tensors whose bits must not depend on the batch."""
    seeds = torch.full((len(logits),), 77, device=logits.device)
    kept_by_k_and_p = {name: value for name, value in limits.items() if name != "order"}
    return (
        top_k_top_p(logits, **limits, backend=by),
        *select(logits, **limits, max_candidates=64, backend=by),
        sample(logits, **kept_by_k_and_p, temperature=0.7, seeds=seeds, backend=by),
        *truncation(logits, **limits, backend=by),
    )


def filler(batch, vocab, dtype=torch.float32):
    return (torch.randn(batch, vocab, device="cuda") * 3).to(dtype)


def transposed(logits):
    return logits.t().contiguous().t()


def offset(logits):
    wide = torch.full((logits.shape[0], logits.shape[1] + 8), 50.0, dtype=logits.dtype, device=logits.device)
    wide[:, 3 : 3 + logits.shape[1]] = logits
    return wide[:, 3 : 3 + logits.shape[1]]


def every_second_column(logits):
    return logits.repeat_interleave(2, dim=1)[:, ::2]


def same(found, wanted, rows):
    for one, all_rows in zip(wanted, found):
        assert same_bits(all_rows[rows], one)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_in_every_batch_and_place(by, vocab, limits):
    rows = hard_rows(vocab)
    alone = [everything(row[None], limits, by) for row in rows]
    together = everything(rows, limits, by)
    for i, one in enumerate(alone):
        same(together, one, slice(i, i + 1))
    for batch in BATCHES:
        places = {0, batch // 2, batch - 1}
        for i in (2, 7, 13, 17, 20):
            logits = filler(batch, vocab)
            logits[sorted(places)] = rows[i]
            found = everything(logits, limits, by)
            for place in places:
                same(found, alone[i], slice(place, place + 1))


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [transposed, offset, every_second_column])
def test_in_every_layout(by, vocab, dtype, layout):
    rows = hard_rows(vocab, dtype)
    for limits in LIMITS:
        wanted = everything(rows, limits, by)
        same(everything(layout(rows), limits, by), wanted, slice(None))
    one = rows[16:17]
    expanded = everything(one.expand(133, vocab), LIMITS[2], by)
    for place in (0, 131, 132):
        same(expanded, everything(one, LIMITS[2], by), slice(place, place + 1))


@pytest.mark.parametrize("vocab", [50_257, 262_144])
def test_in_twenty_runs(by, vocab):
    logits = torch.cat([hard_rows(vocab), filler(112, vocab)])
    for limits in LIMITS:
        first = everything(logits, limits, by)
        for _ in range(20):
            same(everything(logits, limits, by), first, slice(None))


def test_in_several_streams_at_once(by):
    batches = [torch.cat([hard_rows(16_384), filler(n, 16_384)]) for n in (1, 40, 110, 300)]
    wanted = [[everything(logits, limits, by) for limits in LIMITS] for logits in batches]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in batches]
    for _ in range(5):
        found = []
        for logits, stream in zip(batches, streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append([everything(logits, limits, by) for limits in LIMITS])
        torch.cuda.synchronize()
        for mine, theirs in zip(found, wanted):
            for one, other in zip(mine, theirs):
                same(one, other, slice(None))


@pytest.mark.parametrize("batch", [1, 3, 140])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_graph_replay_equals_eager(by, batch, limits):
    """k and p are per-row tensors that change between replays, as a server's do."""
    vocab = 40_009
    logits, out = filler(batch, vocab), torch.empty(batch, vocab, device="cuda")
    rows = {name: torch.full((batch,), value, device="cuda") for name, value in limits.items() if name != "order"}
    arguments = {**limits, **rows}

    def run():
        top_k_top_p(logits, **arguments, out=out, backend=by)
        return everything(logits, arguments, by)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run()
    for scale in (0.05, 3.0, 12.0):
        logits.normal_().mul_(scale)
        for name, values in rows.items():
            values.copy_(torch.randint(1, 900, (batch,)) if name == "k" else torch.rand(batch))
        graph.replay()
        eager = everything(logits, arguments, by)
        same(replayed, eager, slice(None))
        assert same_bits(out, eager[0])
        assert not oracle_torch.check_mask(logits, out, **arguments)[0].any()


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_beyond_two_to_the_31_entries(by, layout):
    batch, vocab = 8200, 262_144
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    shape = (batch, vocab) if layout == "contiguous" else (vocab, batch)
    logits = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    logits = logits if layout == "contiguous" else logits.t()
    content = (torch.randn(7, vocab, device="cuda") * 4.3).bfloat16()
    checked = torch.tensor([0, 1, 4095, 4096, 8191, 8192, 8199], device="cuda")
    logits[:] = content[0]
    logits[checked] = content
    for limits in ({"k": 50}, {"p": 0.9}, {"k": 1000, "p": 0.99}):
        wanted = everything(content, limits, by)
        seeds = torch.full((batch,), 77, device="cuda")
        tokens = sample(logits, **limits, temperature=0.7, seeds=seeds, backend=by)
        found = select(logits, **limits, max_candidates=64, backend=by)
        same((*found, tokens), wanted[1:6], checked)
        out = top_k_top_p(logits, **limits, backend=by)
        assert same_bits(out[checked], wanted[0])
        assert not oracle_torch.check_mask(content, out[checked].contiguous(), **limits)[0].any()
        assert (out > -math.inf).sum(-1).unique().numel() <= len(content), "the other rows are copies of the first"
        del out
    top_k_top_p(logits, 50, 0.9, out=logits, backend=by)
    assert same_bits(logits[checked], top_k_top_p(content, 50, 0.9, backend=by))
