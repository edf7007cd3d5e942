"""The batched oracle against the one of one row: it allows the same sets, and sees each kind of fault."""

import itertools
import math
import random

import numpy as np
import oracle
import oracle_torch
import pytest
import torch
from rows_of import DTYPES, FAMILIES, random_rows, tensor

from qp_kernels.qrita import philox, sample, select, top_k_top_p, truncation

ORDERS, TIES = ("k_then_p", "joint"), ("index", "all")
KS, PS = (None, -1, 0, 1, 2, 3, 5, 50), (None, 0.0, 0.2, 0.5, 0.9, 1.0)


def prefixes(row):
    """Every prefix of the row order as a mask [V + 1, V]."""
    ranked = oracle.row_order(row)
    masks = np.zeros((len(ranked) + 1, len(row)), bool)
    for n in range(len(ranked) + 1):
        masks[n, ranked[:n]] = True
    return torch.from_numpy(masks)


def is_allowed(row, mask, **limits):
    try:
        oracle.check_kept(row, np.flatnonzero(mask).tolist(), **limits)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_allows_what_the_oracle_of_one_row_allows(family):
    rng, pick = np.random.default_rng(5), random.Random(5)
    for vocab, k, p in itertools.product((1, 2, 3, 6, 11), KS, PS):
        order, ties = pick.choice(ORDERS), pick.choice(TIES)
        row = tensor(family(rng, vocab), pick.choice(DTYPES))
        flat = row.double().numpy()
        masks = torch.cat([prefixes(flat), torch.from_numpy(rng.random((4, vocab)) < 0.5)])
        limits = {"k": k, "p": p, "order": order, "ties": ties}
        code = oracle_torch.check_kept(row.expand(len(masks), vocab), masks, **limits)
        assert (code == 0).tolist() == [is_allowed(flat, mask.numpy(), **limits) for mask in masks], (row, limits)
        assert vocab < 2 or (code > 0).any()


def test_limits_of_every_row():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]]).expand(5, 4)
    kept = torch.tensor([[1, 0, 1, 0]]).bool().expand(5, 4)
    k, p = torch.tensor([2, 1, 3, 0, -7]), torch.tensor([1.0, 1.0, math.nan, 0.8, 0.5])
    assert (oracle_torch.check_kept(logits, kept, k, p) == 0).tolist() == [True, False, False, True, False]


def test_p_at_a_cumulative_mass_and_a_little_off():
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double().log().float()
    two, three = (torch.tensor([[True] * n + [False] * (4 - n)]) for n in (2, 3))
    for p, allowed in ((0.7 - 2e-6, [two]), (0.7, [two, three]), (0.7 + 2e-6, [three])):
        for mask in (two, three):
            ok = not oracle_torch.check_kept(row, mask, p=p).any()
            assert ok == any(mask is one for one in allowed), p


def faulty(out, logits, fault):
    """What the mask would be with a fault in its second row."""
    out = out.clone()
    kept = torch.nonzero(out[1] > -math.inf)[:, 0]
    if fault == "bits":
        out[1, kept[0]] += 0.5
    elif fault == "poison":
        out[1, torch.nonzero(out[1] == -math.inf)[0, 0]] = math.nan
    elif fault == "swap":
        out[1, torch.nonzero(out[1] == -math.inf)[0, 0]] = logits[1, torch.nonzero(out[1] == -math.inf)[0, 0]]
        out[1, logits[1].argmax()] = -math.inf
    elif fault == "fewer":
        out[1, kept[logits[1, kept].argmin()]] = -math.inf
    return out


