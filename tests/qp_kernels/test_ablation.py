"""The paper's variants: each keeps what the paper promises, on a GPU and through the interpreter."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from oracle import check_kept, masses, row_order, through_ties
from rows_of import FAMILIES, random_rows, same_bits, tensor

from qp_kernels.qrita import ablation

INF = math.inf
FLOAT_MASS = 1e-5  # rounding of fp32 sums and of fp32 probabilities
DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.interpreted),
]
on_devices = pytest.mark.parametrize("device", DEVICES)
RUNS = list(ablation.RUNS.items())
runs = pytest.mark.parametrize(("name", "settings"), RUNS, ids=[name for name, _ in RUNS])
FINITE = [family for family in FAMILIES if family.__name__ not in ("infinities", "huge", "nothing")]


def run(logits, device, k=None, p=None, **settings):
    k, p = (value.to(device) if isinstance(value, torch.Tensor) else value for value in (k, p))
    return ablation.run(logits.to(device), k, p, **settings).cpu()


def kept_of(result):
    return [torch.nonzero(row > -INF)[:, 0].tolist() for row in result]


def check_values(logits, result):
    kept = result > -INF
    assert same_bits(result[kept], logits[kept]) and not result.isnan().any()


def check_float_nucleus(row, kept, k, p, duplicates):
    """A prefix by value of the k kept, whose mass is p up to fp32 rounding."""
    ranked = row_order(row)
    values = np.asarray(row, np.float64)[ranked]
    most = len(ranked) if k is None else min(k, len(ranked))
    most = most if duplicates else through_ties(values, most)
    if not len(ranked):
        assert kept == []
        return
    share = masses(row, ranked[:most])
    n = len(kept)
    assert 1 <= n <= most
    # Logits of equal fp32 probability count as ties, so it is probabilities that are the n largest.
    shares, largest = (np.exp(part - values[0]) for part in (np.sort(np.asarray(row)[kept])[::-1], values[:n]))
    np.testing.assert_allclose(shares, largest, rtol=1e-6)
    mass = np.concatenate([[0.0], np.cumsum(share)])
    if duplicates:
        assert mass[n] >= p - FLOAT_MASS and (n == 1 or mass[n - 1] < p + FLOAT_MASS)
    else:  # through the ties of the last
        last = int(np.argmax(largest <= largest[-1] * (1 + 1e-6)))
        assert mass[n] >= p - FLOAT_MASS and (last == 0 or mass[last] < p + FLOAT_MASS)


@on_devices
@runs
def test_every_run_keeps_the_k_largest(device, name, settings):
    rng = np.random.default_rng(0)
    logits = tensor(np.stack([np.asarray(family(rng, 700), np.float32) for family in FINITE]))
    for k in (1, 50, 650):
        result = run(logits, device, k, **settings)
        check_values(logits, result)
        for row, kept in zip(logits.double().numpy(), kept_of(result)):
            check_kept(row, kept, k=k, ties="index" if settings.get("duplicates", True) else "all")


@on_devices
@runs
def test_every_run_keeps_a_nucleus(device, name, settings):
    rng = np.random.default_rng(1)
    logits = tensor(np.stack([np.asarray(family(rng, 700), np.float32) for family in FINITE]))
    for k, p in ((None, 0.5), (None, 0.95), (40, 0.9)):
        result = run(logits, device, k, p, **settings)
        check_values(logits, result)
        for row, kept in zip(logits.double().numpy(), kept_of(result)):
            check_float_nucleus(row, kept, k, p, settings.get("duplicates", True))


@on_devices
@pytest.mark.parametrize("truncation", ablation.TRUNCATIONS)
@pytest.mark.parametrize("search", ablation.SEARCHES)
def test_truncations_and_searches_agree(device, truncation, search):
    logits = torch.randn(2, 1001, generator=torch.Generator().manual_seed(3)) * 2.4
    for k, p in ((50, None), (None, 0.9), (900, 0.9)):
        want = run(logits, device, k, p, truncation="off", search="sort")
        assert same_bits(run(logits, device, k, p, truncation=truncation, search=search), want)


@on_devices
def test_without_duplicate_handling_ties_stay(device):
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    assert kept_of(run(logits, device, 2)) == [[0, 1]]
    assert kept_of(run(logits, device, 2, duplicates=False)) == [[0, 1, 2, 3]]
    assert kept_of(run(logits, device, None, 0.6)) == [[0, 1]]
    assert kept_of(run(logits, device, None, 0.6, duplicates=False)) == [[0, 1, 2, 3]]
    for search in ablation.SEARCHES:
        assert kept_of(run(logits, device, 3, search=search)) == [[0, 1, 2]]
        assert kept_of(run(logits, device, 3, search=search, duplicates=False)) == [[0, 1, 2, 3]]


@on_devices
def test_per_row_arguments_and_what_is_off(device):
    logits = random_rows(2, 13, 600)[[0, 1, 2, 3, 8, 10]]
    k, p = torch.tensor([1, 0, 30, 10_000, 5, 600]), torch.tensor([0.5, 0.9, 1.0, 1.0, 0.0, 0.3])
    for settings in ({}, {"search": "sort"}, {"truncation": "closed"}, {"truncation": "off", "search": "sort"}):
        result = run(logits, device, k, p, **settings)
        for i, row in enumerate(result):
            assert same_bits(row, run(logits[i], device, int(k[i]), float(p[i]), **settings))
        assert same_bits(run(logits, device, **settings), logits.masked_fill(logits.isnan(), -INF))


@on_devices
@pytest.mark.parametrize("search", ["quaternary", "sort"])
def test_shapes_strides_and_out(device, search):
    logits = torch.randn(3, 97, generator=torch.Generator().manual_seed(5)).to(device)
    want = ablation.run(logits, 9, 0.8, search=search).cpu()
    wide = torch.full((3, 200), math.nan, device=device)
    wide[:, 1:195:2] = logits
    assert same_bits(ablation.run(wide[:, 1:195:2], 9, 0.8, search=search).cpu(), want)
    assert same_bits(ablation.run(logits.t().contiguous().t(), 9, 0.8, search=search).cpu(), want)
    out = torch.full((3, 97), math.nan, device=device)
    assert ablation.run(logits, 9, 0.8, search=search, out=out) is out and same_bits(out.cpu(), want)
    for vocab in (1, 2):
        row = torch.arange(float(vocab), device=device)
        assert ablation.run(row, None, 0.0, search=search).isfinite().sum() == 1
    assert ablation.run(torch.empty(0, 5, device=device), 2, search=search).shape == (0, 5)
    before = logits.clone()
    ablation.run(logits, 9, search=search, out=logits)
    assert logits.isfinite().sum() == 27 and not logits.equal(before)


@on_devices
def test_nothing_eligible_and_nan(device):
    logits = torch.full((2, 600), -INF)
    logits[0, ::2] = math.nan
    mixed = torch.where(torch.arange(600) % 3 == 0, math.nan, torch.linspace(0, 9, 600))[None]
    for settings in ({}, {"search": "sort"}, {"truncation": "off", "search": "sort"}, {"truncation": "miss"}):
        for k, p in ((5, None), (None, 0.5), (5, 0.5)):
            assert (run(logits, device, k, p, **settings) == -INF).all()
            assert not run(mixed, device, k, p, **settings).isnan().any()
        assert kept_of(run(mixed, device, 2, **settings)) == [[598, 599]]


@on_devices
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_beyond_the_step_limit_too_much_is_kept(device):
    row = torch.tensor([3e38, 1e9, 1e9 + 64, -3e38, 0.0])
    for settings in ({}, {"search": "binary"}, {"truncation": "off"}):
        kept = kept_of(run(row[None], device, 2, **settings))[0]
        assert {0, 2} <= set(kept) and len(kept) > 2
    assert kept_of(run(row[None], device, 2, search="sort")) == [[0, 2]]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("A", torch.float32), ("C", torch.bfloat16), ("D", torch.float16), ("H", torch.bfloat16), ("I", torch.float32)],
)
def test_full_size_on_a_gpu(name, dtype):
    generator = torch.Generator("cuda").manual_seed(7)
    logits = (torch.randn(9, 128_256, device="cuda", generator=generator) * 2.4).to(dtype)
    settings = ablation.RUNS[name]
    for k, p in ((50, None), (100_000, None), (1000, 0.9)):
        result = ablation.run(logits, k, p, **settings).cpu()
        check_values(logits.cpu(), result)
        for row, kept in zip(logits.double().cpu().numpy(), kept_of(result)):
            if p is None:
                check_kept(row, kept, k=k, ties="index" if settings.get("duplicates", True) else "all")
            else:
                check_float_nucleus(row, kept, k, p, settings.get("duplicates", True))


def test_tables_are_the_normal_distribution():
    table, normal = ablation.quantile_table(), torch.distributions.Normal(0.0, 1.0)
    assert len(table) == len(ablation.mass_table()) == 200 and (table.diff() < 0).all()
    share = torch.arange(1, 200) / 200
    torch.testing.assert_close(1 - normal.cdf(table[:-1].float()), share, atol=1e-5, rtol=0)
    # Of logits with that standard deviation, at least the share of a bucket's upper edge lies above its delta.
    row = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    weight = torch.exp(ablation.TABLE_STD * row - row * row / 2)
    for i in (0, 99, 179, 198):
        above = weight[row >= ablation.mass_table()[i]].sum() / weight.sum()
        assert above == pytest.approx((i + 1) / 200, abs=1e-4)


def test_runs_are_the_paper_s():
    assert list(ablation.RUNS) == list(ablation.RUN_NAMES) == list("ABCDEFGHIJ")
    assert len({tuple(sorted(settings.items())) for settings in ablation.RUNS.values()}) == 10


def test_blocks_by_vocabulary():
    assert ablation.blocks(100, False) == ablation.blocks(200_000, False) == ablation.UNTUNED
    chosen = [ablation.blocks(vocab) for vocab in (1, 4096, 65_536, 128_256, 2**20)]
    assert chosen[0] == chosen[1] != chosen[2] != chosen[3] == chosen[4]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"truncation": "on"}, ValueError, "truncation must be one of"),
        ({"search": "ternary"}, ValueError, "search must be one of"),
        ({"k": -2}, ValueError, "k must be >= -1"),
        ({"p": 2.0}, ValueError, "p must be in"),
        ({"out": torch.zeros(3)}, ValueError, "out must have shape"),
    ],
)
def test_arguments(options, error, message):
    with pytest.raises(error, match=message):
        ablation.run(torch.zeros(2, 3), **options)


def test_says_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="cannot run here"):
        ablation.run(torch.zeros(2, 3), 1)


def test_imports_without_triton():
    script = (
        "import sys; sys.modules['triton'] = None; from qp_kernels.qrita import ablation; print(len(ablation.RUNS))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "10", done.stderr
