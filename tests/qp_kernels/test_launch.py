"""The launch of the kernels: one table of configurations on which no result depends, and bounded scratch memory."""

import math

import pytest
import torch
from oracle import check_kept
from places import sample, select, top_k_top_p, truncation
from rows_of import random_rows, same_bits

pytest.importorskip("triton")

from qp_kernels.qrita import checks, configs, launch  # noqa: E402

pytestmark = [pytest.mark.usefixtures("place"), pytest.mark.kernels]
LIMITS = (
    {"k": 40},
    {"p": 0.9},
    {"k": 200, "p": 0.95},
    {"k": 40, "p": 0.6, "order": "joint"},
)


def use(monkeypatch, config, *, few_rows, most=None):
    """Another table of one line: rows are split (few_rows) or not, and wide from `most` candidates on."""
    table = {name: configs.Line(config, config) for name in configs.TABLE}
    for name, value in (("TABLE", table), ("WIDE", config), ("RESCUE", config), ("FEW_ROWS", few_rows)):
        monkeypatch.setattr(configs, name, value)
    if most is not None:
        monkeypatch.setattr(configs, "most_sampled", lambda name, vocab: most)


# Queues of one place, so that most rows are rescued, and by narrowing alone; rows in many slices, in several launches.
SHORT = configs.Config(4, block=512, search_block=128, depth=1, per_core=1)
SPLIT = configs.Config(2, block=64, search_block=64, depth=4, per_core=40)
LONG = configs.Config(4, block=128, search_block=256, depth=8, per_core=1)


def everything(rows, limits):
    seeds = torch.arange(len(rows))
    drawn = {name: value for name, value in limits.items() if name != "order"}
    masks = top_k_top_p(rows, **limits), top_k_top_p(rows, **limits, ties="all")
    return *masks, *select(rows, **limits, max_candidates=30), sample(rows, **drawn, temperature=0.7, seeds=seeds)


def rows_of_every_path(vocab):
    """Families in turn, and rows whose nucleus, ties or candidates do not fit into a small buffer."""
    rng = torch.Generator().manual_seed(4)
    wide = torch.randn(2, vocab, generator=rng) * torch.tensor([[0.3], [2.5]])
    return torch.cat([random_rows(4, 4, vocab), wide, wide[1:].half().float().round()])


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("config, few_rows", [(SHORT, 0), (SPLIT, 99)])
def test_no_result_depends_on_the_table(limits, config, few_rows, monkeypatch):
    rows = rows_of_every_path(607)
    want = everything(rows, limits)
    use(monkeypatch, config, few_rows=few_rows)
    for field, other in zip(want, everything(rows, limits), strict=True):
        assert same_bits(field, other)


@pytest.mark.parametrize("limits, ties", [({"k": 300}, "all"), ({"p": 0.9}, "index"), ({"k": 200, "p": 0.95}, "all")])
def test_wide_rows(limits, ties, monkeypatch):
    """Rows that would leave too many candidates: the cut is looked for around where it is expected."""
    rows = rows_of_every_path(1031)
    use(monkeypatch, LONG, few_rows=0, most=8)
    check_masks(rows, top_k_top_p(rows, **limits, ties=ties), **limits, ties=ties)
    in_place = rows.clone()
    top_k_top_p(in_place, **limits, ties=ties, out=in_place)
    assert same_bits(in_place, top_k_top_p(rows, **limits, ties=ties))
    use(monkeypatch, SHORT, few_rows=0, most=8)
    assert same_bits(in_place, top_k_top_p(rows, **limits, ties=ties))


@pytest.mark.parametrize("few_rows", [0, 99])
def test_the_mass_below_a_threshold_at_the_maximum(few_rows, monkeypatch):
    """t is +inf beside entries that are, or the maximum itself while 1 / T is +inf: what is below it weighs nothing."""
    use(monkeypatch, LONG, few_rows=few_rows)
    infinite = torch.tensor([3e38, -3e38]).repeat(2048)
    infinite[torch.arange(10) * 100 + 7] = math.inf
    check_masks(infinite[None], top_k_top_p(infinite[None], p=0.9), p=0.9)
    assert int(select(infinite, p=0.9, max_candidates=16).count) == 9
    drawn = {int(sample(infinite, p=p, seeds=torch.tensor(5))) for p in (None, 0.95)}
    assert all(infinite[token] == math.inf for token in drawn)

    highest = torch.tensor([1.0, -1.0]).repeat(8192)
    t = float(truncation(highest, p=1e-9).threshold)
    highest[130:140] = t  # between the runs of the sample
    assert float(truncation(highest, p=1e-9).threshold) == t and t == highest.max()
    for p in (None, 0.9):
        assert 130 <= int(sample(highest, p=p, temperature=1e-300, seeds=torch.tensor(5))) < 140


