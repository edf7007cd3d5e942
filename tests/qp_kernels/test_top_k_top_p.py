"""`top_k_top_p` against the worked cases and against a float64 sort."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import check_kept, row_order
from places import top_k_top_p
from rows_of import DTYPES, FAMILIES, batches, ks, orders, ps, random_rows, same_bits, tensor

from qp_kernels.qrita import tiling
from qp_kernels.qrita.reference import HEAD

pytestmark = pytest.mark.usefixtures("place")

CASES = json.loads((Path(__file__).parents[1] / "cases" / "top_k_top_p.json").read_text("utf-8"))


def kept_sets(result):
    """Ascending indices of each row that are not dropped; dropped entries must be -inf exactly."""
    dropped = result == -math.inf
    assert not result.isnan().any()
    return [torch.nonzero(~row)[:, 0].tolist() for row in dropped]


def check(logits, result, k=None, p=None, **options):
    assert result.shape == logits.shape and result.dtype == logits.dtype
    for i, kept in enumerate(kept_sets(result)):
        limits = {"k": k[i] if isinstance(k, list) else k, "p": p[i] if isinstance(p, list) else p}
        check_kept(logits[i].double().numpy(), kept, **limits, **options)
        assert same_bits(result[i, kept], logits[i, kept])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@pytest.mark.parametrize("one_row", [False, True])
def test_worked_case(case, one_row):
    logits = torch.tensor([[float(x) for x in row] for row in case["logits"]])
    order = case.get("order", "k_then_p")
    if one_row:
        results = [top_k_top_p(row, case["k"], case["p"], order=order)[None] for row in logits]
    else:
        results = [top_k_top_p(logits, case["k"], case["p"], order=order)]
    assert [kept for result in results for kept in kept_sets(result)] == case["kept"]


@given(batches(), ks, ps, orders, st.sampled_from(["index", "all"]))
def test_contract(logits, k, p, order, ties):
    before = logits.clone()
    result = top_k_top_p(logits, k, p, order=order, ties=ties)
    check(logits, result, k, p, order=order, ties=ties)
    assert same_bits(logits, before)


@given(batches(most=6), st.data())
def test_per_row_tensors(logits, data):
    b = len(logits)
    k = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2, 7, 5000]), min_size=b, max_size=b))
    p = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.875, 1.0]), min_size=b, max_size=b))
    order = data.draw(orders)
    k_dtype = data.draw(st.sampled_from([torch.int64, torch.int32, torch.int16]))
    p_dtype = data.draw(st.sampled_from([torch.float64, *DTYPES]))
    result = top_k_top_p(logits, torch.tensor(k, dtype=k_dtype), torch.tensor(p, dtype=p_dtype), order=order)
    check(logits, result, k, p, order=order)
    for i in range(b):  # the same as one row at a time, with numbers
        assert same_bits(result[i], top_k_top_p(logits[i], k[i], p[i], order=order))


@pytest.mark.big
@pytest.mark.parametrize("family", FAMILIES, ids=[family.__name__ for family in FAMILIES])
def test_families_at_a_real_size(family):
    """Longer than the first look at the sorted head, and not a multiple of any vector width."""
    rng = np.random.default_rng(7)
    logits = tensor(np.stack([np.asarray(family(rng, 9_973), np.float32) for _ in range(2)]))
    for limits in ({"k": 50}, {"k": 4096}, {"p": 0.9}, {"p": 0.99999}, {"k": 50, "p": 0.9}, {"k": 6000, "p": 0.999}):
        for order in ("k_then_p", "joint"):
            check(logits, top_k_top_p(logits, **limits, order=order), **limits, order=order)


@pytest.mark.big
def test_vocabulary_of_a_model():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 262_144, generator=generator) * torch.tensor([[4.0], [0.02]])
    logits[1] = (logits[1] * 16).round() / 16  # a few values, thousands of ties each
    for limits in ({"k": 50}, {"p": 0.9}, {"k": 5000, "p": 0.9}):
        check(logits, top_k_top_p(logits, **limits), **limits)


@pytest.mark.big
@pytest.mark.parametrize("kept", [1, HEAD - 1, HEAD, HEAD + 1, 2 * HEAD])
def test_ties_go_on_beyond_the_sorted_head(kept):
    """A flat row whose nucleus ends at, or beside, the end of what is sorted first."""
    row = torch.zeros(1, 2 * HEAD)
    assert kept_sets(top_k_top_p(row, p=kept / (2 * HEAD))) == [list(range(kept))]
    assert kept_sets(top_k_top_p(row, kept)) == [list(range(kept))]


@pytest.mark.big
def test_mass_does_not_drift_where_a_running_fp32_sum_would():
    """A long flat tail: fp32 sums in sequence are off by 1e-3 here, the contract allows 1e-6."""
    row = torch.full((1, 200_000), -12.0)
    row[0, :10] = 1.0
    for p in (0.5, 0.95, 0.99, 0.9999):
        check(row, top_k_top_p(row, p=p), p=p)


@pytest.mark.big
@pytest.mark.parametrize("batch", [0, 1, 131, 133, 1025])
def test_batches(batch):
    logits = random_rows(batch, batch, 37) if batch else torch.empty(0, 37)
    check(logits, top_k_top_p(logits, 5, 0.75), 5, 0.75)


@pytest.mark.plain
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [200, 3 * 1009])
def test_chunks_and_tiles_do_not_show(dtype, tile, monkeypatch):
    logits = random_rows(5, 26, 1009).to(dtype)
    calls = ({"k": 20}, {"p": 0.9}, {"k": 20, "p": 0.9}, {"p": 0.9, "order": "joint"}, {"k": 9, "ties": "all"})
    whole = [top_k_top_p(logits, **call) for call in calls]
    monkeypatch.setitem(tiling.TILE, "cpu", tile)
    assert all(same_bits(top_k_top_p(logits, **call), one) for call, one in zip(calls, whole))


def layouts(logits):
    """Views with the values of logits [B, V] and other strides."""
    b, v = logits.shape
    yield logits.t().contiguous().t()
    yield torch.cat([logits, logits], dim=1)[:, :v]
    wide = torch.full((b, 2 * v + 3), math.nan)
    wide[:, 1 : 2 * v + 1 : 2] = logits
    yield wide[:, 1 : 2 * v + 1 : 2]
    tall = torch.full((3 * b, v), math.nan)
    tall[::3] = logits
    yield tall[::3]
    yield torch.full((b, v + 1), math.nan)[:, 1:].copy_(logits)


def test_strides_do_not_show():
    logits = random_rows(1, 13, 101)
    want = top_k_top_p(logits, 17, 0.8)
    for view in layouts(logits):
        assert same_bits(top_k_top_p(view, 17, 0.8), want)
        out = torch.full_like(view, math.nan)
        assert same_bits(top_k_top_p(view, 17, 0.8, out=out), want)
        assert top_k_top_p(view, 17, 0.8, out=view) is view and same_bits(view, want)


def test_expanded_input():
    row = random_rows(2, 1, 55)
    want = top_k_top_p(row.repeat(4, 1), 9, 0.6)
    assert same_bits(top_k_top_p(row.expand(4, -1), 9, 0.6), want)
    assert top_k_top_p(row[:, :1].expand(1, 55), 9).isfinite().sum() == 9  # one value, 55 times at one address


@pytest.mark.big
@pytest.mark.parametrize("vocab", [31, 4_099])
def test_a_row_has_the_same_bits_wherever_it_stands(vocab):
    rng = np.random.default_rng(0)
    row = tensor(rng.normal(0, 2, vocab))
    row = (row * 64).round() / 64  # ties
    calls = ({"k": 7}, {"p": 0.7}, {"k": 300, "p": 0.9}, {"k": 40, "p": 0.9, "order": "joint"})
    for call in calls:
        alone = top_k_top_p(row, **call)
        for batch, place in ((1, 0), (7, 6), (64, 33), (257, 0), (257, 256)):
            logits = torch.randn(batch, vocab)
            logits[place] = row
            assert same_bits(top_k_top_p(logits, **call)[place], alone)


@pytest.mark.parametrize("limits", [{}, {"k": 4}, {"p": 0.7}, {"k": 4, "p": 0.7}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_filled_whatever_it_held(limits, dtype):
    logits = random_rows(3, 13, 29).to(dtype)
    want = top_k_top_p(logits, **limits)
    for poison in (math.nan, math.inf, 7.0):
        out = torch.full_like(logits, poison)
        assert top_k_top_p(logits, **limits, out=out) is out and same_bits(out, want)
    copy = logits.clone()
    assert top_k_top_p(copy, **limits, out=copy) is copy and same_bits(copy, want)
    row = logits[0].clone()
    assert top_k_top_p(row, **limits, out=row) is row and same_bits(row, want[0])


def test_both_off_keeps_what_is_eligible():
    logits = torch.tensor([[math.nan, -math.inf, -0.0, math.inf, -3.4e38]])
    want = torch.tensor([[-math.inf, -math.inf, -0.0, math.inf, -3.4e38]])
    for k in (None, 0, -1, 5, 99):
        for p in (None, 1, 1.0):
            assert same_bits(top_k_top_p(logits, k, p), want)
    assert same_bits(top_k_top_p(logits, torch.tensor([0]), torch.tensor([1.0])), want)


def test_ties_all_keeps_every_equal_entry():
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]])
    assert kept_sets(top_k_top_p(logits, 2, ties="all")) == [[0, 1, 2, 4]]
    assert kept_sets(top_k_top_p(logits, p=0.6, ties="all")) == [[0, 1, 2, 4]]
    assert kept_sets(top_k_top_p(logits, 2, 0.3, ties="all")) == [[1]]
    zeros = torch.tensor([[0.0, -0.0, -1.0, 0.0]])
    assert kept_sets(top_k_top_p(zeros, 1, ties="all")) == [[0, 1, 3]]


def test_joint_keeps_the_shorter_prefix():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept_sets(top_k_top_p(logits, 3, 0.65, order="joint")) == [[0, 1]]
    assert kept_sets(top_k_top_p(logits, 1, 0.65, order="joint")) == [[0]]
    assert kept_sets(top_k_top_p(logits, 2, 0.65, order="k_then_p")) == [[0, 1]]
    assert kept_sets(top_k_top_p(logits, 2, 0.55, order="k_then_p")) == [[0]]


def test_infinities_share_the_mass():
    logits = torch.tensor([[math.inf, 5.0, math.inf, math.inf, math.inf]])
    assert kept_sets(top_k_top_p(logits, p=0.5)) == [[0, 2]]
    assert kept_sets(top_k_top_p(logits, 5, 0.51)) == [[0, 2, 3]]


def test_without_ties_it_is_what_a_sort_keeps():
    logits = torch.randperm(5000, generator=torch.Generator().manual_seed(1)).float().view(5, 1000) / 100
    result = top_k_top_p(logits, 30)
    floor = logits.sort(descending=True).values[:, 29:30]
    assert same_bits(result, logits.masked_fill(logits < floor, -math.inf))


def test_gradients_do_not_flow_and_are_not_needed():
    logits = torch.randn(2, 9, requires_grad=True)
    assert not top_k_top_p(logits, 3).requires_grad
    with torch.inference_mode():
        inner = torch.randn(2, 9)
        inside = top_k_top_p(inner, 3, 0.5)
    assert same_bits(top_k_top_p(inner, 3, 0.5), inside.clone())


@pytest.mark.plain
def test_oracle_refuses_wrong_sets():
    row = np.array([2.0, 1.0, 1.0, 0.0])
    check_kept(row, [0, 1], k=2)
    for kept, limits in (([0, 2], {"k": 2}), ([0, 1, 2], {"k": 2}), ([0], {"p": 0.7}), ([0, 1, 2], {"p": 0.6})):
        with pytest.raises(AssertionError):
            check_kept(row, kept, **limits)
    assert row_order(np.array([np.nan, 0.0, -0.0, -np.inf, 1.0])).tolist() == [4, 1, 2]