@pytest.mark.parametrize("fault", ["none", "bits", "poison", "swap", "fewer"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sees_a_fault_in_one_row_of_a_mask(fault, dtype):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    out = faulty(top_k_top_p(logits, 9), logits, fault)
    code, _ = oracle_torch.check_mask(logits, out, 9)
    assert (code > 0).tolist() == [False, fault != "none", False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limits", [{"k": 7}, {"p": 0.8}, {"k": 20, "p": 0.9}, {"k": 3, "p": 0.5, "order": "joint"}])
def test_lists_of_the_package_pass_and_broken_ones_do_not(dtype, limits):
    logits = random_rows(1, 26, 300).to(dtype)
    kept = top_k_top_p(logits, **limits) > -math.inf
    found = select(logits, **limits, max_candidates=9)
    assert not oracle_torch.check_listed(logits, kept, *found).any()
    wide = int((found.count > 1).nonzero()[0])
    for field, change in (
        ("indices", lambda rows: rows[wide, :2].copy_(rows[wide, :2].flip(0).clone())),
        ("logits", lambda rows: rows[wide, 0].add_(1)),
        ("probs", lambda rows: rows[wide, 0].mul_(1.0001)),
        ("count", lambda rows: rows[wide].add_(1)),
        ("indices", lambda rows: rows[wide, -1:].fill_(0)),
    ):
        broken = found._replace(**{field: getattr(found, field).clone()})
        change(getattr(broken, field))
        code = oracle_torch.check_listed(logits, kept, *broken)
        assert code[wide] > 0 and (code > 0).sum() == 1, field


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("limits", [{}, {"k": 5}, {"p": 0.7}, {"k": 30, "p": 0.9}])
def test_tokens_of_the_package_pass_and_their_neighbours_do_not(temperature, limits):
    logits = random_rows(2, 39, 200)
    seeds = torch.arange(39)
    u = philox.uniform(seeds)
    tokens = sample(logits, **limits, temperature=temperature, seeds=seeds)
    check = {**limits, "temperature": temperature}
    assert not oracle_torch.check_token(logits, tokens, u, **check).any()
    plain = torch.randn(39, 200, generator=torch.Generator().manual_seed(1))  # no ties, no specials
    tokens = sample(plain, **limits, temperature=temperature, seeds=seeds)
    ranked = plain.sort(descending=True).indices
    place = (ranked == tokens[:, None]).int().argmax(-1)
    for step in (-1, 1):
        moved = ranked.gather(1, (place + step).clamp(0, 199)[:, None])[:, 0]
        code = oracle_torch.check_token(plain, moved, u, **check)
        other = moved != tokens
        assert (code[other] > 0).sum() >= 0.9 * other.sum() and (step < 0 or other.any())


@pytest.mark.parametrize("rule", ["sigma", "paper"])
@pytest.mark.parametrize(
    "limits", [{}, {"k": 7}, {"p": 0.8}, {"k": 20, "p": 0.9}, {"k": 3, "p": 0.5, "order": "joint"}]
)
def test_truncation_of_the_package_passes_and_broken_ones_do_not(rule, limits):
    for vocab in (300, 1009, 9001):
        logits = random_rows(vocab, 26, vocab)
        stats = truncation(logits, **limits, rule=rule)
        assert not oracle_torch.check_truncation(logits, stats, **limits, rule=rule).any()
        for field in ("mean", "threshold", "kept", "mass", "overflow"):
            values = getattr(stats, field).clone()
            values[0] = ~values[0] if field == "overflow" else (0.0 if values[0].isinf() else values[0] + 1)
            code = oracle_torch.check_truncation(logits, stats._replace(**{field: values}), **limits, rule=rule)
            assert (code > 0).nonzero().flatten().tolist() == [0], field


def test_a_batch_without_rows():
    logits = torch.empty(0, 7)
    assert oracle_torch.check_mask(logits, top_k_top_p(logits, 3), 3)[0].shape == (0,)
    assert oracle_torch.check_token(logits, torch.empty(0, dtype=torch.int64), torch.empty(0)).shape == (0,)
    assert oracle_torch.check_truncation(logits, truncation(logits, 3), 3).shape == (0,)
    assert oracle_torch.check_listed(logits, logits > 0, *select(logits, 3)).shape == (0,)