def test_more_candidates_than_a_search_counts(monkeypatch):
    """Slices can hold more than 2**15 together: such a row is searched as a whole."""
    row = torch.randn(1, 40_064, generator=torch.Generator().manual_seed(6)) * 0.3
    use(monkeypatch, SPLIT._replace(depth=512), few_rows=99, most=1e9)
    monkeypatch.setattr(configs, "cut_of", lambda *_: configs.Cut(slices=2, size=20_096, depth=512, rows=1))
    check_masks(row, top_k_top_p(row, k=33_000), k=33_000)


def check_masks(rows, masks, **limits):
    for row, mask in zip(rows, masks, strict=True):
        kept = torch.nonzero(mask > -math.inf)[:, 0]
        check_kept(row.double().numpy(), kept.tolist(), **limits)
        assert same_bits(mask[kept], row[kept])


def test_a_row_without_k_is_the_call_without_k():
    rows = rows_of_every_path(600)
    off = torch.full((len(rows),), 600)
    assert same_bits(top_k_top_p(rows, off, 0.9), top_k_top_p(rows, p=0.9))
    assert same_bits(top_k_top_p(rows, 50, torch.ones(len(rows))), top_k_top_p(rows, 50))


@pytest.mark.parametrize("batch", [1, 7, 16, 64, 132, 256, 1024, 5000])
@pytest.mark.parametrize("vocab", [1, 601, 32_000, 128_256, 262_144, 2**21])
def test_cuts_cover_every_row_within_the_scratch_memory(batch, vocab):
    for _, config in configs.TABLE.values():
        cut = configs.cut_of(batch, vocab, config, 132)
        assert cut.slices * cut.size >= vocab > (cut.slices - 1) * cut.size and cut.size % (2 * config.block) == 0
        assert 1 <= cut.rows <= batch and cut.slices <= max(configs.SLICES, -(-vocab // configs.SLICE))
        assert cut.rows * cut.slices * config.lanes * cut.depth * configs.CANDIDATE_BYTES <= 16 << 20
        assert cut.depth == config.depth or cut.slices > 1 and cut.depth * config.lanes == configs.SLICE_PLACES


def test_programs_share_the_scratch_memory():
    assert configs.SCRATCH_BYTES == 16 << 20
    for config in (*(line.many for line in configs.TABLE.values()), configs.WIDE, configs.RESCUE):
        n = configs.programs_of(10**6, config, 10_000)
        assert 1 <= n and n * config.capacity * configs.CANDIDATE_BYTES <= 16 << 20
        # A search counts in fields of 15 bits; a block of lanes has one place for every one.
        assert config.capacity < 2**15 and config.block % config.lanes == 0


def test_few_rows_are_split():
    few = configs.TABLE["k, then mass"].few
    assert configs.cut_of(1, 128_256, few, 132).slices > 16 > configs.cut_of(64, 128_256, few, 132).slices > 4
    assert configs.cut_of(1024, 128_256, few, 132).slices == 1
    # One launch holds all of the rows that are split.
    for line in configs.TABLE.values():
        assert all(configs.cut_of(batch, 128_256, line.few, 132).rows == batch for batch in (1, 16, 64, 132, 256))


def test_the_table_goes_by_what_a_gaussian_row_leaves():
    logits = torch.zeros(1, 128_256)

    def name(k=None, p=None, order="k_then_p"):
        limits = checks.limits(logits, k, p, order)
        return configs.line_name(128_256, limits, limits.has_p)

    assert name(50) == name(1) == "k" and name(50, 0.9) == "k, then mass"
    assert name(p=0.9) == name(p=0.9, order="joint") == "mass"
    assert name(20_000) == name(50, 0.9, "joint") == name(torch.tensor([50])) == "many candidates"


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
