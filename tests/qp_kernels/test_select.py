"""`select` lists exactly what `top_k_top_p` keeps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import masses, row_order
from places import select, top_k_top_p
from rows_of import batches, ks, orders, ps, random_rows, same_bits

from qp_kernels.qrita import Candidates

pytestmark = pytest.mark.usefixtures("place")


def check(logits, found, kept_mask, width):
    assert found.indices.shape == (len(logits), width) and found.indices.dtype == torch.int32
    assert found.logits.dtype == found.probs.dtype == torch.float32 and found.count.dtype == torch.int32
    for i, row in enumerate(logits):
        kept = torch.nonzero(kept_mask[i])[:, 0]
        order = [j for j in row_order(row.double().numpy()) if kept_mask[i, j]]
        assert int(found.count[i]) == len(kept) == len(order)
        listed = min(width, len(order))
        assert found.indices[i, :listed].tolist() == order[:listed]
        assert (found.indices[i, listed:] == -1).all()
        assert (found.logits[i, listed:] == 0).all() and (found.probs[i, listed:] == 0).all()
        assert same_bits(found.logits[i, :listed], row[order[:listed]].float())
        want = masses(row.double().numpy(), np.array(order, dtype=np.int64))[:listed]
        np.testing.assert_allclose(found.probs[i, :listed].double(), want, rtol=1e-6, atol=1e-45)


@given(batches(), ks, ps, orders, st.one_of(st.none(), st.integers(1, 400)))
def test_same_set_as_the_mask(logits, k, p, order, width):
    if k in (None, 0, -1) and p in (None, 1):
        with pytest.raises(ValueError, match="needs k or p"):
            select(logits, k, p)
        return
    kept = top_k_top_p(logits, k, p, order=order) > -math.inf
    found = select(logits, k, p, order=order, max_candidates=width)
    if width is None:
        on = k is not None and k > 0
        width = min(k, logits.shape[1]) if on else int(found.count.max())
    check(logits, found, kept, width)


def test_width_of_the_result():
    logits = random_rows(0, 13, 64)
    assert select(logits, 5).indices.shape == (13, 5)
    assert select(logits, 5, 0.5).indices.shape == (13, 5)
    assert select(logits, 1000).indices.shape == (13, 64)
    assert select(logits, 5, max_candidates=3).indices.shape == (13, 3)
    assert select(logits, 5, max_candidates=100).indices.shape == (13, 100)
    by_tensor = select(logits, torch.full((13,), 5))
    assert by_tensor.indices.shape == (13, 5)
    by_mass = select(logits, p=0.9)
    assert by_mass.indices.shape == (13, int(by_mass.count.max()))


def test_a_narrow_list_keeps_the_true_size_and_mass():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    found = select(logits, p=0.85, max_candidates=2)
    assert found.indices.tolist() == [[1, 3]] and found.count.tolist() == [3]
    torch.testing.assert_close(found.probs, torch.tensor([[4 / 9, 3 / 9]]))
    assert select(logits[0], p=0.85, max_candidates=2).indices.tolist() == [1, 3]


def test_one_row_and_no_row():
    row = random_rows(0, 1, 33)[0]
    found = select(row, 4)
    assert found.indices.shape == (4,) and found.count.shape == ()
    assert all(same_bits(a, b[0]) for a, b in zip(found, select(row[None], 4)))
    empty = select(torch.empty(0, 9), p=0.5)
    assert empty.indices.shape == (0, 0) and empty.count.shape == (0,)
    assert select(torch.empty(0, 9), 3).indices.shape == (0, 3)


def test_nothing_eligible():
    found = select(torch.full((2, 5), -math.inf), 3)
    assert found.count.tolist() == [0, 0] and (found.indices == -1).all() and (found.probs == 0).all()
    assert select(torch.full((2, 5), math.nan), p=0.5).indices.shape == (2, 0)


def test_infinite_logits_share():
    found = select(torch.tensor([1.0, math.inf, 0.0, math.inf]), 3)
    assert found.indices.tolist() == [1, 3, 0] and found.probs.tolist() == [0.5, 0.5, 0.0]


def test_ties_come_by_index_also_at_signed_zero():
    assert select(torch.tensor([-0.0, -1.0, 0.0, -0.0]), 3).indices.tolist() == [0, 2, 3]


@pytest.mark.parametrize(("k", "p"), [(None, None), (0, None), (-1, 1.0), (np.int64(0), 1)])
def test_both_off(k, p):
    with pytest.raises(ValueError, match="needs k or p"):
        select(torch.zeros(2, 3), k, p)


def test_off_in_a_tensor_is_a_row_that_keeps_everything():
    found = select(torch.tensor([[1.0, 2.0, 3.0]] * 2), torch.tensor([0, 1]))
    assert found.count.tolist() == [3, 1] and found.indices.tolist() == [[2, 1, 0], [2, -1, -1]]


@pytest.mark.big
def test_probabilities_sum_to_one_at_a_real_size():
    found = select(torch.randn(2, 50_257, generator=torch.Generator().manual_seed(0)), p=0.99)
    assert isinstance(found, Candidates)
    torch.testing.assert_close(found.probs.double().sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-5)
    assert same_bits(found.probs, found.probs.sort(-1, descending=True).values)


def test_as_many_candidates_as_k_asks_for():
    row = torch.full((600,), -1.5)
    row[77], row[300] = -1.4, -1.4
    found = select(row, 2)
    assert found.indices.tolist() == [77, 300] and found.probs.tolist() == [0.5, 0.5]
