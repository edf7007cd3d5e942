"""The traced search ends at the cut of the reference, within its bound, and every step says what is so."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows_of import DTYPES, FAMILIES, SIZES, batches, ks, ps, random_rows, tensor

from qp_kernels.qrita import SearchStep, checks, reference, top_k_top_p, trace_search, truncation
from qp_kernels.qrita.ladder import key_to_logit, sortable_keys

INF = math.inf
WAYS = [(search, space) for search in ("quaternary", "binary") for space in ("value", "bits")]
BOUND = {("quaternary", "bits"): 17, ("binary", "bits"): 33, ("quaternary", "value"): 140, ("binary", "value"): 279}


def is_off(k, p, vocab):
    return (k is None or k in (0, -1) or k >= vocab) and (p is None or p == 1)


def check_answer(row, k, p, search, space):
    steps = trace_search(row, k, p, search=search, space=space)
    cut = reference.find_cuts(row[None], checks.limits(row, k, p))
    if not steps:
        assert int(cut.length) == 0
        return steps
    last = steps[-1].as_logits()
    equal = int((row.float() == last.min_above).sum())
    assert last.stop and last.min_above == float(cut.value) and last.kept == int(cut.length)
    assert last.ties == (equal if int(cut.ties) == len(row) else int(cut.ties))
    return steps


def check_steps(row, steps, k, p, search, space):
    """What a step reports, counted again over the row."""
    pivots = 3 if search == "quaternary" else 1
    for stage in {step.stage for step in steps}:
        mine = [step for step in steps if step.stage == stage]
        assert [step.step for step in mine] == list(range(1, len(mine) + 1)) and len(mine) <= BOUND[search, space]
        assert [step.stop for step in mine] == [False] * (len(mine) - 1) + [True]
    values = row.double().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
    if k is not None and 0 < k < len(row):
        order = torch.argsort(values, descending=True, stable=True)
        in_k = values[order[:k]]
    for step in steps:
        shown = step.as_logits()
        assert len(step.pivots) in (0, pivots) and len(step.counts) == len(step.pivots)
        assert list(step.pivots) == sorted(step.pivots) and all(step.lo <= q <= step.hi for q in step.pivots)
        searched = in_k if step.stage == "p" and k is not None and 0 < k < len(row) else values
        units = torch.from_numpy(sortable_keys(searched.numpy())) if space == "bits" else searched
        assert step.counts == tuple(int((units >= pivot).sum()) for pivot in step.pivots)
        assert step.multiplicity == int((searched == shown.min_above).sum()) or step.stage == "p"
        assert len(step.masses) == (len(step.pivots) if step.stage == "p" else 0)
        assert list(step.masses) == sorted(step.masses, reverse=True) and all(0 <= m <= 1 for m in step.masses)
        assert 0 < step.ties <= step.multiplicity if step.stop else step.ties == step.kept == 0
    reads = np.diff([len(row) * row.element_size()] + [step.bytes_read for step in steps])
    assert all(reads == [step.entries * (4 if step.hit else row.element_size()) for step in steps])


@given(batches(most=1), ks, ps, st.sampled_from(WAYS))
def test_the_answer_is_the_cut(logits, k, p, way):
    if is_off(k, p, logits.shape[-1]):
        return
    check_steps(logits[0], check_answer(logits[0], k, p, *way), k, p, *way)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_families(family, way):
    for vocab in (*SIZES[2:], 4099, 20_000):
        rng = np.random.default_rng(vocab)
        row = tensor(family(rng, vocab))
        for k, p in ((1, None), (vocab // 2, None), (vocab - 1, None), (50, 0.9), (None, 0.5), (None, 0.0)):
            if not is_off(k, p, vocab):
                check_steps(row, check_answer(row, k, p, *way), k, p, *way)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hit_a_miss_and_an_overflow(way, dtype):
    rng = np.random.default_rng(0)
    row = tensor(rng.normal(0, 3, 40_000), dtype)
    short = torch.where(torch.arange(40_000) < 30, row, -INF)
    for case, k, hit in ((row, 50, True), (row, 39_000, False), (short, 50, False)):
        steps = check_answer(case, k, None, *way)
        stats = truncation(case, k)
        assert all(step.hit == hit for step in steps) and hit == bool(stats.hit & ~stats.overflow)
        assert steps[0].entries == (int(stats.kept) if hit else 40_000)
        if hit:
            assert steps[0].as_logits().lo == float(stats.threshold)
    check_answer(row, None, 0.9, *way)
    check_answer(row, 1000, 0.99, *way)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_worst_ranges_stay_within_the_bound(way):
    top = float(np.finfo(np.float32).max)
    rows = [
        [-top, 0.0, 1.4e-45, top],
        [-top, 1.0, np.nextafter(np.float32(1), np.float32(2)), 3.0],
        [0.0, 1.4e-45, top, INF],
        [-INF, INF, INF, -top],
        [np.nan, -0.0, 0.0, -1.4e-45],
    ]
    for row in rows:
        for k in (1, 2, 3):
            row = torch.as_tensor(row, dtype=torch.float32)
            check_steps(row, check_answer(row, k, None, *way), k, None, *way)
        for p in (0.0, 0.4, 0.999, 1 - 1e-16):
            check_answer(row, None, p, *way)
            check_answer(row, 3, p, *way)


def test_bits_need_few_steps_where_values_need_many():
    row = torch.zeros(600)
    row[:3] = torch.tensor([1e-30, 2e-30, 3e38])
    assert len(trace_search(row, 2, space="bits", search="binary")) < 33
    assert len(trace_search(row, 2, space="value", search="binary")) > 200


def test_p_within_k():
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    steps = trace_search(row, 2, 0.5)
    assert [step.stage for step in steps] == ["k"] * (len(steps) - 1) + ["p"]
    assert steps[-1].kept == 1 and steps[-1].counts == (1, 1, 1)
    assert steps[-1].masses == pytest.approx([4 / 7] * 3)


def test_quaternary_halves_the_steps_of_binary():
    row = torch.randn(50_000, generator=torch.Generator().manual_seed(3))
    for space in ("value", "bits"):
        four, two = (len(trace_search(row, 500, search=search, space=space)) for search in ("quaternary", "binary"))
        assert four <= two // 2 + 2


def test_ties_go_by_index():
    row = torch.tensor([1.0, 2.0, 1.0, 1.0, 0.0])
    for search, space in WAYS:
        step = trace_search(row, 3, search=search, space=space)[-1].as_logits()
        assert (step.min_above, step.multiplicity, step.ties, step.kept) == (1.0, 3, 2, 3)
    assert top_k_top_p(row, 3).isfinite().tolist() == [True, True, True, False, False]


def test_keys_order_as_floats_do():
    values = random_rows(4, 26, 1009).flatten()
    values = np.unique(values[~values.isnan()].numpy())
    keys = sortable_keys(values)
    assert (np.diff(keys) > 0).all() and [key_to_logit(key) for key in keys] == values.tolist()
    assert sortable_keys([-0.0]) == sortable_keys([0.0]) == 0
    assert key_to_logit(0x7F800001) == INF


def test_nothing_eligible_has_no_steps():
    assert trace_search(torch.tensor([math.nan, -INF, math.nan]), 2) == []
    assert trace_search(torch.full((600,), -INF), None, 0.5, space="bits") == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: trace_search(torch.zeros(3)), ValueError, "needs k or p, got k=None and p=None"),
        (lambda: trace_search(torch.zeros(3), 0, 1.0), ValueError, "both off"),
        (lambda: trace_search(torch.zeros(3), 3), ValueError, "both off"),
        (lambda: trace_search(torch.zeros(2, 3), 1), ValueError, r"one row \[V\], got shape \[2, 3\]"),
        (lambda: trace_search(torch.zeros(3), 1, search="ternary"), ValueError, "search must be one of"),
        (lambda: trace_search(torch.zeros(3), 1, space="log"), ValueError, "space must be one of"),
        (lambda: trace_search(torch.zeros(3), 1.0), TypeError, "k must be an int"),
        (lambda: trace_search(torch.zeros(3), 1, 1.5), ValueError, "p must be in"),
        (lambda: trace_search([1.0, 2.0], 1), TypeError, "torch.Tensor"),
    ],
)
def test_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_input_is_not_changed_and_tensors_count_as_numbers():
    row = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    before = row.clone()
    steps = trace_search(row, torch.tensor(20), torch.tensor(0.5))
    assert row.equal(before) and steps == trace_search(row, 20, 0.5) and isinstance(steps[0], SearchStep)


def test_a_live_row_is_traced_while_a_slider_moves():
    row = torch.randn(262_144, generator=torch.Generator().manual_seed(1)) * 4.3
    for k, p in ((50, None), (None, 0.9), (1000, 0.9), (200_000, None)):
        best = INF
        for _ in range(5):
            start = time.perf_counter()
            trace_search(row, k, p)
            best = min(best, time.perf_counter() - start)
        assert best < 0.25, (k, p, best)  # about 5 to 30 ms on a quiet core


@pytest.mark.gpu
def test_a_row_on_the_device():
    row = random_rows(2, 1, 4099)[0]
    for search, space in WAYS:
        assert trace_search(row.cuda(), 40, 0.9, search=search, space=space) == trace_search(
            row, 40, 0.9, search=search, space=space
        )
