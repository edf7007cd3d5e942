"""On CUDA tensors: the same contract, without a synchronisation in the mask path, which graphs capture."""

import math

import pytest
import torch
from oracle import check_kept
from rows_of import DTYPES, random_rows, same_bits

from qp_kernels import backend
from qp_kernels.qrita import QritaProcessor, sample, select, top_k_top_p, truncation

pytestmark = pytest.mark.gpu


def check(logits, result, **limits):
    for row, kept in zip(logits.double().cpu().numpy(), (result > -math.inf).cpu()):
        check_kept(row, torch.nonzero(kept)[:, 0].tolist(), **limits)
    kept = result > -math.inf
    assert same_bits(result[kept].cpu(), logits[kept].cpu()) and not result.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [0, 1, 131, 133])
@pytest.mark.parametrize(
    "limits",
    [{"k": 20}, {"p": 0.9}, {"k": 20, "p": 0.9}, {"k": 20, "p": 0.9, "order": "joint"}, {"k": 9, "ties": "all"}],
)
def test_contract(dtype, batch, limits):
    logits = random_rows(batch, batch, 1009).to(dtype).cuda() if batch else torch.empty(0, 1009, device="cuda")
    check(logits, top_k_top_p(logits, **limits, backend="torch"), **limits)


def test_same_set_as_on_a_cpu():
    logits = random_rows(3, 39, 4099)
    for k in (1, 50, 4000):
        assert same_bits(top_k_top_p(logits.cuda(), k, backend="torch").cpu(), top_k_top_p(logits, k))
    here, there = select(logits, 50), select(logits.cuda(), 50, backend="torch")
    assert there.indices.cpu().equal(here.indices) and there.count.cpu().equal(here.count)
    torch.testing.assert_close(there.probs.cpu(), here.probs)
    for temperature in (0.0, 0.7):
        seeds = torch.arange(39)
        tokens = sample(logits.cuda(), 50, temperature=temperature, seeds=seeds.cuda(), backend="torch")
        assert tokens.cpu().equal(sample(logits, 50, temperature=temperature, seeds=seeds))
    for here, there in zip(truncation(logits, 50), truncation(logits.cuda(), 50, backend="torch")):
        torch.testing.assert_close(there.cpu(), here, equal_nan=True)


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_no_synchronisation(no_synchronisation, by):
    logits = torch.randn(5, 3001, device="cuda")
    k, p = torch.tensor([1, 0, -7, 9999, 50], device="cuda"), torch.full((5,), 0.9, device="cuda")
    heat, seeds, out = p * 2, k * 3, torch.empty_like(logits)
    processor = QritaProcessor(50, 0.9, temperature=0.8, backend=by)
    no_synchronisation()
    for limits in ((50, None), (None, 0.9), (50, 0.9), (k, None), (None, p), (k, p), (None, None)):
        for order in ("k_then_p", "joint"):
            top_k_top_p(logits, *limits, order=order, backend=by)
            top_k_top_p(logits, *limits, order=order, out=out, backend=by)
            truncation(logits, *limits, order=order, backend=by)
        sample(logits, *limits, temperature=heat, seeds=seeds, backend=by)
    sample(logits, backend=by)
    top_k_top_p(logits, 50, ties="all", backend=by)
    select(logits, 50, 0.9, backend=by)
    select(logits, k, p, max_candidates=64, backend=by)
    processor(None, logits)


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_graph_replay(by):
    logits, out = torch.randn(7, 5003, device="cuda"), torch.empty(7, 5003, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        top_k_top_p(logits, 50, 0.9, out=out, backend=by)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        top_k_top_p(logits, 50, 0.9, out=out, backend=by)
    for _ in range(3):
        logits.normal_()
        graph.replay()
        assert same_bits(out.cpu(), top_k_top_p(logits, 50, 0.9, backend=by).cpu())


def test_contents_of_tensors_are_taken_as_they_come():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]], device="cuda").expand(4, 4)
    k = torch.tensor([-7, 0, 2, 10**12], device="cuda")
    assert (top_k_top_p(logits, k, backend="torch") > -math.inf).sum(-1).tolist() == [4, 4, 2, 4]
    p = torch.tensor([-1.0, 2.0, math.nan, 0.5], device="cuda")
    assert (top_k_top_p(logits, p=p, backend="torch") > -math.inf).sum(-1).tolist() == [1, 4, 4, 1]
    heat = torch.tensor([-1.0, math.inf, math.nan, 0.0], device="cuda")
    assert sample(logits, temperature=heat, backend="torch").tolist() == [0] * 4
    with pytest.raises(ValueError, match="k must be on cuda"):
        top_k_top_p(logits, k.cpu(), backend="torch")


def test_a_row_has_the_same_bits_wherever_it_stands():
    row = torch.randn(4099, device="cuda").mul(64).round() / 64
    for limits in ({"k": 7}, {"p": 0.7}, {"k": 300, "p": 0.9}):
        alone = top_k_top_p(row, **limits, backend="torch").cpu()
        for batch, place in ((7, 6), (257, 256), (2049, 1000)):
            logits = torch.randn(batch, 4099, device="cuda")
            logits[place] = row
            assert same_bits(top_k_top_p(logits, **limits, backend="torch")[place].cpu(), alone)
            assert same_bits(top_k_top_p(logits.t().contiguous().t(), **limits, backend="torch")[place].cpu(), alone)


def test_working_memory_of_a_large_batch():
    logits = torch.randn(1024, 128_256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    top_k_top_p(logits, p=0.9, out=logits, backend="torch")
    assert torch.cuda.max_memory_allocated() - before < 6 * 2**30


def test_in_place_and_overlap_on_the_device():
    buffer = torch.randn(3, 16, device="cuda")
    want = top_k_top_p(buffer[:, :8].clone(), 2, backend="torch")
    with pytest.raises(ValueError, match="partly overlaps"):
        top_k_top_p(buffer[:, :8], 2, out=buffer[:, 1:9], backend="torch")
    top_k_top_p(buffer[:, :8], 2, out=buffer[:, 8:], backend="torch")
    assert same_bits(buffer[:, 8:].cpu(), want.cpu())


def test_the_report_names_the_card():
    from qp_kernels import report

    rows = report().as_dict()
    assert torch.cuda.get_device_name() in rows["GPU"] and rows["back-end"].split(":")[0] in ("torch", "triton")
    assert backend.resolve("cuda", "torch").name == "torch"
