"""The sample checks the Gaussian threshold: rows of other shapes are decided at the first read, and a sample that lies
costs time, not exactness."""

import math

import pytest
import torch
from oracle import check_kept
from places import QritaProcessor, sample, select, top_k_top_p
from rows_of import same_bits

pytest.importorskip("triton")

from qp_kernels.qrita import checks, configs, launch, reference, truncation  # noqa: E402
from qp_kernels.qrita.threshold import RUN, RUNS  # noqa: E402

pytestmark = [pytest.mark.usefixtures("place"), pytest.mark.kernels]
VOCAB = 20_032


def normal(seed=0):
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2.5


def uniform():
    """No entry is as far above the mean as a Gaussian row's 50th."""
    return torch.rand(VOCAB, generator=torch.Generator().manual_seed(1)) * 8


def masked(value, left):
    row = torch.full((VOCAB,), value)
    row[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))[:left]] = normal()[:left]
    return row


def heavy():
    """Far more entries above the threshold for p than a Gaussian row with this standard deviation has; few count."""
    row = torch.empty(VOCAB).exponential_(generator=torch.Generator().manual_seed(3)) * 2.0
    row[::97] += 6
    return row


def lying(low):
    """The sample is unlike the rest of the row."""
    row = normal() + low
    starts = torch.arange(RUNS) * (VOCAB // RUNS)
    row[(starts[:, None] + torch.arange(RUN)).flatten()] -= low
    return row


def flags(rows, what=launch.MASK, *, split, wide=False, **limits):
    """Which rows the first kernels, and (wide) `wide_kernel`, leave, by flag."""
    rows = rows.to(torch.device("cuda") if torch.cuda.is_available() else "cpu")
    out = torch.empty_like(rows)
    call = launch.Call(rows, checks.limits(rows, limits.get("k"), limits.get("p")), 1.0, out, what, 1, None, ())
    call.place()
    call.split() if split else call.whole()
    if wide:
        call.wide()
    return call.missed.tolist()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "row, k",
    [
        (uniform(), 50),
        (masked(-math.inf, 300), 50),
        (masked(-math.inf, 30), 50),
        (masked(-3e38, 60), 50),
        (normal(), 50),
    ],
    ids=["uniform", "masked", "few-left", "masked-low", "normal"],
)
def test_one_read_decides_rows_of_other_shapes(row, k, split):
    assert flags(row[None], k=k, split=split) == [0]
    check(row[None], k=k)


def test_the_gaussian_threshold_alone_would_miss_them():
    rows = torch.stack([uniform(), masked(-math.inf, 300)])
    assert not truncation(rows, 50, backend="torch").hit.any()


def test_a_heavy_row_is_decided_from_a_higher_threshold(monkeypatch):
    monkeypatch.setattr(configs, "most_sampled", lambda name, vocab: 400)
    row = heavy()[None]
    assert int(truncation(row, p=0.5, backend="torch").kept) > 1_000
    assert flags(row, p=0.5, split=False) == [0]
    check(row, p=0.5)


@pytest.mark.parametrize("low", [-20.0, 20.0])
@pytest.mark.parametrize(
    "limits", [{"k": 50}, {"k": 2000}, {"p": 0.9}, {"k": 50, "p": 0.9}, {"k": 50, "p": 0.9, "order": "joint"}]
)
def test_a_sample_that_lies(low, limits):
    check(lying(low)[None], **limits)


@pytest.mark.parametrize("limits", [{"p": 0.9}, {"k": 3000}])
def test_a_cut_deep_in_the_row_is_found_around_where_it_is_expected(limits, monkeypatch):
    """And the list of what is kept agrees with it, though another kernel makes it."""
    monkeypatch.setattr(configs, "most_sampled", lambda name, vocab: 200)
    far = normal(4)
    far[5_000] = 60.0  # weights cannot be in units of what the sample holds
    rows = torch.stack([normal(3), normal(4).half().float(), normal(5) * 0.4, far, uniform()])
    assert min(flags(rows[:3], split=False, **limits)) > 0
    assert flags(rows[:3], split=False, wide=True, **limits) == [0, 0, 0]
    kept = check(rows, **limits)
    assert select(rows, **limits, max_candidates=20).count.tolist() == kept
    short = configs.Config(4, block=512, search_block=128, depth=1, per_core=1)
    want = top_k_top_p(rows, **limits)
    monkeypatch.setattr(configs, "WIDE", short)  # no window fits: all are rescued
    assert same_bits(top_k_top_p(rows, **limits), want)


@pytest.mark.parametrize("vocab", [513, 8192, 128_256, 2**18, 2**20, 2**21, 2**24, 2**27])
def test_masses_in_units_of_the_sample_fit_64_bits(vocab):
    """All entries may weigh what the unit weighs, and rounding them down loses less than what is promised."""
    fixed, bits = reference.fixed_point(vocab), launch.unit_bits(vocab)
    assert bits >= 0 and vocab * fixed <= 2**62
    assert vocab * 2**bits / fixed <= max(2**-21, vocab / fixed)


def test_no_unit_beyond_the_largest_number():
    """T = 1e37 on logits near it: what the sample would weigh in is infinite."""
    rows = 2.8e38 + 1e37 * normal()[None] / 2.5
    drawn = sample(rows, p=0.9, temperature=1e37, seeds=torch.tensor([3]))
    assert int(drawn) >= 0
    kept = torch.nonzero(hot(rows, 1e37)[0] > -math.inf)[:, 0]
    check_kept((rows[0] / 1e37).double().numpy(), kept.tolist(), p=0.9)


def test_equal_maxima_at_a_temperature_near_zero():
    """1 / T is infinite: what equals the maximum weighs as much as it, and nothing else does."""
    rows = (torch.arange(8000) % 2).float()[None]
    assert int((hot(rows, 1e-300) > -math.inf).sum()) == 3600


def hot(rows, temperature):
    return QritaProcessor(p=0.9, temperature=temperature)(None, rows.clone())


def test_p_as_a_number_and_as_a_tensor_are_weighed_alike():
    """The sample is asked the same, so that the same row is cut from the same threshold."""
    rows = torch.stack([normal(6), heavy(), normal(7) * 1.4])
    rows = rows.to(torch.device("cuda") if torch.cuda.is_available() else "cpu")
    found = []
    for p in (0.9, torch.full((3,), 0.9, dtype=torch.float64, device=rows.device)):
        call = launch.Call(rows, checks.limits(rows, None, p), 1.0, torch.empty_like(rows), launch.MASK, 1, None, ())
        call.place()
        found.append((call.places[:, :1], call.missed))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)
    assert found[0][1].tolist() == found[1][1].tolist()


def check(rows, **limits):
    masks, kept = top_k_top_p(rows, **limits), []
    for row, mask in zip(rows, masks, strict=True):
        kept.append(torch.nonzero(mask > -math.inf)[:, 0].tolist())
        check_kept(row.double().numpy(), kept[-1], **limits)
    return [len(row) for row in kept]
