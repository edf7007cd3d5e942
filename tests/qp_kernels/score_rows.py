"""Rows of scores that break selections: families of values, each a function (rng, rows, columns) -> float32."""

import math

import numpy as np
import torch


def gaussian(rng, rows, columns):
    return torch.randn(rows, columns, generator=rng)


def few_integers(rng, rows, columns):
    return torch.randint(-3, 4, (rows, columns), generator=rng).float()


def relu_zeros(rng, rows, columns):
    """Most scores are exactly 0, as those of few heads are."""
    return (torch.randn(rows, columns, generator=rng) - 1).relu()


def all_equal(rng, rows, columns):
    return torch.full((rows, columns), -2.5)


def wild(rng, rows, columns):
    """NaN, infinities of both signs, the largest and the smallest numbers."""
    values = torch.tensor([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 1.0])
    return values[torch.randint(0, len(values), (rows, columns), generator=rng)]


def mostly_nan(rng, rows, columns):
    scores = torch.randn(rows, columns, generator=rng)
    return scores.masked_fill(torch.rand(rows, columns, generator=rng) < 0.97, math.nan)


def all_infinite(rng, rows, columns):
    return torch.tensor([-math.inf, math.inf, -math.inf, math.nan])[torch.arange(rows) % 4, None].expand(rows, columns)


def rising(rng, rows, columns):
    return torch.arange(columns).float().expand(rows, columns) - columns // 2


def falling(rng, rows, columns):
    return rising(rng, rows, columns).flip(1)


def last_bits(rng, rows, columns):
    """Neighbouring floats."""
    near = torch.tensor([1.0]).view(torch.int32) + torch.randint(0, 5, (rows, columns), generator=rng)
    return near.int().view(torch.float32) * torch.tensor([1.0, -1.0])[torch.arange(rows) % 2, None]


def subnormal(rng, rows, columns):
    return torch.randint(-40, 41, (rows, columns), generator=rng).int().abs().view(torch.float32)


def signed_zeros(rng, rows, columns):
    return torch.tensor([0.0, -0.0, -1.0])[torch.randint(0, 3, (rows, columns), generator=rng)]


def clustered(rng, rows, columns):
    """The best scores are neighbours, in one stretch that no sample hits by its share."""
    scores = torch.randn(rows, columns, generator=rng)
    start, size = columns // 3, max(1, columns // 40)
    scores[:, start : start + size] += 20
    return scores


def near(rng, rows, columns):
    """Scores fall with distance, so that the last tile has most of the best ones."""
    distance = torch.arange(columns).flip(0).float()
    return torch.randn(rows, columns, generator=rng) - torch.log1p(distance / 8)


def repeats_the_sample(rng, rows, columns):
    """Every second column is high: what a sample of pairs tells is right, but ties cross every threshold."""
    return torch.where(torch.arange(columns) % 2 == 0, 1.0, 0.0).expand(rows, columns)


def long_tail(rng, rows, columns):
    return torch.randn(rows, columns, generator=rng).exp().pow(4)


FAMILIES = (
    gaussian, few_integers, relu_zeros, all_equal, wild, mostly_nan, all_infinite, rising, falling, last_bits,
    subnormal, signed_zeros, clustered, near, repeats_the_sample, long_tail,
)  # fmt: skip


def sorted_best(scores, limit, lo=None, hi=None):
    """The best columns of each row within [lo, hi), by stable sorts in numpy: [R, limit] int32, ascending, then -1."""
    rows, columns = scores.shape
    found = np.full((rows, limit), -1, np.int32)
    for r, values in enumerate(scores.numpy()):
        first, last = (0 if lo is None else int(lo[r])), (columns if hi is None else int(hi[r]))
        place = np.arange(max(first, 0), max(0, min(last, columns)))
        place = place[~np.isnan(values[place])]
        best = np.sort(place[np.argsort(-values[place], kind="stable")[:limit]])
        found[r, : len(best)] = best
    return torch.from_numpy(found)
