"""`python -m qp_kernels.tune`: what it tries, how it chooses, what it keeps; on a GPU that it measures."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qp_kernels import tune, tune_space, tuned
from qp_kernels.qrita import configs
from qp_kernels.tune_space import STEPS, Card, fits, variations

ROOT = Path(__file__).resolve().parents[2]
CARDS = [Card("large", 132, 2_048, 65_536), Card("workstation", 84, 1_536, 65_536), Card("small", 20, 1_536, 65_536)]
SIDES = [(name, side) for name in configs.TABLE for side in configs.Line._fields]
DEFAULT = configs.Config(8, 1_024, 512, 16, 4, 64)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TUNED", str(tmp_path))
    configs.kept_for.cache_clear()
    yield tmp_path
    configs.kept_for.cache_clear()


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_candidates_are_some_and_obey_the_constraints(card, name, side):
    default, crowd = getattr(configs.TABLE[name], side), name == "many candidates"
    found = {step: variations(default, step, default=default, side=side, card=card, crowd=crowd) for step in STEPS}
    assert 5 <= sum(map(len, found.values())) <= 30
    for config in (one for step in found.values() for one in step):
        assert config != default and tuned.problem_of(config, side) is None
        assert config.warps in (4, 8, 16) and config.capacity < 2**15
        assert config.block % config.lanes == 0 and config.lanes <= config.block <= tune_space.LARGEST_BLOCK
        assert config.lanes * config.per_core <= card.threads
        assert (config.registers or 0) * config.lanes * config.per_core <= card.registers
        if side == "many":
            programs = configs.programs_of(10**6, config, card.cores)
            assert programs * config.capacity * configs.CANDIDATE_BYTES <= configs.SCRATCH_BYTES
            assert programs > card.cores * (config.per_core - 1)
        for batch in (1, 16, 132):
            cut = configs.cut_of(batch, 128_256, config, card.cores)
            assert cut.rows * cut.slices * config.lanes * cut.depth * 8 <= configs.SCRATCH_BYTES
        enough = max(tune_space.OVERFLOW, tune_space.overflow(default, tune_space.CANDIDATES[crowd]))
        assert tune_space.overflow(config, tune_space.CANDIDATES[crowd]) <= enough


def test_shapes_differ_in_warps_and_programs():
    found = variations(DEFAULT, "shape", default=DEFAULT, side="few", card=CARDS[0], crowd=False)
    shapes = [(config.warps, config.per_core) for config in found]
    assert len(set(shapes)) == len(shapes) and {4, 8} == {warps for warps, _ in shapes}  # no 16 where rows are split


def test_queues_that_would_be_too_short_do_not_fit():
    card = CARDS[0]
    assert fits(DEFAULT, DEFAULT, "many", card, False)
    assert not fits(DEFAULT._replace(depth=8), DEFAULT, "many", card, False)  # rows would be rescued
    assert not fits(DEFAULT._replace(depth=32), DEFAULT, "many", card, False)  # no scratch memory for so many programs
    assert not fits(DEFAULT._replace(per_core=9, registers=None), DEFAULT, "few", card, False)  # nor threads
    assert not fits(DEFAULT._replace(registers=72), DEFAULT, "few", card, False)  # nor registers
    assert tune_space.overflow(DEFAULT, 0) == 0 and tune_space.overflow(DEFAULT, 10**5) == 1


class Clock:
    """Times of configurations by a rule; `noise` is added the first time that one is asked for."""

    def __init__(self, rule, noise=None):
        self.rule, self.noise, self.asked = rule, noise or {}, []

    def __call__(self, config):
        time = self.rule(config) + (self.noise.get(config, 0) if config not in self.asked else 0)
        self.asked.append(config)
        return time


def steps(config, name):
    return {
        "warps": [config._replace(warps=warps) for warps in (4, 8, 16)],
        "block": [config._replace(block=block) for block in (512, 1_024, 2_048)],
    }[name]


def test_one_thing_after_another_is_varied_around_the_best():
    clock = Clock(lambda config: 100 - config.warps + config.block / 512)
    assert tune.descend(DEFAULT, clock, steps, ("warps", "block")) == DEFAULT._replace(warps=16, block=512)
    tried = [(config.warps, config.block) for config in clock.asked]
    assert tried[:5] == [(8, 1_024), (4, 1_024), (16, 1_024), (16, 512), (16, 2_048)]
    assert tried[5:] == [(8, 1_024), (16, 512)]  # once more, beside each other


def test_the_default_stays_where_it_is_hardly_slower():
    other = DEFAULT._replace(warps=4)
    for default_us, chosen in ((101.9, DEFAULT), (102.1, other)):
        clock = Clock(lambda config, us=default_us: {DEFAULT: us, other: 100.0}.get(config, 200.0))
        assert tune.descend(DEFAULT, clock, steps, ("warps",)) == chosen


def test_luck_is_not_chosen():
    lucky = DEFAULT._replace(warps=4)
    clock = Clock(lambda config: 100.0, {lucky: -50.0})
    assert tune.descend(DEFAULT, clock, steps, ("warps", "block")) == DEFAULT


def test_what_is_refused_is_not_chosen():
    clock = Clock(lambda config: 100.0 if config == DEFAULT else math.inf)
    assert tune.descend(DEFAULT, clock, steps, ("warps", "block")) == DEFAULT
    clock = Clock(lambda config: math.inf if config == DEFAULT else 100.0)
    assert tune.descend(DEFAULT, clock, steps, ("warps",)) == DEFAULT._replace(warps=4)
    assert tune.descend(DEFAULT, Clock(lambda config: math.inf), steps, ("warps",)) == DEFAULT


def few_rows_times(split, whole):
    return {(rows, is_split): times[rows - 1] for is_split, times in ((True, split), (False, whole)) for rows in (1, 2)}


def test_rows_are_split_as_long_as_it_pays(monkeypatch):
    monkeypatch.setattr(configs, "FEW_ROWS", 2)
    assert tune.few_rows_of(few_rows_times([10, 20], [20, 20.1])) == 2
    assert tune.few_rows_of(few_rows_times([10, 30], [20, 20])) == 1
    assert tune.few_rows_of(few_rows_times([10, 20.5], [20, 20])) == 2  # not worth a change
    assert tune.few_rows_of(few_rows_times([10, math.inf], [20, 20])) == 1


def test_another_table_is_used_and_given_back():
    before = configs.TABLE, configs.FEW_ROWS, configs.kept_for
    table = {name: configs.Line(DEFAULT, DEFAULT) for name in configs.TABLE}
    with pytest.raises(ZeroDivisionError), tune.using(table, 7):
        assert configs.TABLE is configs.table_for("any") is table and configs.few_rows_for("any") == 7
        raise ZeroDivisionError
    assert (configs.TABLE, configs.FEW_ROWS, configs.kept_for) == before


def test_bits_are_compared():
    zeros = torch.zeros(3)
    assert tune._same(zeros, zeros.clone()) and not tune._same(zeros, -zeros)
    assert tune._same(zeros / 0, zeros / 0)


def test_without_a_card_one_line_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    done = subprocess.run(
        [sys.executable, "-m", "qp_kernels.tune"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("no CUDA device (") and done.stderr.count("\n") == 1


@pytest.fixture
def card(monkeypatch):
    """A card whose clock likes small blocks, on which nothing runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Card, "of", classmethod(lambda cls, device: CARDS[0]))
    monkeypatch.setattr(tune.timing, "wake", lambda device: None)
    rows = torch.randn(2, 600)
    monkeypatch.setattr(tune, "_call", lambda b, v, sigma, k, p, mode, options: tune.Call(rows, k, p, mode, 1))

    def time(call, want, table, few_rows):
        config = table["k"].few if few_rows else table["k"].many
        if config.search_block == 256:
            raise tune.Refused("other bits")
        return 100.0 + config.block / 64

    monkeypatch.setattr(tune, "_time", time)
    return CARDS[0].name


