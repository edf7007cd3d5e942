"""Index selection in Triton: exact selection of columns, and what must hold of every selection, at real sizes on a GPU.

Triton's interpreter takes the same branches with constants so small that a few hundred columns are long (`shrink`).
"""

import functools
import math

import fuzz_index_cases
import oracle_index_floats
import places
import pytest
import score_rows
import torch
from places import INTERPRETED, dense_topk, hisa_topk, misa_topk, pivot_topk
from score_rows import sorted_best
from small_selection import shrink

from qp_kernels import pivot

FEW_BLOCKS = {"block": 4, "blocks": 3}
pytestmark = [pytest.mark.usefixtures("place"), pytest.mark.kernels]
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_constants(place, monkeypatch):
    if not place.is_cuda():
        shrink(monkeypatch.setattr)


def topk_of_scores(scores, limit, lo=None, hi=None):
    from qp_kernels.pivot import selection

    return selection.topk_of_scores(scores, limit, lo, hi).cpu()


def spread_out(scores, padding, poison):
    """The rows on the device, in memory that is `padding` columns and a row wider on every side, full of poison."""
    rows, columns = scores.shape
    memory = torch.full((rows + 2, columns + padding), poison, device=places.here.device)
    view = memory[1:-1, :columns]
    return view.copy_(scores)


# Columns; and the limits of each.
SIZES = (
    {100: (7, 120), 700: (1, 160, 40, 100)}
    if INTERPRETED
    else {
        1: (1, 3),
        8_192: (1, 2_048, 9_000),
        8_193: (1, 64, 8_193),
        16_384: (1, 50, 2_048, 2_561, 16_384),
        16_448: (2_048, 8_193, 20_000),
        65_536: (1, 2_048, 4_096, 20_000),
        131_072: (2_048,),
    }
)


