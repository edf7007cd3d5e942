"""`sample`: the inverse of the cumulative mass, at Triton's random numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import TOLERANCE, allowed_counts, masses, row_order
from places import sample, truncation
from rows_of import batches, ks, ps, random_rows

from qp_kernels.qrita import checks
from qp_kernels.qrita.philox import uniform
from qp_kernels.qrita.reference import draw_at

pytestmark = pytest.mark.usefixtures("place")

temperatures = st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1.5, 40.0, 1e30])


def check(row, token, u, temperature, **limits):
    """The token is allowed: for some kept prefix, u falls into its interval, give or take the tolerance."""
    row = np.asarray(row, dtype=np.float64)
    ranked = row_order(row)
    if not len(ranked):
        assert token == -1
        return
    if temperature == 0:
        assert token == ranked[0]
        return
    place = ranked.tolist().index(token)
    for count in allowed_counts(row, **limits, temperature=temperature):
        mass = np.cumsum(masses(row, ranked[:count], temperature))
        if place < count and (place == 0 or mass[place - 1] <= u + TOLERANCE) and mass[place] > u - TOLERANCE:
            return
    raise AssertionError(f"token {token} at place {place} for u = {u}")


@given(batches(), ks, ps, temperatures, st.integers(-(2**63), 2**63 - 1))
def test_inverse_of_the_cumulative_mass(logits, k, p, temperature, first):
    seeds = torch.tensor([first]) + torch.arange(len(logits)) * 7919
    tokens = sample(logits, k, p, temperature=temperature, seeds=seeds)
    assert tokens.dtype == torch.int64 and tokens.shape == (len(logits),)
    for row, token, u in zip(logits, tokens.tolist(), uniform(seeds).tolist()):
        check(row.double().numpy(), token, u, temperature, k=k, p=p)


@given(batches(most=4), st.data())
def test_per_row_arguments_equal_one_row_calls(logits, data):
    b = len(logits)
    heat = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=b, max_size=b))
    k = data.draw(st.lists(st.sampled_from([0, 1, 9]), min_size=b, max_size=b))
    p = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=b, max_size=b))
    seeds = torch.arange(b) + 5
    tokens = sample(logits, torch.tensor(k), torch.tensor(p), temperature=torch.tensor(heat), seeds=seeds)
    for i in range(b):
        one = sample(logits[i], k[i], p[i], temperature=heat[i], seeds=seeds[i])
        assert one.shape == () and int(one) == int(tokens[i])


@pytest.mark.big
@pytest.mark.parametrize(
    ("k", "p", "temperature"), [(None, None, 1.0), (3, None, 1.0), (None, 0.8, 0.7), (4, 0.9, 2.0)]
)
def test_frequencies(k, p, temperature):
    """Chi-square of 20,000 draws over the kept tokens, at a one-in-a-million level."""
    quantile = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9}  # of chi-square at 1 - 1e-6, by degrees of freedom
    row = torch.tensor([0.3, -1.0, 2.0, 1.1, 2.0, -math.inf, 0.0])
    draws = 20_000
    tokens = sample(row.expand(draws, -1), k, p, temperature=temperature, seeds=torch.arange(draws))
    (count,) = allowed_counts(row.numpy(), k, p, temperature=temperature)
    order = row_order(row.numpy())[:count]
    seen = torch.bincount(tokens, minlength=7).numpy()
    assert seen.sum() == seen[order].sum() == draws
    want = masses(row.numpy(), order, temperature) * draws
    chi_square = float(((seen[order] - want) ** 2 / want).sum())
    assert chi_square < quantile[count - 1]


@pytest.mark.plain
@pytest.mark.parametrize("u", [0.0, 0.2499, 0.25, 0.5, 0.625, 0.75, 0.999])
def test_cumulative_mass_must_exceed_u(u):
    flat, shared = torch.zeros(4), torch.tensor([0.0, math.inf, 5.0, math.inf])
    for row, tokens in ((flat, [0, 1, 2, 3]), (shared, [1, 1, 3, 3])):
        drawn = draw_at(row[None], checks.limits(row, None, None), None, torch.tensor([u]))
        assert drawn.tolist() == [tokens[int(u * 4)]]


def test_equal_row_and_seed_give_the_equal_token():
    rows = random_rows(2, 13, 211)
    seeds = torch.arange(13) * 1_000_003
    tokens = sample(rows, 40, 0.95, temperature=0.8, seeds=seeds)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    shuffled = sample(rows[order].t().contiguous().t(), 40, 0.95, temperature=0.8, seeds=seeds[order])
    assert shuffled.equal(tokens[order])
    assert sample(rows.repeat(3, 1), 40, 0.95, temperature=0.8, seeds=seeds.repeat(3)).equal(tokens.repeat(3))


def test_temperature_zero_is_the_argmax():
    rows = torch.tensor([[1.0, 3.0, 3.0], [math.nan, -5.0, -math.inf], [math.inf, 1.0, math.inf], [0.0, -0.0, -1.0]])
    assert sample(rows, temperature=0).tolist() == [1, 1, 0, 0]
    assert sample(rows, 2, 0.5, temperature=torch.zeros(4)).tolist() == [1, 1, 0, 0]


def test_division_by_the_temperature_makes_no_ties_and_no_overflow():
    near = torch.tensor([1.0, 1.0 + 2**-23])
    for seed in range(50):  # in fp32 both quotients would be equal, or infinite
        assert int(sample(near, temperature=1e-9, seeds=torch.tensor(seed))) == 1
        assert int(sample(torch.tensor([1e30, 3e38]), temperature=1e-5, seeds=torch.tensor(seed))) == 1


def test_nothing_eligible_gives_minus_one():
    rows = torch.tensor([[math.nan, -math.inf], [0.0, -math.inf]])
    for limits in ({}, {"k": 1}, {"p": 0.5}, {"temperature": 0.0}):
        assert sample(rows, **limits, seeds=torch.tensor([3, 4])).tolist() == [-1, 0]
    assert sample(torch.empty(0, 4), 2).shape == (0,)
    assert sample(torch.tensor([math.nan])).tolist() == -1


@pytest.mark.big
def test_tokens_without_weight_are_never_drawn():
    row = torch.full((500,), -1e4)
    row[77] = 0.0
    assert set(sample(row.expand(300, -1), seeds=torch.arange(300)).tolist()) == {77}


@pytest.mark.plain
def test_generator():
    rows = random_rows(1, 6, 50).nan_to_num(nan=0.0)
    one, two = (torch.Generator().manual_seed(9) for _ in range(2))
    first = sample(rows, generator=one)
    assert sample(rows, generator=two).equal(first)
    draws = torch.stack([sample(rows, generator=one) for _ in range(20)])
    assert (draws != first).any()
    torch.manual_seed(4)
    default = sample(rows)
    torch.manual_seed(4)
    assert sample(rows).equal(default)
    assert sample(rows, seeds=torch.arange(6), generator=one).equal(sample(rows, seeds=torch.arange(6)))


@pytest.mark.big
def test_flat_row_of_a_model_size():
    """Nothing is cut, and the sorted head is not enough for most draws."""
    row = torch.randn(50_257, generator=torch.Generator().manual_seed(2)) * 0.2
    seeds = torch.arange(12)
    tokens = sample(row.expand(12, -1), seeds=seeds)
    for token, u in zip(tokens.tolist(), uniform(seeds).tolist()):
        check(row.numpy(), token, u, 1.0)


def test_as_many_candidates_as_k_asks_for():
    """The threshold leaves exactly k entries: the mass below it is no part of what is kept."""
    row = torch.full((1, 600), -1.5)
    row[0, 77], row[0, 300] = -1.4, -1.39
    assert int(truncation(row, 2).kept) == 2
    for seed in range(20):
        assert int(sample(row, 2, seeds=torch.tensor([seed]))) in (77, 300)


def test_arguments_of_any_stride():
    rows = random_rows(5, 13, 97)
    seeds, heat = torch.arange(26)[::2], torch.tensor([0.5, 2.0]).repeat(13)[::2]
    tokens = sample(rows, 9, 0.9, temperature=heat, seeds=seeds)
    assert tokens.equal(sample(rows, 9, 0.9, temperature=heat.contiguous(), seeds=seeds.contiguous()))
    k, p = torch.tensor([9]).expand(13), torch.tensor([0.9], dtype=torch.float64).expand(13)
    one_seed = torch.tensor([7]).expand(13)
    assert sample(rows, k, p, seeds=one_seed).equal(sample(rows, 9, 0.9, seeds=one_seed.contiguous()))


def test_any_finite_temperature():
    """Beyond 1e37 all finite logits weigh the same, and +inf still wins."""
    row = random_rows(0, 1, 211)
    seeds = torch.arange(9)
    tokens = sample(row.expand(9, -1), temperature=1e300, seeds=seeds)
    order = torch.from_numpy(row_order(row[0].numpy()))
    assert tokens.equal(order[(uniform(seeds).double() * 211).long()])
    row[0, 5] = math.inf
    for temperature in (1e-45, 1e37, 1e300):
        assert sample(row, 10, 0.9, temperature=temperature, seeds=torch.tensor([3])).tolist() == [5]
