"""The rivals against their formulas and the oracle: what each promises, and where it keeps something else."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import check_kept, row_order
from rows_of import batches, random_rows, same_bits, tensor

from qp_kernels.qrita import top_k_top_p
from qp_kernels.qrita.rivals import (
    dual_pivot_sample,
    full_sort,
    min_p,
    min_p_threshold,
    rtop_k,
    top_n_sigma,
    top_n_sigma_threshold,
    torch_topk,
)


@given(batches(), st.sampled_from([0.0, 1e-9, 0.05, 0.1, 0.5, 1.0]))
def test_min_p(logits, share):
    kept = min_p(logits, share)
    assert kept.dtype == torch.bool and kept.shape == logits.shape
    for row, mask in zip(logits.double().numpy(), kept.numpy()):
        eligible = row > -np.inf
        assert not mask[~eligible].any()
        if not eligible.any():
            continue
        top = row[eligible].max()
        cut = top + math.log(share) if share else -math.inf
        near = np.isclose(row, cut, rtol=1e-6, atol=1e-30) & (row != top)  # within the rounding of a float32 cut
        assert (mask == (row >= cut))[eligible & ~near].all()
        assert mask[eligible & (row == top)].all()


@given(batches(), st.sampled_from([0.0, 0.5, 1.0, 2.5]))
def test_top_n_sigma(logits, n):
    kept = top_n_sigma(logits, n)
    for row, mask in zip(logits.double().numpy(), kept.numpy()):
        eligible = row > -np.inf
        assert not mask[~eligible].any()
        if not eligible.any():
            continue
        top, finite = row[eligible].max(), row[np.isfinite(row)]
        cut = top - n * (finite.std() if len(finite) else 0.0)
        near = np.isclose(row, cut, rtol=1e-6, atol=1e-30) if np.isfinite(cut) else row != row
        assert (mask == (row >= cut))[eligible & ~near].all()
        assert mask[eligible & (row == top)].all()


@pytest.mark.parametrize(
    ("rule", "threshold", "a"), [(min_p, min_p_threshold, 0.1), (top_n_sigma, top_n_sigma_threshold, 1.0)]
)
def test_mask_is_the_threshold(rule, threshold, a):
    logits = random_rows(0, 13, 700)
    cut = threshold(logits, a)
    assert cut.shape == (13,) and cut.dtype == torch.float32
    assert rule(logits, a).equal((logits >= cut[:, None]) & (logits > -math.inf))
    assert threshold(logits[0], a).shape == () and rule(logits[0], a).equal(rule(logits, a)[0])
    per_row = torch.full((13,), a)
    assert rule(logits, per_row).equal(rule(logits, float(per_row[0])))
    assert rule(torch.empty(0, 4), a).shape == (0, 4)
    big = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(1))
    assert same_bits(threshold(big, a)[:1], threshold(big[:1], a))


@pytest.mark.parametrize("rule", [min_p, top_n_sigma])
@pytest.mark.parametrize(
    ("a", "error"),
    [
        (-0.1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (True, TypeError),
        ("x", TypeError),
        (None, TypeError),
    ],
)
def test_arguments(rule, a, error):
    with pytest.raises(error):
        rule(torch.zeros(2, 3), a)


def test_min_p_beyond_one():
    with pytest.raises(ValueError, match=r"min_p must be in \[0, 1\], got 1.5"):
        min_p(torch.zeros(2, 3), 1.5)
    with pytest.raises(TypeError, match="float32"):
        top_n_sigma(torch.zeros(2, 3).double(), 1.0)


def indices(keep):
    return [torch.nonzero(row)[:, 0].tolist() for row in keep]


@given(batches(), st.sampled_from([1, 2, 5, 50, 10**6]))
def test_full_sort_keeps_k_and_all_ties(logits, k):
    for row, kept in zip(logits.double().numpy(), indices(full_sort(logits, k))):
        check_kept(row, kept, k=k, ties="all")


@given(batches(), st.sampled_from([1, 2, 5, 50, 10**6]))
def test_topk_keeps_k_values(logits, k):
    for row, kept in zip(logits.double().numpy(), indices(torch_topk(logits, k))):
        order = row_order(row)
        assert sorted(row[kept] + 0.0, reverse=True) == (row[order[: min(k, len(order))]] + 0.0).tolist()


@given(batches(), st.sampled_from([1, 2, 5, 50, 10**6]))
def test_rtop_k_is_exact_without_an_early_stop(logits, k):
    if logits.isposinf().any():
        return  # counts as the largest finite float32
    for row, kept in zip(logits.double().numpy(), indices(rtop_k(logits, k))):
        check_kept(row, kept, k=k)


@given(batches(), st.sampled_from([1, 5, 50]), st.integers(1, 12))
def test_rtop_k_stopped_early_keeps_k(logits, k, halvings):
    keep = rtop_k(logits, k, max_iter=halvings)
    eligible = (logits > -math.inf).sum(-1)
    assert keep.sum(-1).le(eligible.clamp(max=k)).all() and not (keep & ~(logits > -math.inf)).any()
    full = eligible == logits.shape[-1]
    assert keep.sum(-1)[full].eq(min(k, logits.shape[-1])).all()


def test_rtop_k_stopped_early_loses_some_of_the_largest():
    row = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    exact = rtop_k(row, 50)
    recall = [float((rtop_k(row, 50, max_iter=steps) & exact).sum() / 50) for steps in (2, 4, 6, 20)]
    assert recall == sorted(recall) and recall[0] < 0.6 and recall[-1] == 1.0


def test_full_sort_nucleus():
    logits = torch.randn(20, 997, generator=torch.Generator().manual_seed(2)) * 3
    for k, p in ((None, 0.5), (None, 0.97), (40, 0.9), (None, 0.0)):
        for row, kept in zip(logits.double().numpy(), indices(full_sort(logits, k, p))):
            check_kept(row, kept, k=k, p=p)  # no ties, and few enough entries for fp32
    per_row = torch.full((20,), 0.5)
    assert full_sort(logits, torch.full((20,), 40), per_row).equal(full_sort(logits, 40, 0.5))


def test_where_they_keep_another_set():
    tied = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 0.0])
    ours = indices(top_k_top_p(tied[None], 3).isfinite())
    assert ours == [[0, 1, 2]]
    assert indices(full_sort(tied[None], 3)) == [[0, 1, 2, 3, 4]]
    assert len(indices(torch_topk(tied[None], 3))[0]) == 3
    # Four equal entries: a sort in ascending order keeps the two that it puts last.
    equal = torch.zeros(1, 4)
    assert indices(top_k_top_p(equal, p=0.5).isfinite()) == [[0, 1]] != indices(full_sort(equal, p=0.5))
    assert full_sort(equal, p=0.5).sum() == 2


def truth(row, k, p):
    """Probabilities of k and p over the original distribution, every tie in: float64 [V]."""
    return top_k_top_p(row, k, p, order="joint", ties="all").double().softmax(-1).numpy()


@pytest.mark.parametrize(("k", "p"), [(None, None), (3, None), (None, 0.7), (5, 0.8), (None, 0.0), (1, None)])
def test_dual_pivot_draws_from_the_set(k, p):
    row = tensor([0.0, 2.0, 1.0, 1.0, 2.5, -1.0, -math.inf, math.nan, 1.0])
    drawn = dual_pivot_sample(row.expand(40_000, -1), k, p, generator=torch.Generator().manual_seed(1))
    expected = truth(row, k, p)
    counts = np.bincount(drawn.token.numpy(), minlength=len(row))
    assert not counts[expected == 0].any()
    error = np.sqrt(expected * (1 - expected) / 40_000)
    assert (np.abs(counts / 40_000 - expected) <= 5 * error + 1e-12).all()
    assert drawn.rounds.min() >= 1


def test_dual_pivot_takes_a_varying_number_of_rounds():
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(3)).expand(500, -1)
    rounds = dual_pivot_sample(logits, k=20, generator=torch.Generator().manual_seed(4)).rounds
    assert rounds.min() < rounds.max() <= 40
    assert (dual_pivot_sample(logits, generator=torch.Generator().manual_seed(4)).rounds == 1).all()


@given(batches(), st.sampled_from([None, 1, 5]), st.sampled_from([None, 0.0, 0.6]))
def test_dual_pivot_on_every_family(logits, k, p):
    drawn = dual_pivot_sample(logits, k, p, generator=torch.Generator().manual_seed(0))
    for row, token in zip(logits, drawn.token.tolist()):
        assert (token == -1) == (not (row > -math.inf).any())
        assert token == -1 or row[token] > -math.inf


def test_rivals_take_one_row_and_no_row():
    row = torch.randn(300, generator=torch.Generator().manual_seed(6))
    for rival in (full_sort, torch_topk, rtop_k):
        assert rival(row, 7).equal(rival(row[None], 7)[0]) and rival(row, 7).sum() == 7
        assert rival(torch.empty(0, 5), 2).shape == (0, 5)
    drawn = dual_pivot_sample(row, 7)
    assert drawn.token.shape == drawn.rounds.shape == () and bool(torch_topk(row, 7)[drawn.token])
    assert dual_pivot_sample(torch.empty(0, 5), 2).token.shape == (0,)


@pytest.mark.parametrize("rival", [torch_topk, rtop_k])
def test_k_of_rivals(rival):
    for k, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="k must be"):
            rival(torch.zeros(2, 3), k)
    with pytest.raises(ValueError, match="max_iter must be >= 1"):
        rtop_k(torch.zeros(2, 3), 1, max_iter=0)
