"""The judge of index selection on floats lets through what the reference selects, and nothing else."""

import oracle_index_floats as oracle
import pytest
import torch

from qp_kernels.pivot import dense_topk, pivot_topk

TOPK, GROUP, BUDGET = 20, 4, 60
CALLS = {
    "dense": (dense_topk, {}, ()),
    "reuse": (pivot_topk, {"mode": "reuse", "group": GROUP}, (GROUP,)),
    "refine": (pivot_topk, {"mode": "refine", "group": GROUP, "budget": BUDGET}, (GROUP, BUDGET, GROUP)),
    "refine_decode": (
        pivot_topk,
        {"mode": "refine", "group": GROUP, "budget": BUDGET, "phase": "decode"},
        (GROUP, BUDGET, GROUP, "decode"),
    ),
}


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(3)
    q, k, w = (torch.randn(shape, generator=generator) for shape in ((24, 3, 16), (400, 16), (24, 3)))
    q, k = q.bfloat16(), k.bfloat16()
    return oracle.Rows(q, k, w, torch.zeros(24, dtype=torch.int64), torch.arange(377, 401))


def judged(name, found, rows):
    _, _, more = CALLS[name]
    return getattr(oracle, name.removesuffix("_decode"))(found, rows, TOPK, *more)


@pytest.fixture(params=CALLS)
def call(request, rows):
    function, options, _ = CALLS[request.param]
    return request.param, function(rows.q, rows.k, rows.w, TOPK, **options)


def test_what_the_reference_selects_is_allowed(call, rows):
    name, found = call
    assert judged(name, found, rows).sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_every_dtype_and_scales(dtype):
    generator = torch.Generator().manual_seed(4)
    q, k, w = (torch.randn(shape, generator=generator) for shape in ((9, 2, 8), (300, 8), (9, 2)))
    q_scale, k_scale = torch.rand(9, 2, generator=generator) + 0.5, torch.rand(300, generator=generator) + 0.5
    scales = {"q_scale": q_scale, "k_scale": k_scale}
    bounds = torch.zeros(9, dtype=torch.int64), torch.arange(292, 301)
    made = oracle.Rows(q.to(dtype), k.to(dtype), w, *bounds, **scales)
    found = dense_topk(made.q, made.k, made.w, TOPK, **scales)
    assert not oracle.dense(found, made, TOPK).any()
    assert oracle.dense(dense_topk(made.q, made.k, made.w, TOPK), made, TOPK).any()  # scales count


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("scaled", [True, False])
def test_groups_in_float8(name, scaled):
    """Proxies with scales: what the reference selects is allowed, and what it selects without scales is not."""
    generator = torch.Generator().manual_seed(5)
    q, k, w = (torch.randn(shape, generator=generator) for shape in ((48, 3, 16), (600, 16), (48, 3)))
    q, k, w = (20 * q).to(torch.float8_e4m3fn), k.to(torch.float8_e4m3fn), w.abs()
    scales = {"q_scale": torch.rand(48, 3, generator=generator) + 0.1, "k_scale": torch.rand(600, generator=generator)}
    scales = {name: scale + 0.01 for name, scale in scales.items()} if scaled else {}
    made = oracle.Rows(q, k, w, torch.zeros(48, dtype=torch.int64), torch.arange(553, 601), **scales)
    function, options, _ = CALLS[name]
    assert not judged(name, function(q, k, w, TOPK, **options, **scales), made).any()
    if scaled:
        assert judged(name, function(q, k, w, TOPK, **options), made).any()


def test_the_window_is_besides_the_budget_in_decode_only(rows):
    """In prefill the proxy's worst candidates make room for the window; who takes the one for the other is seen."""
    calls = {name: CALLS[name] for name in ("refine", "refine_decode")}
    tight = {"budget": TOPK + 2 * GROUP - 1}
    found = {
        name: function(rows.q, rows.k, rows.w, TOPK, **{**options, **tight})
        for name, (function, options, _) in calls.items()
    }
    for name, selected in found.items():
        for judge, phase in (("refine", "prefill"), ("refine_decode", "decode")):
            wrong = oracle.refine(selected, rows, TOPK, GROUP, tight["budget"], GROUP, phase)
            assert bool(wrong.any()) == (judge != name)


def test_in_chunks_as_at_once(call, rows, monkeypatch):
    monkeypatch.setattr(oracle, "ENTRIES", 4 * 400)
    assert judged(call[0], call[1], rows).sum() == 0


def test_another_key_is_seen(call, rows):
    """The worst key in the place of one of the row's, and a key of the future."""
    name, found = call
    worst = oracle.scored(rows)[0].masked_fill(~rows.inside(), torch.inf).argmin(1).int()
    for value in (worst, rows.hi.int()):
        other = found.clone()
        row = 13 if value is worst else 12
        other[row, 7] = value[row]
        other[row] = other[row].sort().values
        rows_seen = range(12, 16) if name == "reuse" else [row]
        assert judged(name, other, rows).nonzero().flatten().tolist() == list(rows_seen)


def test_form_is_seen(call, rows):
    name, found = call
    fewer, twice, unordered = found.clone(), found.clone(), found.clone()
    fewer[5, -1], twice[5, 1], unordered[5] = -1, found[5, 0], found[5].flip(0)
    for other in (fewer, twice, unordered):
        assert judged(name, other, rows)[5]


def test_a_key_at_the_cut_may_be_on_either_side():
    k = torch.tensor([[1.0], [1.0 + 2.0**-21], [1.0 + 2.0**-10], [0.5]])
    rows = oracle.Rows(torch.ones(1, 1, 1), k, torch.ones(1, 1), torch.tensor([0]), torch.tensor([4]))
    allowed = [[1, 2], [0, 2]]
    for found in ([0, 1], [1, 2], [0, 2], [2, 3], [0, 3]):
        assert bool(oracle.dense(torch.tensor([found]), rows, 2)[0]) == (found not in allowed)


def test_rows_with_fewer_keys_than_topk():
    rows = oracle.Rows(
        torch.ones(2, 1, 1), torch.ones(5, 1), torch.ones(2, 1), torch.tensor([0, 1]), torch.tensor([3, 3])
    )
    found = torch.tensor([[0, 1, 2, -1], [1, 2, -1, -1]])
    assert oracle.dense(found, rows, 4).tolist() == [False, False]
    assert oracle.dense(torch.tensor([[0, 1, -1, -1], [0, 1, 2, -1]]), rows, 4).tolist() == [True, True]
    none = torch.full((2, 9), -1)
    none[:, :3] = torch.tensor([[0, 1, 2], [1, 2, -1]])
    assert oracle.dense(none, rows, 9).tolist() == [False, False]
