"""What is said of an index is what can be counted by hand."""

import dataclasses

import pytest
import torch

from activations.index_quality import kl_of, measured, spread_queries
from activations.synthetic import index
from qp_kernels.pivot import dense_topk


@pytest.fixture
def capture():
    """24 queries of the last tokens of 30, the first of which see few keys, with a mass of their own."""
    made = index(24, 30, 2, 8, smoothness=0.5, seed=1)
    mass = torch.rand(24, 30, generator=torch.Generator().manual_seed(2)) ** 4
    mass = mass.masked_fill(torch.arange(30) >= made.hi[:, None], 0)
    return dataclasses.replace(made, mass=mass / mass.sum(1, keepdim=True), meta={**made.meta, "layer": 3})


def test_recall_and_mass_are_those_of_sets(capture):
    topk, found = 9, measured(capture, 9, 20, 4)
    dense = [set(row[row >= 0].tolist()) for row in dense_topk(capture.q, capture.k, capture.w, topk)]
    recalls, kept, best = [], [], []
    for row, keys in enumerate(dense):
        n = min(topk, int(capture.hi[row]))
        true = set(capture.mass[row].topk(n).indices.tolist())
        assert len(keys) == n
        recalls.append(len(keys & true) / n)
        kept.append(capture.mass[row, list(keys)].sum().item())
        best.append(capture.mass[row, list(true)].sum().item())
    assert int(capture.hi[0]) < topk < int(capture.hi[-1]) and found["layer"] == 3
    assert found["recall_attention"] == pytest.approx(sum(recalls) / 24)
    assert found["mass_dense"] == pytest.approx(sum(kept) / 24)
    assert found["mass_best"] == pytest.approx(sum(best) / 24)
    shared = [len(a & b) / max(len(a), len(b)) for a, b in zip(dense, dense[1:])]
    assert found["adjacent_overlap"] == pytest.approx(sum(shared) / 23)
    unions = [len(set().union(*dense[g : g + 4])) / (sum(map(len, dense[g : g + 4])) / 4) for g in range(0, 24, 4)]
    assert found["union_over_k"] == pytest.approx(sum(unions) / 6)
    assert found["recall_reuse"] < found["recall_refine"] <= 1


def test_the_divergence_by_chunks(capture, monkeypatch):
    q, k, w = capture.q.double(), capture.k.double(), capture.w.double()
    scores = torch.einsum("th,thn->tn", w, torch.einsum("thd,nd->thn", q, k).relu())
    total = 0.0
    for row, end in enumerate(capture.hi.tolist()):
        p, log_q = capture.mass[row, :end].double(), scores[row, :end].log_softmax(0)
        total += float((p * (p.log() - log_q)).nan_to_num().sum())
    assert kl_of(capture) == pytest.approx(total / 24, rel=1e-5)
    monkeypatch.setattr("activations.index_quality._SCORE_BYTES", 4 * 2 * 30 * 5)
    assert kl_of(capture) == pytest.approx(total / 24, rel=1e-5)


def test_without_mass_nothing_can_be_said(capture):
    with pytest.raises(ValueError, match="the capture has no mass of attention"):
        measured(dataclasses.replace(capture, mass=None), 5, 12, 4)


@pytest.mark.parametrize(("tokens", "count"), [(8192, 512), (100, 64), (20, 512), (5, 16), (1, 16), (2, 1)])
def test_queries_are_runs_of_neighbours_in_the_second_half(tokens, count):
    found = spread_queries(tokens, count)
    assert found.equal(found.unique()) and found[-1] == tokens - 1 and found[0] >= tokens // 2 - 1
    if tokens == 8192:
        assert len(found) == 512 and found[:16].equal(torch.arange(4096, 4112)) and found[16] > 4112 + 16
