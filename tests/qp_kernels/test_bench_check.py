"""What the bench takes for right: the package's results, not others; the tests' oracle agrees on random sets."""

import math

import oracle_torch
import pytest
import torch
from rows_of import random_rows

from qp_kernels.bench import check
from qp_kernels.qrita import sample, select, top_k_top_p

INF = math.inf
LIMITS = [(7, None), (None, 0.9), (20, 0.9), (5000, 0.5), (None, 0.0), (1, 0.3), (20, 1.0)]


@pytest.mark.parametrize(("k", "p"), LIMITS)
def test_what_the_package_gives_is_right(k, p):
    logits = random_rows(1, 26, 257)
    mask = top_k_top_p(logits, k, p)
    assert check.wrong_rows("mask", mask, logits, k, p) == 0
    assert check.wrong_rows("kept", mask > -INF, logits, k, p) == 0
    assert check.wrong_rows("tokens", sample(logits, k, p, seeds=torch.arange(26)), logits, k, p) == 0
    finite = torch.randn(9, 257)
    assert check.wrong_rows("candidates", select(finite, k, p, max_candidates=257), finite, k, p) == 0


@pytest.mark.parametrize(("k", "p"), LIMITS)
def test_the_tests_oracle_agrees_on_right_and_wrong_sets(k, p):
    generator = torch.Generator().manual_seed(0)
    logits = random_rows(2, 39, 128)
    kept = top_k_top_p(logits, k, p) > -INF
    for flips in (0, 1, 2):
        changed = kept.clone()
        for _ in range(flips):
            places = torch.randint(128, (len(kept), 1), generator=generator)
            changed.scatter_(1, places, ~changed.gather(1, places))
        want = oracle_torch.check_kept(logits, changed, k, p) > 0
        assert check.wrong_rows("kept", changed, logits, k, p) == int(want.sum())


def test_rows_are_checked_in_parts(monkeypatch):
    logits = random_rows(3, 13, 100)
    kept = top_k_top_p(logits, 3) > -INF
    kept[[2, 12]] ^= True
    monkeypatch.setattr(check, "ENTRIES_AT_ONCE", 250)
    assert check.wrong_rows("kept", kept, logits, 3, None) == 2


def test_ties_values_lists_and_tokens_that_are_wrong():
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]])
    masked = torch.full_like(logits, -INF)
    masked[0, 1], masked[0, 2] = 3.0, 1.0  # the first of the three 1.0 must stay
    assert check.wrong_rows("mask", masked, logits, 2, None) == 1
    masked = top_k_top_p(logits, 2)
    assert check.wrong_rows("mask", masked * 2, logits, 2, None) == 1
    assert check.wrong_rows("mask", torch.full_like(logits, math.nan), logits, 2, None) == 1
    found = select(logits, 2)
    for wrong in (
        found._replace(indices=found.indices.flip(-1)),
        found._replace(probs=found.probs * 1.1),
        found._replace(count=found.count + 1),
    ):
        assert check.wrong_rows("candidates", wrong, logits, 2, None) == 1
    assert check.wrong_rows("tokens", torch.tensor([2]), logits, 2, None) == 1
    assert check.wrong_rows("probs", logits.softmax(-1), logits, 2, None) == 1
