"""`truncation` against its definition in numpy, entry by entry."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import masses
from places import truncation
from rows_of import FAMILIES, batches, random_rows, same_bits, tensor

from qp_kernels.qrita import TruncationStats
from qp_kernels.qrita.threshold import CANDIDATE_BUFFER

pytestmark = pytest.mark.usefixtures("place")

INF = math.inf


def quantile(probability):
    return -INF if probability <= 0 else INF if probability >= 1 else NormalDist().inv_cdf(probability)


def sample_of(row):
    v = len(row)
    if v <= 8192:
        return row
    return np.concatenate([row[r * (v // 64) : r * (v // 64) + 128] for r in range(64)])


def expected(row, k, p, margin, rule, order):
    """mean, std, delta, threshold in float64."""
    v, values = len(row), sample_of(row)
    values = values[np.isfinite(values)]
    mean, std = (values.mean(), values.std()) if len(values) else (math.nan, math.nan)
    delta_k = -INF if k is None else quantile(1 - k / v)
    delta_p = -INF if p in (None, 1.0) else np.minimum(std - quantile(p), quantile(1 - 256 / v))
    delta = np.maximum(delta_k, delta_p) if order == "joint" else delta_k if k is not None else delta_p
    if v <= 512 or not std > 0 or delta == -INF:
        return mean, std, delta, -INF
    if rule == "sigma":
        return mean, std, delta, mean + delta * (1 - margin * np.sign(delta)) * std
    return mean, std, delta, mean + delta * std - margin * abs(mean + delta * std)


@pytest.mark.parametrize("family", FAMILIES, ids=[family.__name__ for family in FAMILIES])
@pytest.mark.parametrize("vocab", [300, 5000, 20_011])
def test_definition(family, vocab):
    rng = np.random.default_rng(vocab)
    logits = tensor(np.stack([np.asarray(family(rng, vocab), np.float32) for _ in range(2)]))
    for k, p in ((None, None), (50, None), (vocab - 1, None), (None, 0.9), (None, 0.0), (200, 0.5)):
        for rule, margin, order in (("sigma", 0.2, "k_then_p"), ("paper", 0.3, "joint"), ("paper", 0.0, "k_then_p")):
            stats = truncation(logits, k, p, margin=margin, rule=rule, order=order)
            for i, row in enumerate(logits.numpy()):
                mean, std, delta, cut = expected(row.astype(np.float64), k, p, margin, rule, order)
                got = TruncationStats(*(field[i] for field in stats))
                scale = 1e-6 * (abs(mean) + std) if std > 0 else 1e-6
                for field, want, atol in (
                    (got.mean, mean, scale),
                    (got.std, std, scale),
                    (got.delta, delta, 1e-6),
                    (got.threshold, cut, scale),
                ):
                    with np.errstate(over="ignore"):
                        np.testing.assert_allclose(field, np.float32(want), rtol=3e-6, atol=max(atol, 2e-45))
                check_what_is_above(row, got, k, p, order)


def check_what_is_above(row, stats, k, p, order):
    cut = np.float32(stats.threshold)
    above = row >= cut
    assert int(stats.kept) == above.sum()
    eligible = np.flatnonzero(row > -INF)
    ranked = eligible[np.argsort(-row[eligible], kind="stable")]
    mass = float(masses(row, ranked)[above[ranked]].sum()) if len(ranked) else 0.0
    assert float(stats.mass) == pytest.approx(mass, abs=2e-6)
    enough_k, enough_p = k is not None and above.sum() >= k, p is not None and mass >= p
    want = enough_k or (enough_p and (k is None or order == "joint")) or (k is None and p is None)
    if p is None or abs(mass - p) > 1e-5:
        assert bool(stats.hit) == want
    assert bool(stats.overflow) == (above.sum() > CANDIDATE_BUFFER)


def test_types_and_shapes():
    logits = random_rows(0, 3, 600)
    stats = truncation(logits, 20, 0.9)
    kinds = [torch.float32] * 4 + [torch.int32, torch.float32, torch.bool, torch.bool]
    assert [field.dtype for field in stats] == kinds and all(field.shape == (3,) for field in stats)
    one = truncation(logits[1], 20, 0.9)
    assert all(field.shape == () and same_bits(field, many[1]) for field, many in zip(one, stats))
    assert all(field.shape == (0,) for field in truncation(torch.empty(0, 600), 3))


@given(batches(sizes=(600, 1009), most=4), st.data())
def test_per_row_arguments_equal_one_row_calls(logits, data):
    b = len(logits)
    k = data.draw(st.lists(st.sampled_from([0, 1, 50, 10_000]), min_size=b, max_size=b))
    p = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=b, max_size=b))
    order = data.draw(st.sampled_from(["k_then_p", "joint"]))
    stats = truncation(logits, torch.tensor(k), torch.tensor(p), order=order)
    for i in range(b):
        one = truncation(logits[i], k[i], p[i], order=order)
        assert all(same_bits(field[i], alone) for field, alone in zip(stats, one))


@pytest.mark.big
def test_equal_bits_wherever_the_row_stands():
    row = torch.randn(9001, generator=torch.Generator().manual_seed(5))
    alone = truncation(row, 50, 0.9)
    for batch, place in ((2, 1), (33, 7), (200, 199)):
        logits = torch.randn(batch, 9001)
        logits[place] = row
        for view in (logits, logits.t().contiguous().t()):
            assert all(same_bits(field[place], one) for field, one in zip(truncation(view, 50, 0.9), alone))


def test_sigma_rule_follows_a_shift_and_the_paper_rule_does_not():
    row = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for rule, moves in (("sigma", False), ("paper", True)):
        kept = [int(truncation(row + shift, 50, rule=rule).kept) for shift in (0.0, -304.0)]
        assert (kept[0] != kept[1]) == moves


def test_margin_widens():
    row = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for limits in ({"k": 50}, {"k": 3000}, {"p": 0.9}):
        kept = [int(truncation(row, **limits, margin=margin).kept) for margin in (0.0, 0.2, 0.5)]
        assert kept == sorted(kept) and kept[0] < kept[2]


def test_overflow():
    row = torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    assert CANDIDATE_BUFFER == 16_384
    assert not truncation(row, 50).overflow and truncation(row, 39_000).overflow and truncation(row).overflow


def test_threshold_is_infinite_where_nothing_is_truncated():
    rows = torch.stack([torch.full((600,), 2.0), torch.full((600,), math.nan), torch.full((600,), -INF)])
    stats = truncation(rows, 5)
    assert (stats.threshold == -INF).all()
    assert stats.kept.tolist() == [600, 0, 600] and stats.mass.tolist() == [1.0, 0.0, 0.0]
    assert (truncation(torch.randn(2, 512), 5).threshold == -INF).all()
    assert (truncation(torch.randn(2, 513), 5).threshold > -INF).all()
    assert (truncation(torch.randn(2, 600)).threshold == -INF).all() and truncation(torch.randn(2, 600)).hit.all()
