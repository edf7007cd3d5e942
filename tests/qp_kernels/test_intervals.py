"""Intervals: known values, coverage by simulation, limits, and what is refused."""

import numpy as np
import pytest

from qp_kernels.intervals import bootstrap, student, wilson


def test_wilson_has_the_values_of_the_formula():
    # Both ends solve |share - p| = z sqrt(p (1 - p) / n).
    for right, of in [(0, 5), (1, 5), (13, 20), (99, 100)]:
        for end in wilson(right, of):
            if 0 < end < 1:
                z = abs(right / of - end) / np.sqrt(end * (1 - end) / of)
                assert z == pytest.approx(1.959964, rel=1e-5)
    assert wilson(0, 5)[0] == 0 and wilson(5, 5)[1] == 1
    assert wilson(7, 10, level=0.5)[0] > wilson(7, 10)[0]


def test_wilson_covers_as_it_says():
    random = np.random.default_rng(0)
    shares = random.uniform(0.1, 0.9, 4000)
    found = [wilson(int(right), 30) for right in random.binomial(30, shares)]
    assert 0.94 <= np.mean([low <= p <= high for p, (low, high) in zip(shares, found)]) <= 0.96


def test_bootstrap_covers_as_it_says():
    random = np.random.default_rng(0)
    found = [bootstrap([random.normal(2.0, 1.0, 40)], draws=400, seed=i) for i in range(300)]
    assert 0.89 <= np.mean([low <= 2.0 <= high for low, high in found]) <= 0.98


def test_student_has_the_quantiles_of_the_tables():
    for n, quantile in [(2, 12.706), (3, 4.303), (12, 2.201), (31, 2.042), (1001, 1.962)]:
        values = np.random.default_rng(n).normal(0, 1, n)
        low, high = student([values])
        assert (high + low) / 2 == pytest.approx(values.mean(), abs=1e-12)
        assert (high - low) / 2 == pytest.approx(quantile * values.std(ddof=1) / np.sqrt(n), rel=3e-4)
    assert student([[1.0, 1.0], [3.0]]) == (2.0, 2.0) and student([[4.0]]) == (4.0, 4.0)
    assert student([[1.0, 2.0, 4.0]], level=0.5)[0] > student([[1.0, 2.0, 4.0]])[0]


DRAWS = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    "heavy": lambda random, shape: random.standard_t(3, shape),
    "answers": lambda random, shape: random.choice([-1.0, 0.0, 1.0], shape, p=[0.3, 0.4, 0.3]),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
@pytest.mark.parametrize("groups", [1, 4])
def test_student_claims_a_difference_of_equals_in_one_of_twenty(draw, groups):
    """12 paired differences a group, whose mean is 0: what a record of few samples holds."""
    found = [student(values) for values in draw(np.random.default_rng(0), (1500, groups, 12))]
    assert np.mean([not low <= 0 <= high for low, high in found]) <= 0.062  # 0.05 and two standard errors


def test_a_bootstrap_of_few_values_claims_twice_as_much():
    drawn = np.random.default_rng(0).normal(0, 1, (1000, 12))
    wrong = [
        np.mean([not low <= 0 <= high for low, high in found])
        for found in ([bootstrap([v], draws=400) for v in drawn], [student([v]) for v in drawn])
    ]
    assert wrong[0] > 0.08 and 0.035 < wrong[1] < 0.065


def test_every_group_counts_alike():
    random = np.random.default_rng(0)
    many, few = random.normal(0, 1, 1000), random.normal(10, 1, 20)
    low, high = bootstrap([many, few])
    assert low < (many.mean() + few.mean()) / 2 < high and 4 < low and high < 6
    assert bootstrap([many, few]) == (low, high) != bootstrap([many, few], seed=1)
    # Of 20 values t is 2.09 instead of 1.96, and a bootstrap lacks sqrt(20 / 19).
    assert student([many, few]) == pytest.approx((low, high), rel=0.05)
    narrow = bootstrap([many])
    assert narrow[1] - narrow[0] == pytest.approx(2 * 1.96 / np.sqrt(1000), rel=0.15)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: wilson(1, 0), "got 1 of 0"),
        (lambda: wilson(3, 2), "got 3 of 2"),
        (lambda: wilson(1, 2, level=1.0), r"level must be in \(0, 1\), got 1.0"),
        (lambda: bootstrap([]), "at least one value"),
        (lambda: bootstrap([[1.0], []]), "at least one value"),
        (lambda: bootstrap([[1.0, float("nan")]]), "finite"),
        (lambda: bootstrap([[1.0]], draws=0), "draws, got 0"),
        (lambda: student([]), "at least one value"),
        (lambda: student([[1.0], []]), "at least one value"),
        (lambda: student([[1.0, float("inf")]]), "finite"),
        (lambda: student([[1.0]], level=0.0), "level must be in"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
