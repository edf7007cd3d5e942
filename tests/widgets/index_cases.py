"""Captures on whole numbers for tests of the panels on an indexer; `capture` and `layers` of conftest.py are such."""

from activations import synthetic

N = 600


def made(seed=1, T=32, n_keys=N, H=2, **more):
    return synthetic.index(T, n_keys, H, 16, seed=seed, topics=5, integers=True, **more)
