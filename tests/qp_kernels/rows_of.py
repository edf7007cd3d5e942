"""Families of logit rows that break selections, as hypothesis strategies and as plain generators."""

import os

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
if os.environ.get("TRITON_INTERPRET") == "1":
    DTYPES = DTYPES[:2]  # the interpreter converts subnormal bfloat16 wrongly
LOWEST = float(np.finfo(np.float32).min)
SIZES = (1, 2, 3, 5, 16, 31, 33, 97, 128, 257, 1009)


def gaussian(rng, v):
    return rng.normal(0, 3, v)


def zipf(rng, v):
    return -np.log(rng.permutation(v) + 1.0) * 1.1


def few_values(rng, v):
    return rng.choice([-2.0, -0.5, 0.0, 1.0, 1.5], v)


def adjacent_floats(rng, v):
    base = np.float32(rng.normal(0, 4))
    steps = rng.integers(-3, 4, v).astype(np.int32)
    return (np.full(v, base, np.float32).view(np.int32) + steps).view(np.float32)


def subnormals(rng, v):
    return (rng.integers(-5, 6, v) * 1.4e-45).astype(np.float32)


def signed_zeros(rng, v):
    return rng.choice(np.array([0.0, -0.0, 1e-38, -1e-38], np.float32), v)


def infinities(rng, v):
    return rng.choice([np.inf, -np.inf, 0.0, 2.0, -3.0], v)


def nans(rng, v):
    return np.where(rng.random(v) < 0.4, np.nan, rng.normal(0, 2, v))


def masked(rng, v):
    mask = rng.choice([-1e4, -1e9, LOWEST, -np.inf])
    return np.where(rng.random(v) < 0.7, mask, rng.normal(0, 2, v))


def huge(rng, v):
    return rng.choice([1e9, 1e9 + 64, -1e9, 3e38, -3e38, 0.0], v)


def all_equal(rng, v):
    return np.full(v, rng.choice([0.0, -7.25, 1e9, LOWEST]))


def one_dominates(rng, v):
    row = rng.normal(0, 0.1, v)
    row[rng.integers(v)] = 60.0
    return row


def nothing(rng, v):
    return rng.choice([np.nan, -np.inf], v)


FAMILIES = (
    gaussian,
    zipf,
    few_values,
    adjacent_floats,
    subnormals,
    signed_zeros,
    infinities,
    nans,
    masked,
    huge,
    all_equal,
    one_dominates,
    nothing,
)


def tensor(array, dtype=torch.float32):
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(array, dtype=np.float32)).to(dtype)


@st.composite
def batches(draw, dtypes=DTYPES, sizes=SIZES, most=5):
    """[B, V] logits, each row of a family of its own."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    v = draw(st.sampled_from(sizes))
    families = draw(st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=most))
    rows = np.stack([np.asarray(family(rng, v), dtype=np.float32) for family in families])
    return tensor(rows, draw(st.sampled_from(dtypes)))


ks = st.one_of(st.none(), st.sampled_from([-1, 0, 1, 2, 5, 50, 10**6]), st.integers(1, 300))
ps = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]), st.floats(0, 1))
orders = st.sampled_from(["k_then_p", "joint"])


def random_rows(seed, batch, vocab):
    """[B, V] float32, families in turn."""
    rng = np.random.default_rng(seed)
    return tensor(np.stack([np.asarray(FAMILIES[i % len(FAMILIES)](rng, vocab), np.float32) for i in range(batch)]))


def same_bits(a, b):
    """Equal shape, dtype and bits: NaN equals itself, 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # The clone is one with stride 1, also where the only dimension has one entry.
    a, b = (t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b))
    return a.equal(b)
