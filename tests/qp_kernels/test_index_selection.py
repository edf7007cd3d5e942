"""Index selection: the worked cases, and random integers against the definitions in loops."""

import json
import random
from pathlib import Path

import oracle_index
import pytest
import torch
from places import INTERPRETED

from qp_kernels import pivot
from qp_kernels.pivot import api, checks, groups, reference, rivals

CASES = json.loads((Path(__file__).parents[1] / "cases" / "index_selection.json").read_text())
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def tensors(q, k, w, dtype=torch.float32, device="cpu"):
    to = {"dtype": torch.float32, "device": device}
    return torch.tensor(q, **to).to(dtype), torch.tensor(k, **to).to(dtype), torch.tensor(w, **to)


@pytest.mark.parametrize("dtype", DTYPES[:1] if INTERPRETED else DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_worked_cases(case, dtype, place):
    q, k, w = tensors(case["q"], case["k"], case["w"], dtype, place.device)
    bounds = {"lo": torch.tensor(case["lo"]), "hi": torch.tensor(case["hi"]), "backend": place.backend}
    for name, calls in case["expect"].items():
        for call in calls:
            got = getattr(pivot, name)(q, k, w, case["topk"], **bounds, **call["args"])
            assert got.dtype == torch.int32 and got.tolist() == call["want"], (name, call["args"])


def drawn(seed):
    """A random problem in small integers: packed sequences, ragged runs, rows without keys."""
    rng = random.Random(seed)
    n, heads, width = rng.randint(1, 40), rng.randint(1, 3), rng.randint(1, 4)
    k = [[rng.randint(-2, 2) for _ in range(width)] for _ in range(n)]
    rows, lo, hi = [], [], []
    while len(rows) < rng.randint(1, 14):
        start, end = rng.randint(0, n), rng.randint(0, n)
        for i in range(rng.randint(1, 6)):
            rows.append([[rng.randint(-2, 2) for _ in range(width)] for _ in range(heads)])
            lo.append(start)
            hi.append(min(end + i, n))
    w = [[rng.randint(-1, 3) for _ in range(heads)] for _ in rows]
    return rng, rows, k, w, lo, hi


@pytest.mark.parametrize("seed", range(1 if INTERPRETED else 16))
def test_random_integers_against_the_definitions(seed, place):
    compare_with_loops(seed, place)


@pytest.mark.big
@pytest.mark.parametrize("seed", range(16, 60))
def test_more_random_integers_against_the_definitions(seed, place):
    compare_with_loops(seed, place)


def compare_with_loops(seed, place):
    rng, rows, k, w, lo, hi = drawn(seed)
    topk = rng.randint(1, 8)
    dtype = rng.choice(DTYPES)
    q_, k_, w_ = tensors(rows, k, w, dtype, place.device)
    bounds = {"lo": torch.tensor(lo), "hi": torch.tensor(hi), "max_bytes": rng.choice([1, 1 << 20])}
    bounds["backend"] = place.backend
    assert pivot.dense_topk(q_, k_, w_, topk, **bounds).tolist() == oracle_index.dense(rows, k, w, lo, hi, topk)
    size = rng.randint(1, 5)
    window = size + rng.randint(0, 3)
    settings = {
        "group": size,
        "window": window,
        "budget": topk + window + size - 1 + rng.randint(0, 6),
        "proxy": rng.choice(groups.PROXIES),
        "guard": rng.choice([True, False, 3]),
    }
    for mode in ("reuse", "refine"):
        for phase in ("prefill", "decode"):
            got = pivot.pivot_topk(q_, k_, w_, topk, mode=mode, phase=phase, **settings, **bounds)
            want = oracle_index.pivot(rows, k, w, lo, hi, topk, mode=mode, phase=phase, **settings)
            assert got.tolist() == want, (mode, phase, settings)
    block = rng.randint(1, 6)
    blocks = max(2, -(-topk // block) + 1) + rng.randint(0, 2)
    got = pivot.hisa_topk(q_, k_, w_, topk, block=block, blocks=blocks, **bounds)
    assert got.tolist() == oracle_index.hisa(rows, k, w, lo, hi, topk, block=block, blocks=blocks)
    heads, rerank = rng.randint(1, 3), rng.choice([None, topk + rng.randint(0, 5)])
    got = pivot.misa_topk(q_, k_, w_, topk, heads=heads, block=block, rerank=rerank, **bounds)
    assert got.tolist() == oracle_index.misa(rows, k, w, lo, hi, topk, heads=heads, block=block, rerank=rerank)


def test_default_bounds_and_budget():
    """The queries are the last positions of the keys; c is max(2 topk, topk + window + g - 1)."""
    rng, rows, k, w, *_ = drawn(5)
    k = k * 3
    n, t = len(k), len(rows)
    lo, hi = [0] * t, [n - t + i + 1 for i in range(t)]
    q_, k_, w_ = tensors(rows, k, w)
    assert pivot.dense_topk(q_, k_, w_, 3).tolist() == oracle_index.dense(rows, k, w, lo, hi, 3)
    options = {"group": 4, "window": 4, "budget": 10, "proxy": "mean", "guard": True, "phase": "prefill"}
    want = oracle_index.pivot(rows, k, w, lo, hi, 3, mode="refine", **options)
    assert pivot.pivot_topk(q_, k_, w_, 3).tolist() == want


SELECTS = (
    (pivot.dense_topk, {}),
    *(
        (pivot.pivot_topk, {"guard": False, "proxy": proxy, "mode": mode})
        for proxy in groups.PROXIES
        for mode in api.MODES
    ),
    (pivot.hisa_topk, {"block": 4, "blocks": 3}),
    (pivot.misa_topk, {"heads": 1, "block": 4}),
    (pivot.misa_topk, {"heads": 1, "block": 99, "rerank": 6}),
)


@pytest.mark.parametrize("select, options", SELECTS)
def test_scales_are_part_of_the_score(select, options):
    generator = torch.Generator().manual_seed(1)
    q, k, w = (torch.randn(*shape, generator=generator) for shape in ((6, 2, 8), (30, 8), (6, 2)))
    q_scale = 2.0 ** torch.randint(-3, 4, (6, 2), generator=generator)
    k_scale = 2.0 ** torch.randint(-3, 4, (30,), generator=generator)
    want = select(q * q_scale[..., None], k * k_scale[:, None], w, 4, **options)
    assert select(q, k, w, 4, q_scale=q_scale, k_scale=k_scale, **options).equal(want)
    # Any float will do.
    scales = {"q_scale": q_scale.double(), "k_scale": k_scale.bfloat16()}
    assert select(q, k, w.double(), 4, **scales, **options).equal(want)


@pytest.mark.parametrize("select, options", SELECTS)
def test_bounds_are_clamped_first(select, options):
    q, k, w = torch.randn(6, 2, 4), torch.randn(12, 4), torch.rand(6, 2)
    lo, hi = torch.tensor([-3, -1, 0, 0, 2, 2]), torch.tensor([4, 5, 6, 40, 41, 13])
    want = select(q, k, w, 3, lo=lo.clamp(0, 12), hi=hi.clamp(0, 12), **options)
    assert select(q, k, w, 3, lo=lo, hi=hi, **options).equal(want)
    huge = torch.tensor([2**63] * 6, dtype=torch.uint64)
    assert select(q, k, w, 3, hi=huge, **options).equal(select(q, k, w, 3, hi=torch.full((6,), 12), **options))


@pytest.mark.parametrize("select, options", SELECTS)
def test_what_a_process_allows_does_not_show(select, options, monkeypatch):
    """TF32, autocast and a default device: products are float32, and all is as it was afterwards."""
    q, k, w = torch.randn(6, 2, 4) * 300, torch.randn(12, 4) * 300, torch.rand(6, 2)
    want = select(q, k, w, 3, **options)
    seen = []
    inner = reference.score
    monkeypatch.setattr(reference, "score", lambda *args: seen.append(matmul.fp32_precision) or inner(*args))
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert select(q, k, w, 3, **options).equal(want)
        torch.set_default_device("meta")
        assert select(q, k, w, 3, **options).equal(want)
    finally:
        torch.set_default_device(None)
        after, matmul.fp32_precision = matmul.fp32_precision, before
    assert after == "tf32" and set(seen) == {"ieee"}


def test_a_group_of_one_is_the_dense_path_bit_for_bit():
    """Also where a product takes another path for another layout."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(64, 4, 2, generator=generator).permute(2, 1, 0)
    k = torch.randn(64, generator=generator) + torch.randn(400, 64, generator=generator) * 1e-7
    hi = torch.tensor([400, 400])
    assert pivot.pivot_topk(q, k, torch.ones(2, 4), 20, group=1, hi=hi).equal(
        pivot.dense_topk(q, k, torch.ones(2, 4), 20, hi=hi)
    )


def test_sums_are_rounded_to_the_type_of_q():
    """256 + 1 is 256 in bfloat16: the first two keys tie, and the lower one wins."""
    q = torch.tensor([[[256.0, 256.0]], [[0.0, 1.0]]]).bfloat16()
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).bfloat16()
    found = pivot.pivot_topk(q, k, torch.ones(2, 1), 1, group=2, mode="reuse", guard=False)
    assert found.tolist() == [[0], [0]]
    assert pivot.pivot_topk(q.float(), k.float(), torch.ones(2, 1), 1, group=2, mode="reuse", guard=False).tolist() == [
        [1],
        [1],
    ]
    # So are blocks of keys: the sums of blocks 1 and 2 tie, and only 1 is looked at beside the first and the last.
    k = torch.tensor([[0.0], [0.0], [256.0], [0.0], [256.0], [1.0], [0.0], [0.0]]).bfloat16()
    q, w, bounds = torch.ones(1, 1, 1).bfloat16(), torch.ones(1, 1), {"block": 2, "blocks": 3}
    assert pivot.hisa_topk(q, k, w, 1, **bounds).tolist() == [[2]]
    k[5] = 0.5
    k[4] = 257  # itself 256
    assert pivot.hisa_topk(
        q.float(), k.float() + torch.tensor([[0.0]] * 4 + [[1.0]] + [[0.0]] * 3), w, 1, **bounds
    ).tolist() == [[4]]


def test_the_router_counts_nan_as_nothing_and_inf_as_inf():
    q = torch.tensor([[[1e20, 0.0], [0.0, 1.5e19]]])
    k = torch.tensor([[1e19, 1e19], [0.0, 0.0], [1.0, 1e19]])
    problem = problem_of(q, k, torch.tensor([[0.5, 1.0]]))
    assert rivals.energy(problem, 0, 3)[0, 0] == torch.inf
    assert pivot.misa_topk(q, k, torch.tensor([[0.5, 1.0]]), 1, heads=1, block=3).tolist() == [[0]]
    q[0, 0, 0] = float("nan")
    assert rivals.energy(problem_of(q, k, torch.ones(1, 2)), 0, 3)[0].tolist()[0] == 0
    assert rivals.energy(problem_of(q, k, torch.ones(1, 2)), 0, 9)[0].tolist()[0] == 0
    # 0 * inf is no energy either.
    q[0, 0, 0] = 1e38
    assert rivals.energy(problem_of(q, k, torch.tensor([[0.0, 1.0]])), 0, 3)[0].tolist()[0] == 0


def test_blocks_may_be_larger_than_what_there_is():
    q, k, w = torch.randn(4, 2, 3), torch.randn(9, 3), torch.rand(4, 2)
    assert pivot.hisa_topk(q, k, w, 3, block=2**62, blocks=2).equal(pivot.dense_topk(q, k, w, 3))
    assert pivot.misa_topk(q, k, w, 3, heads=1, block=2**62).shape == (4, 3)


def test_float8_sums_take_the_smallest_power_of_two_that_fits():
    total = torch.tensor([[448.0, -3.0], [449.0, 1.0], [0.0, 0.0], [1e-3, 0.0], [float("nan"), 1.0], [2.0**-144, 0.0]])
    values, scale = reference.rounded(total, torch.float8_e4m3fn)
    assert scale[5] == 2.0**-149 and values[5].float().tolist() == [32.0, 0.0]
    assert scale[:4].tolist() == [1.0, 2.0, 1.0, 2.0**-18] and scale[4] == 1
    assert values[0].float().tolist() == [448.0, -3.0] and values[4].float().isnan()[0]


def test_nan_is_never_selected_and_stays_in_its_group():
    q, k, w = torch.randn(8, 2, 4), torch.randn(20, 4), torch.rand(8, 2) + 0.1
    want = pivot.pivot_topk(q, k, w, 3, guard=False)
    q[1, 0, 0] = float("nan")
    got = pivot.pivot_topk(q, k, w, 3, guard=False)
    assert got[4:].equal(want[4:]) and (got[1] == -1).all()
    k[7] = float("nan")
    assert not (pivot.dense_topk(q, k, w, 20) == 7).any()


def test_a_block_of_nan_ranks_last():
    """It is taken only where no other block is left."""
    q, w = torch.ones(1, 1, 1), torch.ones(1, 1)
    k = torch.tensor([[1.0], [1.0], [9.0], [float("nan")], [2.0], [2.0], [1.0], [1.0]])
    assert pivot.hisa_topk(q, k, w, 3, block=2, blocks=3).tolist() == [[0, 4, 5]]
    assert pivot.hisa_topk(q, k, w, 3, block=2, blocks=4).tolist() == [[2, 4, 5]]


def test_equal_scores_fall_to_the_lowest_position_also_for_minus_zero():
    values = torch.tensor([[-1.0, 0.0, -0.0, 0.0]])
    every = torch.ones(1, 4, dtype=torch.bool)
    assert reference.ranked(values, torch.arange(4), every, 2).tolist() == [[1, 2]]
    assert reference.ranked(-values, torch.arange(4), every, 4).tolist() == [[0, 1, 2, 3]]


def test_nothing_to_select_from():
    q, w = torch.randn(3, 2, 4), torch.rand(3, 2)
    none = torch.zeros(3, dtype=torch.int64)
    for select, options in SELECTS:
        assert (select(q, torch.randn(0, 4), w, 2, lo=none, hi=none, **options) == -1).all()
        assert select(q[:0], torch.randn(5, 4), w[:0], 2, **options).shape == (0, 2)


def test_strides_do_not_show():
    q, k, w = torch.randn(9, 4, 6), torch.randn(50, 6), torch.rand(9, 4)
    views = q.transpose(0, 2).contiguous().transpose(0, 2), k.t().contiguous().t(), w.t().contiguous().t()
    for select, options in SELECTS:
        assert select(*views, 5, **options).equal(select(q, k, w, 5, **options))


GOOD = {"q": torch.randn(3, 2, 4), "k": torch.randn(9, 4), "w": torch.rand(3, 2), "topk": 2}


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"q": [1]}, TypeError, "q must be a torch.Tensor, got list"),
        ({"q": torch.randn(3, 4)}, ValueError, "q must have 3 dimensions"),
        ({"q": torch.randn(3, 2, 4).double()}, TypeError, "q and k must share a dtype"),
        ({"k": torch.randn(9, 4).half()}, TypeError, "q and k must share a dtype"),
        ({"k": torch.randn(9, 5)}, ValueError, r"k must be \[N, D\]"),
        ({"w": torch.rand(3, 3)}, ValueError, r"and w \[T, H\]"),
        ({"w": torch.ones(3, 2, dtype=torch.int64)}, TypeError, "w must be a float tensor, got int64"),
        ({"topk": 0}, ValueError, "topk must be >= 1, got 0"),
        ({"topk": 2.0}, TypeError, "topk must be an int, got float"),
        ({"q_scale": torch.ones(3)}, ValueError, "q_scale must have 2 dimensions"),
        ({"k_scale": -torch.ones(9)}, ValueError, "k_scale must be positive"),
        ({"k_scale": torch.full((9,), 1e-60, dtype=torch.float64)}, ValueError, "k_scale must be positive"),
        ({"lo": torch.zeros(2, dtype=torch.int64)}, ValueError, "lo must have one value per query, 3, got 2"),
        ({"hi": torch.ones(3)}, TypeError, "hi must be an integer tensor, got float32"),
        ({"k": torch.randn(2, 4)}, ValueError, "T must be <= N, got 3 and 2"),
        ({"backend": "cuda"}, ValueError, "backend must be one of"),
        ({"backend": "triton"}, RuntimeError, "Triton needs CUDA tensors or TRITON_INTERPRET=1"),
        ({"max_bytes": 0}, ValueError, "max_bytes must be >= 1, got 0"),
    ],
)
def test_bad_arguments(change, error, message):
    for select in (pivot.dense_topk, pivot.pivot_topk, pivot.hisa_topk, pivot.misa_topk):
        with pytest.raises(error, match=message):
            select(**{**GOOD, **change})


@pytest.mark.parametrize(
    "select, change, message",
    [
        ("pivot_topk", {"group": 0}, "group must be >= 1, got 0"),
        ("pivot_topk", {"window": 3}, "window must be >= group, 4, got 3"),
        ("pivot_topk", {"budget": 8}, r"budget must be >= topk \+ window \+ group - 1, 9, got 8"),
        ("pivot_topk", {"mode": "all"}, "mode must be one of 'refine', 'reuse', got 'all'"),
        ("pivot_topk", {"proxy": "max"}, "proxy must be one of"),
        ("pivot_topk", {"phase": "train"}, "phase must be one of"),
        ("pivot_topk", {"guard": -1}, "guard must be >= 0, got -1"),
        ("hisa_topk", {"blocks": 1}, "blocks must be >= 2, got 1"),
        ("hisa_topk", {"block": 1, "blocks": 2}, r"\(blocks - 1\) \* block must be >= topk, 2, got 1"),
        ("misa_topk", {"rerank": 1}, "rerank must be >= topk, 2, got 1"),
        ("misa_topk", {"heads": 0}, "heads must be >= 1, got 0"),
    ],
)
def test_bad_settings(select, change, message):
    with pytest.raises(ValueError, match=message):
        getattr(pivot, select)(**GOOD, **change)


def test_a_smaller_budget_is_allowed_where_it_is_not_needed():
    pivot.pivot_topk(**GOOD, budget=1, mode="reuse")
    pivot.pivot_topk(**GOOD, budget=1, phase="decode")


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "pass freq or pattern"),
        ({"freq": 2, "pattern": "FFFF"}, "pass freq or pattern"),
        ({"freq": 0}, "freq must be >= 1, got 0"),
        ({"pattern": "SFFF"}, "pattern must be 4 letters F or S, the first F"),
        ({"pattern": "FF"}, "pattern must be 4 letters"),
        ({"pattern": "FFXF"}, "pattern must be 4 letters"),
    ],
)
def test_bad_patterns(options, message):
    with pytest.raises(ValueError, match=message):
        pivot.index_cache_layers(4, **options)


def test_the_greedy_pattern_asks_for_every_layer_that_could_share():
    asked = []
    pattern = pivot.index_cache_greedy(lambda one: asked.append(one) or one.count("S") - one.find("S"), 5, 3)
    assert pattern == "FFFSS" and len(asked) == 4 + 3 and all(one[0] == "F" for one in asked)
    assert pivot.index_cache_greedy(lambda one: float("nan") if one[1] == "S" else 1.0, 4, 3) == "FFSF"
    with pytest.raises(ValueError, match="is NaN"):
        pivot.index_cache_greedy(lambda one: float("nan"), 4, 3)
    with pytest.raises(ValueError, match="keep must be <= n_indexed, 2, got 3"):
        pivot.index_cache_greedy(len, 2, 3)


def problem_of(q, k, w, max_bytes=1 << 20):
    options = {"q_scale": None, "k_scale": None, "lo": None, "hi": None, "backend": "auto", "max_bytes": max_bytes}
    return checks.problem(q, k, w, 2, **options)


@pytest.mark.parametrize("max_bytes, rows", [(1, 1), (3 * 48 * 100, 3), (3 * 48 * 100 - 1, 2), (1 << 40, 10)])
def test_chunks_hold_at_least_a_row_and_at_most_what_fits(max_bytes, rows):
    problem = problem_of(torch.randn(10, 1, 2), torch.randn(100, 2), torch.rand(10, 1), max_bytes)
    sizes = [chunk.stop - chunk.start for chunk in reference.chunks(problem)]
    assert sum(sizes) == 10 and sizes[0] == rows == max(sizes)