def test_what_is_measured_is_kept(card, capsys):
    assert tune.main(["--lines", "k", "--dry-run"]) == 0
    assert tuned.read(card) is None and "not written" in capsys.readouterr().out
    assert tune.main(["--lines", "k"]) == 0
    said, kept = capsys.readouterr().out, tuned.kept(card)
    assert "other bits" in said and "us   +0.0%" in said
    assert all(config.block == 2 * config.lanes for config in kept.lines["k"])
    assert {name: line for name, line in kept.lines.items() if name != "k"} == {
        name: line for name, line in configs.TABLE.items() if name != "k"
    }
    assert configs.table_for(card) == kept.lines
    assert tune.main(["--lines", "k, then mass", "--quick"]) == 0  # what is kept of other lines stays
    assert tuned.kept(card).lines["k"] == kept.lines["k"]
    assert tune.main(["--reset"]) == 0 and tuned.read(card) is None
    assert tune.main(["--reset"]) == 0 and "nothing was kept" in capsys.readouterr().out


def test_off_needs_dry_run(card, monkeypatch, capsys):
    monkeypatch.setenv("QP_TUNED", "off")
    assert tune.main([]) == 2 and "QP_TUNED" in capsys.readouterr().err
    assert tune.main(["--lines", "k", "--dry-run"]) == 0


@pytest.mark.parametrize("arguments", [["--lines", "none"], ["--vocab", "0"], ["--vocab", "x"], ["--what"]])
def test_refused_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        tune.main(arguments)
    assert ended.value.code == 2


@pytest.mark.gpu
@pytest.mark.slow
def test_a_card_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(tune, "QUICK_STEPS", ("block",))
    monkeypatch.setattr(tune, "FEW_ROWS_TRIED", (1, 2))
    assert tune.main(["--quick", "--lines", "k"]) == 0
    said, name = capsys.readouterr().out, torch.cuda.get_device_properties(0).name
    assert "other bits" not in said and set(tuned.read(name)) == set(configs.TABLE)
    assert configs.table_for(name) == tuned.read(name)
