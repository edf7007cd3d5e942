"""Moments and quantile pairs against scipy-free formulas and rows whose answer is known."""

import math

import numpy as np
import pytest
import torch

from qp_kernels.metrics import moments, quantile_pairs


def test_moments_of_a_known_row():
    m = moments(torch.tensor([0.0, 0.0, 0.0, 4.0]))
    assert m.mean == 1.0 and m.std == pytest.approx(math.sqrt(3))
    assert m.skew == pytest.approx(2 / math.sqrt(3)) and m.excess_kurtosis == pytest.approx(7 / 3 - 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_moments_against_numpy(dtype):
    row = (torch.randn(4001, generator=torch.Generator().manual_seed(2)) ** 3 + 7).to(dtype)
    x = row.double().numpy()
    z = (x - x.mean()) / x.std()
    np.testing.assert_allclose(moments(row), [x.mean(), x.std(), (z**3).mean(), (z**4).mean() - 3], rtol=1e-9)


def test_moments_leave_out_what_is_not_finite():
    clean = torch.tensor([1.0, 2.0, 4.0])
    assert moments(torch.cat([clean, torch.tensor([math.inf, -math.inf, math.nan])])) == moments(clean)


def test_moments_of_flat_and_empty_rows():
    assert moments(torch.full((5,), 3.0)) == (3.0, 0.0, 0.0, 0.0)
    assert all(math.isnan(value) for value in moments(torch.tensor([math.nan])))


@pytest.mark.parametrize("n", [1, 2, 3, 100, 4001])
def test_quantile_pairs(n):
    row = torch.sort(torch.randn(n), descending=True).values
    ranks, theory, values = quantile_pairs(row)
    assert ranks[0] == 0 and ranks[-1] == n - 1 and (ranks.diff() > 0).all() and len(ranks) <= 160
    assert torch.equal(values, row[ranks].double())
    np.testing.assert_allclose(torch.special.ndtr(theory), 1 - (ranks.double() + 0.5) / n, rtol=1e-12)
    assert len(quantile_pairs(row[:0])[0]) == 0


def test_a_normal_row_lies_on_the_diagonal():
    ideal = -torch.special.ndtri((torch.arange(2001, dtype=torch.float64) + 0.5) / 2001)
    _, theory, values = quantile_pairs(ideal)
    torch.testing.assert_close(theory, values)