@pytest.mark.parametrize("family", score_rows.FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("columns", SIZES)
def test_best_columns_of_scores(family, columns):
    scores = family(torch.Generator().manual_seed(columns), 2 if INTERPRETED else 5, columns)
    # Rows in whole tiles of 4,096 are read without a mask.
    to_tile = -columns % 4096 + 4096
    limits = SIZES[columns]
    if INTERPRETED:
        limits = limits[score_rows.FAMILIES.index(family) % len(limits) :][:1]
    for i, limit in enumerate(limits):
        there = spread_out(scores, to_tile if i % 2 else 5, math.inf)
        assert topk_of_scores(there, limit).equal(sorted_best(scores, limit)), limit


@pytest.mark.parametrize(
    "family", score_rows.FAMILIES[: 2 if INTERPRETED else None], ids=lambda family: family.__name__
)
def test_best_columns_between_bounds(family):
    """Rows of all lengths in one call: empty ones, short ones, long ones; poison outside."""
    columns, limit = (700, 60) if INTERPRETED else (40_000, 2_048)
    ends = [
        (0, columns),
        (7, 7),
        (9, 3),
        (columns - 3, columns),
        (columns // 2, columns),
        (1, 30),
        (0, 1),
        (3, columns - 1),
    ]
    lo, hi = (torch.tensor(values) for values in zip(*ends))
    scores = family(torch.Generator().manual_seed(1), len(ends), columns)
    want = sorted_best(scores, limit, lo, hi)
    place = torch.arange(columns)
    poisoned = scores.where((place >= lo[:, None]) & (place < hi[:, None]), math.inf)
    for padding in (5,) if INTERPRETED else (5, -columns % 4096 + 4096):
        assert topk_of_scores(spread_out(poisoned, padding, math.inf), limit, lo, hi).equal(want)


@pytest.mark.parametrize("limit", [60] if INTERPRETED else [1, 1_000, 2_048, 4_096])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sample_that_misleads(sign, limit):
    """Only what the sample reads is high, or low: a threshold from it leaves too few, or too many."""
    from qp_kernels.pivot import selection

    columns, runs, run = (700 if INTERPRETED else 40_000), selection.RUNS, selection.RUN
    part, share = torch.arange(runs)[:, None], columns // runs
    jitter = ((part * 40503) & 0xFFFF) * (share - run + 1) >> 16
    read = (part * share + jitter + torch.arange(run)).flatten()
    scores = torch.randn(2, columns, generator=torch.Generator().manual_seed(limit))
    scores[1] = scores[1].round()
    scores[:, read] += 9 * sign
    assert topk_of_scores(spread_out(scores, 5, math.inf), limit).equal(sorted_best(scores, limit))


def test_a_row_does_not_depend_on_the_others():
    columns, limit = (600, 20) if INTERPRETED else (20_011, 700)
    scores = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).to(places.here.device)
    together = topk_of_scores(scores, limit)
    for r in range(3):
        assert topk_of_scores(scores[r : r + 1], limit).equal(together[r : r + 1])


@pytest.mark.big
def test_a_million_equal_scores():
    scores = torch.full((2, 1_000_003), 1.5, device="cuda")
    scores[1, 500_000:] = 2.0
    found = topk_of_scores(scores, 2_048)
    assert found.tolist() == [list(range(2_048)), list(range(500_000, 502_048))]


@pytest.mark.big
def test_rows_beyond_two_to_the_31_scores():
    if torch.cuda.mem_get_info()[0] < 14 << 30:
        pytest.skip("needs 14 GB of the GPU's memory")
    memory = torch.zeros(3, (1 << 30) + 4096, device="cuda")
    scores = memory[:, :20_000]
    scores.normal_()
    for limit in (100, 2_048):
        assert topk_of_scores(scores, limit).equal(sorted_best(scores.cpu(), limit))
    longer = memory[:, : (1 << 20) + 77]
    longer.normal_()
    assert topk_of_scores(longer, 2_048).equal(sorted_best(longer.cpu(), 2_048))


def integers(rows, keys, heads, width, seed=0, dtype=torch.float32):
    """q, k, w in small integers: every selection is unique."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, heads, width), (keys, width)
    q, k = (torch.randint(-2, 3, shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, torch.randint(-1, 4, (rows, heads), generator=generator).float()


def size(small, large):
    return small if INTERPRETED else large


def reference(select, *tensors, **options):
    return {dense_topk: pivot.dense_topk, pivot_topk: pivot.pivot_topk, hisa_topk: pivot.hisa_topk}.get(
        select, pivot.misa_topk
    )(*tensors, **options, backend="torch")


SELECTS = {
    "dense": (dense_topk, {}),
    "reuse": (pivot_topk, {"mode": "reuse", "guard": False}),
    "refine": (pivot_topk, {"guard": False, "window": 5}),
    "decode": (pivot_topk, {"guard": False, "phase": "decode", "budget": 9}),
    "hisa": (hisa_topk, {"block": 16, "blocks": 8}),
    "misa": (misa_topk, {"heads": 2, "block": 16}),
    "rerank": (misa_topk, {"heads": 1, "block": 16, "rerank": size(40, 130)}),
}
# The interpreter takes one of each kind.
NAMES = ["dense", "reuse", "refine", "hisa"] if INTERPRETED else list(SELECTS)
every_select = pytest.mark.parametrize("select, options", [SELECTS[name] for name in NAMES], ids=NAMES)
the_groups = pytest.mark.parametrize("select, options", list(SELECTS.values())[:4], ids=list(SELECTS)[:4])


SMALL = fuzz_index_cases.Limits(400, 5, 100, 512) if INTERPRETED else None


@pytest.mark.parametrize("index", range(2 if INTERPRETED else 40))
def test_random_integers_against_the_reference(index, place):
    """Each of another lot of the fuzzer."""
    case = fuzz_index_cases.draw_case(2, fuzz_index_cases.LIKE * index + index % 7, place.device, SMALL)
    assert not fuzz_index_cases.check(case, "triton"), case


@every_select
def test_packed_equals_per_sequence(select, options):
    sequences = [
        integers(*shape, 3, 8, seed=i) for i, shape in enumerate(size([(3, 60), (5, 5), (2, 90)], [(300, 700)] * 3))
    ]
    topk = size(6, 64)
    apart, packed, lo, hi, start = [], [], [], [], 0
    for q, k, w in sequences:
        found = select(q, k, w, topk, **options)
        apart.append(found.where(found < 0, found + start))
        packed.append((q, k, w))
        lo += [start] * len(q)
        hi += [start + len(k) - len(q) + 1 + t for t in range(len(q))]
        start += len(k)
    tensors = (torch.cat(parts) for parts in zip(*packed))
    assert select(*tensors, topk, lo=torch.tensor(lo), hi=torch.tensor(hi), **options).equal(torch.cat(apart))


@every_select
def test_chunks_of_rows_equal_one_shot(select, options):
    q, k, w = integers(size(6, 67), size(60, 9_000), 3, 8)
    topk = size(6, 100)
    want = select(q, k, w, topk, **options)
    assert select(q, k, w, topk, max_bytes=1, **options).equal(want)
    if not INTERPRETED:
        assert select(q, k, w, topk, max_bytes=1_000_000, **options).equal(want)


@pytest.mark.parametrize("mode", ["refine", "reuse"])
def test_a_group_of_one_is_the_dense_path_bit_for_bit(mode):
    generator = torch.Generator().manual_seed(0)
    shapes = (size(5, 130), 3, 20), (size(90, 12_000), 20), (size(5, 130), 3)
    q, k, w = (torch.randn(shape, generator=generator) for shape in shapes)
    for dtype in DTYPES:
        tensors = q.to(dtype), k.to(dtype), w, size(8, 500)
        assert pivot_topk(*tensors, group=1, mode=mode, guard=False).equal(dense_topk(*tensors))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_groups_whose_prefix_fits_the_budget_are_dense(phase):
    q, k, w = integers(size(6, 203), size(40, 1_000), 3, 8)
    for budget in (len(k),) if INTERPRETED else (len(k), 4 * len(k)):
        found = pivot_topk(q, k, w, size(5, 64), guard=False, budget=budget, phase=phase)
        assert found.equal(dense_topk(q, k, w, size(5, 64)))


BEYOND = [
    {"phase": "decode", "window": 50, "budget": 4},  # than every prefix: all windows start at lo
    {"phase": "decode", "window": 2**64, "budget": 4},
    {"phase": "decode", "budget": 2**31},
    {"budget": 2**40},
    {"budget": 2**64, "max_bytes": 2**64},
]


@pytest.mark.parametrize("options", BEYOND, ids=str)
def test_windows_and_budgets_beyond_every_key(options):
    q, k, w = integers(8, 30, 2, 4)
    # Groups whose numbers rise evenly, and others.
    for rows in ((8,) if "window" in options else (7,)) if INTERPRETED else (8, 7, 4):
        tensors = q[:rows], k, w[:rows], 3
        want = reference(pivot_topk, *tensors, guard=False, **options)
        assert pivot_topk(*tensors, guard=False, **options).equal(want)


def test_all_blocks_and_all_heads_are_dense():
    for dtype in DTYPES:
        q, k, w = integers(size(4, 100), size(40, 3_000), 3, 8, dtype=dtype)
        want = dense_topk(q, k, w, 7)
        assert hisa_topk(q, k, w, 7, block=9, blocks=-(-len(k) // 9)).equal(want)
        assert hisa_topk(q, k, w, 7, block=len(k) + 1, blocks=2).equal(want)
        assert misa_topk(q, k, w, 7, heads=3).equal(want)


@the_groups
def test_a_query_of_nan_poisons_its_own_group_only(select, options):
    q, k, w = integers(9, size(60, 9_000), 3, 8)
    want = select(q, k, w, 6, **options)
    q[5, 1, 2] = math.nan
    found = select(q, k, w, 6, **options)
    others = torch.ones(9, dtype=torch.bool)
    others[5 if select is dense_topk else slice(4, 8)] = False
    assert found[others].equal(want[others]) and (found[5] == -1).all()


@every_select
def test_rows_without_keys(select, options):
    q, k, w = integers(6, size(40, 9_000), 3, 8)
    lo, hi = torch.tensor([0, 30, 30, 5, 40, 2**40]), torch.tensor([0, 30, 7, -9, 10**6, 2**41])
    found = select(q, k, w, 4, lo=lo, hi=hi, **options)
    assert (found[[0, 1, 2, 3, 5]] == -1).all()
    assert found[4].max() == -1 if len(k) == 40 else found[4].min() >= 40
    none = torch.zeros(6, dtype=torch.int64)
    assert (select(q, k[:0], w, 4, lo=none, hi=none, **options) == -1).all()
    assert select(q[:0], k, w[:0], 4, **options).shape == (0, 4)


@pytest.mark.parametrize("select, options", list(SELECTS.values())[: 1 if INTERPRETED else None])
def test_strides_do_not_show(select, options):
    q, k, w = integers(6, size(50, 9_000), 4, 6)
    views = q.transpose(0, 2).contiguous().transpose(0, 2), k.t().contiguous().t(), w.t().contiguous().t()
    want = select(q, k, w, 5, **options)
    assert select(*views, 5, **options).equal(want)
    wide = torch.full((6, 4, 20), math.nan)
    wide[:, :, 3:9] = q
    assert select(wide[:, :, 3:9], k, w, 5, **options).equal(want)
    assert select(q[:1].expand(6, 4, 6), k, w, 5, **options).equal(select(q[:1].repeat(6, 1, 1), k, w, 5, **options))


def test_numbers_that_are_one():
    """Triton takes an argument of 1 for a constant."""
    shapes = (1, 1, 1, 1), (1, 9, 2, 1), (2, 2, 1, 3), (4, 4, 2, 20)
    for rows, keys, heads, width in shapes[2:] if INTERPRETED else shapes:
        tensors = integers(rows, keys, heads, width)
        for topk in (1, keys + 2):
            for lo, hi in ((0, 1), (1, 1), (1, keys)):
                bounds = {"lo": torch.full((rows,), lo), "hi": torch.full((rows,), hi)}
                assert dense_topk(*tensors, topk, **bounds).equal(reference(dense_topk, *tensors, topk, **bounds))
            options = {"group": 2, "window": 2, "guard": False, "phase": "decode", "budget": 1}
            assert pivot_topk(*tensors, topk, **options).equal(reference(pivot_topk, *tensors, topk, **options))


def test_scales_of_any_layout():
    """Views and expanded scales are read as they are."""
    q, k, w = integers(6, size(40, 9_000), 3, 8)
    powers = torch.randint(-2, 3, (len(k), 3), generator=torch.Generator().manual_seed(4))
    scales = (2.0**powers)[:, 1], (2.0**powers)[:6].t().contiguous().t()
    assert not any(scale.is_contiguous() for scale in scales)
    for k_scale, q_scale in (scales, (torch.ones(1).expand(len(k)), torch.ones(1, 1).expand(6, 3))):
        same = {"k_scale": k_scale.contiguous(), "q_scale": q_scale.contiguous()}
        for select, options in (
            (dense_topk, {}),
            (pivot_topk, {"mode": "reuse", "guard": False}),
            (hisa_topk, FEW_BLOCKS),
        ):
            found = select(q, k, w, 4, k_scale=k_scale, q_scale=q_scale, **options)
            assert found.equal(select(q, k, w, 4, **same, **options)), select


def test_a_group_of_many_rows():
    """Its selection is not unrolled as often."""
    q, k, w = integers(40, size(60, 9_000), 1, 4)
    found = pivot_topk(q, k, w, 5, mode="reuse", group=40, guard=False)
    assert found.equal(reference(pivot_topk, q, k, w, 5, mode="reuse", group=40, guard=False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_proxies_add_products_that_were_rounded(dtype, place):
    """A product and a sum in one operation are a bit off at times, and a float8 number a step."""
    from qp_kernels.pivot import checks, groups, launch

    rng = torch.Generator().manual_seed(3)
    rows, heads, width = (8, 3, 20) if INTERPRETED else (4_096, 4, 256)
    q = (torch.randn(rows, heads, width, generator=rng) * 10).to(dtype)
    w, q_scale = (torch.rand(rows, heads, generator=rng) for _ in range(2))
    k = torch.zeros(rows, width, dtype=dtype)
    q, k, w, q_scale = (part.to(place.device) for part in (q, k, w, q_scale))
    options = {"k_scale": None, "lo": None, "hi": None, "max_bytes": 1, "backend": place.backend}
    problem = checks.problem(q, k, w, 1, q_scale=q_scale, **options)
    found = launch.proxies(problem, groups.cut(problem.lo, problem.hi, 4), "mean")
    wanted = oracle_index_floats.proxies(oracle_index_floats.Rows(q, k, w, problem.lo, problem.hi, q_scale), 4)
    assert torch.equal(found.q.float(), wanted.q.float()) and torch.equal(found.w, wanted.w)
    assert dtype != torch.float8_e4m3fn or torch.equal(found.q_scale, wanted.q_scale)


def test_scales_from_the_smallest_to_the_largest():
    """Scores are subnormal, or overflow to inf and tie."""
    q, k, w = integers(5, size(70, 9_000), 3, 8)
    powers = torch.tensor([-149.0, -140.0, -126.0, -60.0, 0.0, 60.0, 120.0, 127.0])
    scale = torch.exp2(powers[torch.randint(0, 8, (len(k),), generator=torch.Generator().manual_seed(1))])
    assert (scale > 0).all()
    for select, options in (SELECTS["dense"], SELECTS["refine"]):
        for tensors, some in (((q, k, w), scale), ((q, k, w), scale.clamp(max=2.0**-126)), ((q, k, -w), scale)):
            want = reference(select, *tensors, 20, k_scale=some, **options)
            assert select(*tensors, 20, k_scale=some, **options).equal(want)


@pytest.mark.parametrize("value", [math.nan, math.inf] if INTERPRETED else [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_weights_and_queries_of_any_value(value):
    q, k, w = integers(6, size(50, 9_000), 3, 8)
    heavy, hot = w.clone(), q.clone()
    heavy[1], heavy[4, 0], hot[2, 1], hot[5, :, 3] = value, value, value, value
    for tensors in ((q, k, heavy), (hot, k, w)):
        for select, options in (SELECTS["dense"], SELECTS["refine"]):
            assert select(*tensors, 8, **options).equal(reference(select, *tensors, 8, **options))


WIDTHS = [(1, 1), (3, 20), (2, 256), (270, 4)] if INTERPRETED else [(64, 128), (3, 1), (12, 20), (48, 256), (300, 40)]


@pytest.mark.parametrize("heads, width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_floats_are_selected_within_the_contract(heads, width, dtype):
    """Scores in float64: what is selected is at most eps below the cut, what is not at most eps above it."""
    rows, keys, topk = size((3, 70, 9), (60, 9_000, 300))
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(rows, heads, width, generator=generator).to(dtype)
    k = torch.randn(keys, width, generator=generator).to(dtype)
    w = torch.randn(rows, heads, generator=generator) + 0.5
    scales = torch.rand(rows, heads, generator=generator) + 0.5, torch.rand(keys, generator=generator) + 0.5
    found = dense_topk(q, k, w, topk, q_scale=scales[0], k_scale=scales[1])
    bounds = torch.zeros(rows, dtype=torch.int64), torch.arange(keys - rows + 1, keys + 1)
    assert not oracle_index_floats.dense(found, oracle_index_floats.Rows(q, k, w, *bounds, *scales), topk).any()


@pytest.mark.big
@every_select
def test_two_runs_are_bit_identical(select, options):
    generator = torch.Generator().manual_seed(0)
    q, k, w = (torch.randn(shape, generator=generator) for shape in ((203, 12, 64), (20_011, 64), (203, 12)))
    for dtype in DTYPES:
        tensors = q.to(dtype), k.to(dtype), w, 100
        assert select(*tensors, **options).equal(select(*tensors, **options))


def on_gpu(rows, keys, heads=64, width=128, dtype=torch.bfloat16):
    q = torch.randn(rows, heads, width, device="cuda").to(dtype)
    return q, torch.randn(keys, width, device="cuda").to(dtype), torch.rand(rows, heads, device="cuda")


# Rows in whole groups: bounds that rise evenly need no copy to the device.
DEFAULT = [
    functools.partial(pivot.dense_topk, topk=2_048),
    functools.partial(pivot.pivot_topk, topk=2_048, mode="reuse"),
    functools.partial(pivot.pivot_topk, topk=2_048, mode="refine"),
    functools.partial(pivot.pivot_topk, topk=2_048, mode="refine", phase="decode"),
]


@pytest.mark.big
@pytest.mark.parametrize("rows", [4, 256])
@pytest.mark.parametrize("call", DEFAULT, ids=lambda call: f"{call.func.__name__}-{call.keywords}")
def test_default_bounds_need_no_synchronisation(call, rows, no_synchronisation):
    tensors = on_gpu(rows, 20_000)
    want = call(*tensors)
    no_synchronisation()
    found = call(*tensors)
    no_synchronisation.off()
    assert found.equal(want)


@pytest.mark.big
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("call", DEFAULT, ids=lambda call: f"{call.func.__name__}-{call.keywords}")
def test_in_a_cuda_graph(call, dtype):
    q, k, w = on_gpu(8, 20_000, dtype=dtype)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(q, k, w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(q, k, w)
    for _ in range(2):
        for values in (q, k):
            values.copy_(torch.randn(values.shape, device="cuda").to(dtype))
        w.uniform_()
        graph.replay()
        assert found.equal(call(q, k, w))


@pytest.mark.big
@pytest.mark.parametrize("call", DEFAULT, ids=lambda call: f"{call.func.__name__}-{call.keywords}")
@pytest.mark.parametrize("rows, keys", [(1_024, 262_144), (4_096, 262_144), (16_384, 16_384), (8_192, 9_000)])
def test_memory_is_bounded(call, rows, keys):
    tensors = on_gpu(rows, keys)
    for max_bytes in (512 * MIB, 64 * MIB):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = call(*tensors, max_bytes=max_bytes)
        extra = torch.cuda.max_memory_allocated() - before - found.nbytes
        assert extra <= max_bytes + 256 * MIB, f"{extra / MIB:.0f} MiB"
        del found
