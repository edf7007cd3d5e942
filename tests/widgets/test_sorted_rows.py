"""What is cached per row gives, for every setting, the numbers of `truncation` and `select` to the last bit."""

import math

import numpy as np
import pytest
import torch

from activations import synthetic
from qp_kernels.qrita import select, truncation
from widgets.sorted_rows import HIT, MISS, OVERFLOW, Outcome, Rule, SortedRows

SETTINGS = {"k": np.array([1, 3, 50, 1000, 5000, 0]), "p": np.array([0, 0.5, 0.9, 0.99, 0.99999, 1.0])}


@pytest.fixture(scope="module")
def rows():
    """Every kind of row, also with -inf, NaN and +inf, over the vocabulary from which a sample is a part."""
    rows = torch.cat([synthetic.logits(kind, 1, 20_011, seed=3) for kind in synthetic.KINDS])
    rows[1, ::7], rows[2, 5], rows[3, 8:10] = -math.inf, math.nan, math.inf
    return rows


def sorted_rows(rows):
    known = SortedRows(len(rows), rows.shape[1])
    for i, row in enumerate(rows):
        known.add(i, row)
    return known


@pytest.mark.parametrize("shift", [0.0, -300.0])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("rule", ["sigma", "paper"])
@pytest.mark.parametrize("over", ["k", "p"])
@pytest.mark.parametrize("vocab", [400, 20_011])
def test_numbers_are_those_of_truncation(rows, vocab, over, rule, temperature, shift):
    rows = rows[:, :vocab].contiguous()
    known, ids = sorted_rows(rows), list(range(len(rows)))
    rule = Rule(over, 0.15, rule, temperature, shift)
    if over == "p":
        for row in ids:
            known.weigh(row, rule)
    found, scaled = known.outcome(ids, SETTINGS[over], rule), (rows + shift) / temperature
    mean, std = known.moments(ids, rule)
    for column, setting in enumerate(SETTINGS[over].tolist()):
        stats = truncation(scaled, **{over: setting}, margin=rule.margin, rule=rule.rule)
        now = found[:, column]
        for name in ("threshold", "kept", "hit", "overflow"):
            np.testing.assert_array_equal(getattr(now, name), getattr(stats, name).numpy(), f"{name} at {setting}")
        np.testing.assert_array_equal(mean.float(), stats.mean)
        np.testing.assert_array_equal(std.float(), stats.std)
        np.testing.assert_array_equal(known.delta(ids, setting, rule).astype(np.float32), stats.delta)
        if over == "p":
            mass = [known.mass(row, now.kept[row : row + 1], rule)[0] for row in ids]
            np.testing.assert_array_equal(np.float32(mass), stats.mass)
        if over == "p" and setting < 1:
            assert known.nuclei(ids, setting, rule).tolist() == select(scaled, p=setting).count.tolist()


def test_what_the_rule_sees_is_sorted(rows):
    known, rule = sorted_rows(rows), Rule(temperature=0.3, shift=17.3)
    for i, row in enumerate(rows):
        expected = torch.sort(rule.apply(row[row > -math.inf]), descending=True).values
        np.testing.assert_array_equal(known.descending(i, rule), expected)


def test_without_room_the_newest_row_goes(rows):
    known, rule = SortedRows(2, rows.shape[1]), Rule()
    for i in (5, 7, 2):
        known.add(i, rows[i])
    assert 5 in known and 2 in known and 7 not in known
    for i in (5, 2):
        expected = truncation(rows[i], k=50)
        assert known.outcome([i], np.array([50]), rule).kept[0, 0] == int(expected.kept)


def test_a_miss_counts_before_an_overflow():
    outcome = Outcome(
        np.zeros(4),
        np.zeros(4),
        hit=np.array([False, False, True, True]),
        overflow=np.array([True, False, True, False]),
    )
    assert outcome.state.tolist() == [MISS, MISS, OVERFLOW, HIT]
