"""The order of every query's keys: at every k it holds what `dense_topk` selects."""

import pytest
import torch
from places import dense_topk, rank_keys

from activations import synthetic
from qp_kernels.pivot.ranking import NEVER

pytestmark = pytest.mark.usefixtures("place")


def selection(ranking, topk):
    """[T, topk] as `dense_topk` gives it."""
    out = torch.full((len(ranking.rank), topk), -1, dtype=torch.int32)
    for row, rank in enumerate(ranking.rank):
        found = (rank < topk).nonzero().flatten()
        out[row, : len(found)] = found.int()
    return out


@pytest.mark.parametrize("options", [{}, {"zeros": 0.6}, {"needles": 3, "topics": 3}])
def test_the_ranks_below_k_are_the_dense_selection(options):
    one = synthetic.index(12, 90, 3, 8, seed=4, integers=True, **options)
    lo, hi = one.lo.clone(), one.hi.clone()
    lo[5:], hi[3] = 40, 0
    ranking = rank_keys(one.q, one.k, one.w, lo=lo, hi=hi)
    for topk in (1, 2, 7, 33, 90, 100):
        expected = dense_topk(one.q, one.k, one.w, topk, lo=lo, hi=hi)
        assert selection(ranking, topk).equal(expected)
    assert ranking.count.tolist() == (hi - lo).clamp(min=0).tolist()
    assert int((ranking.rank != NEVER).sum()) == int(ranking.count.sum())


def test_equal_tells_where_a_cut_goes_through_a_tie():
    q, w = torch.ones(1, 1, 1), torch.ones(1, 1)
    ranking = rank_keys(q, torch.tensor([[2.0], [3.0], [2.0], [-1.0], [-5.0]]), w)
    assert ranking.rank.tolist() == [[1, 0, 2, 3, 4]]
    assert ranking.equal.tolist() == [[False, True, False, True, False]]  # relu makes zeros of both


def test_nan_is_never_ranked_and_negative_weights_are():
    q, k = torch.ones(2, 1, 1), torch.tensor([[1.0], [torch.nan], [2.0]])
    ranking = rank_keys(q, k, torch.tensor([[1.0], [-1.0]]), hi=torch.tensor([3, 3]))
    assert ranking.rank.tolist() == [[1, NEVER, 0], [0, NEVER, 1]] and ranking.count.tolist() == [2, 2]
    q[0] = torch.nan
    assert rank_keys(q, k, torch.ones(2, 1)).count.tolist() == [0, 2]
