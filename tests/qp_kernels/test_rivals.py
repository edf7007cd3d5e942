"""min-p and top-n-sigma against their formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows_of import batches, random_rows, same_bits

from qp_kernels.qrita.rivals import min_p, min_p_threshold, top_n_sigma, top_n_sigma_threshold


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
