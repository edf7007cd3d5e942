"""The launch of the kernels: one table of configurations on which no result depends, and bounded scratch memory."""

import math

import pytest
import torch
from places import sample, select, top_k_top_p
from rows_of import random_rows, same_bits

pytest.importorskip("triton")

from qp_kernels.qrita import checks, launch  # noqa: E402
from qp_kernels.qrita.threshold import CANDIDATE_BUFFER  # noqa: E402

pytestmark = [pytest.mark.usefixtures("place"), pytest.mark.kernels]
LIMITS = (
    {"k": 40},
    {"p": 0.9},
    {"k": 200, "p": 0.95},
    {"k": 40, "p": 0.6, "order": "joint"},
)


def everything(rows, limits):
    seeds = torch.arange(len(rows))
    drawn = {name: value for name, value in limits.items() if name != "order"}
    masks = top_k_top_p(rows, **limits), top_k_top_p(rows, **limits, ties="all")
    return *masks, *select(rows, **limits, max_candidates=30), sample(rows, **drawn, temperature=0.7, seeds=seeds)


def rows_of_every_path(vocab):
    """Families in turn, and rows whose nucleus, ties or candidates do not fit into a small buffer."""
    rng = torch.Generator().manual_seed(4)
    wide = torch.randn(2, vocab, generator=rng) * torch.tensor([[0.3], [2.5]])
    return torch.cat([random_rows(4, 13, vocab), wide, wide.half().float().round()])


@pytest.mark.parametrize("limits", LIMITS)
def test_no_result_depends_on_the_table(limits, monkeypatch):
    rows = rows_of_every_path(607)
    want = everything(rows, limits)
    config = launch.Config(capacity=24, block=512, search_block=256, warps=4, per_core=1)
    monkeypatch.setattr(launch, "TABLE", ((math.inf, config),))
    monkeypatch.setattr(launch, "RESCUE", config)
    for field, other in zip(want, everything(rows, limits), strict=True):
        assert same_bits(field, other)


def test_a_row_without_k_is_the_call_without_k():
    rows = rows_of_every_path(600)
    off = torch.full((len(rows),), 600)
    assert same_bits(top_k_top_p(rows, off, 0.9), top_k_top_p(rows, p=0.9))
    assert same_bits(top_k_top_p(rows, 50, torch.ones(len(rows))), top_k_top_p(rows, 50))


def configs():
    return [config for _, config in launch.TABLE] + [launch.RESCUE]


def test_scratch_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda device: 10_000)
    for config in configs():
        programs = launch.programs_of(torch.device("cuda"), config)
        assert 1 <= programs and programs * config.capacity * launch.CANDIDATE_BYTES <= 16 << 20


def test_the_table_goes_by_what_a_gaussian_row_leaves():
    logits = torch.zeros(1, 128_256)

    def capacity(k=None, p=None, order="k_then_p"):
        return launch.configure(128_256, checks.limits(logits, k, p, order)).capacity

    assert capacity(50) == capacity(1) == capacity(50, 0.9) < capacity(20_000) == CANDIDATE_BUFFER
    assert capacity(p=0.9) == capacity(50, 0.9, "joint") == capacity(torch.tensor([50])) == CANDIDATE_BUFFER
    assert launch.RESCUE.capacity == CANDIDATE_BUFFER


def test_fast_rows_are_contiguous_aligned_and_a_multiple_of_sixteen():
    rows = torch.zeros(4, 64)
    assert launch.is_fast(rows) and launch.is_fast(rows[1:]) and launch.is_fast(rows[:, :32])
    assert not launch.is_fast(rows[:, 1:49]) and not launch.is_fast(rows[:, :60]) and not launch.is_fast(rows.t())
    assert not launch.is_fast(torch.zeros(4, 72)[:, :64])


def test_torch_s_default_dtype_does_not_matter():
    rows = random_rows(6, 3, 601)
    arguments = {"p": torch.tensor([1.0, 0.9, 0.5], dtype=torch.float64)}
    want = top_k_top_p(rows, **arguments)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert same_bits(top_k_top_p(rows, **arguments), want)
    finally:
        torch.set_default_dtype(torch.float32)
