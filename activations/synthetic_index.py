"""Queries, keys and weights of an indexer made up, with known answers. The same arguments give the same numbers.

Drawn with numpy's PCG64 on the CPU, each part by a generator of its own: an option changes only what it is about.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch

from .index_capture import DTYPES, IndexCapture

PARTS = ("queries", "weights", "keys", "topics", "drift", "needles")
# What whole numbers are at most, so that they, and sums of four queries, are exact in float8: queries and keys.
LARGEST_Q, LARGEST_K, SPREAD = 4, 7, 1.5
# Neighbouring queries that want one needle.
FINDERS = 4
# Stretches of the text on a topic, each; how sharply a query is about one; its part in a score, in sigmas of the rest.
STRETCHES, SHARPNESS, STRENGTH = 8, 3.0, 2.5


def index(
    T: int,
    N: int,
    H: int,
    D: int,
    *,
    smoothness: float = 0.9,
    seed: int,
    topics: int = 0,
    needles: int = 0,
    zeros: float | None = None,
    integers: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> IndexCapture:
    """T queries, the last ones of N keys, with H heads of D.

    Args:
        T, N, H, D: At least 1; T <= N.
        smoothness: s in [0, 1]: q[t] = s q[t-1] + sqrt(1 - s^2) noise, likewise w and the drift over topics. 0:
            independent; 1: all rows equal.
        seed: Non-negative.
        topics: The text has stretches on one of so many topics, and queries drift from one to another: scores with long
            tails, selections in clusters. `ids` are the keys' topics, meta["topic_of_query"] each row's strongest.
        needles: Keys that rows must find: the rows from start to stop, meta["found_by"][i], score the key at
            meta["needles"][i] above every key that is no needle, so that topk >= needles selects it. These rows are
            made for that, whatever the smoothness; the others know nothing of it.
        zeros: About the share of scores that are exactly 0 (without topics), in (0, 1): the relu of every head. None
            leaves 2^-H. Needs D >= 2.
        integers: Whole numbers only, q to +-4 (a shift for `zeros` aside), k to +-7 (needles to 8), w 1 to 4: all
            scores are exact, so that selections are unique.
        dtype: Of q and k: float32, or bfloat16, float16, float8_e4m3fn rounded from it.
        device: Where q, k and w go; the numbers are those of the CPU.
    Returns:
        `IndexCapture` without mass.
    Raises:
        ValueError: a number out of range. TypeError: a dtype that no indexer has.

    >>> capture = index(2, 9, 1, 4, smoothness=1, seed=0)
    >>> capture.hi.tolist(), capture.q[0].equal(capture.q[1])
    ([8, 9], True)
    """
    _check(T, N, H, D, smoothness, seed, topics, needles, zeros, dtype)
    rngs = dict(zip(PARTS, np.random.default_rng(seed).spawn(len(PARTS)), strict=True))
    q = drifting(rngs["queries"].standard_normal((T, H, D), dtype=np.float32), smoothness)
    k = rngs["keys"].standard_normal((N, D), dtype=np.float32)
    w = np.abs(drifting(rngs["weights"].standard_normal((T, H), dtype=np.float32), smoothness))
    ids, strongest = np.zeros(N, dtype=np.int64), np.zeros(T, dtype=np.int64)
    if topics:
        ids, strongest = _add_topics(q, k, topics, smoothness, rngs)
    q, k, w = _whole(q, k, w) if integers else (q, k, w)
    if zeros is not None:
        _shift(q, k, zeros, integers)
    found_by, places = _hide(q, k, w, needles, integers, rngs["needles"])
    ids[places] = max(1, topics) + np.arange(needles)
    meta = {"model": "synthetic", "layer": None, "source": "synthetic", "dtype": str(dtype).removeprefix("torch.")}
    meta |= {"rope": "none", "smoothness": float(smoothness), "seed": seed, "topics": topics, "zeros": zeros}
    meta |= {"integers": integers, "needles": places, "found_by": found_by, "topic_of_query": strongest.tolist()}
    return IndexCapture(
        q=torch.from_numpy(q).to(dtype).to(device),
        k=torch.from_numpy(k).to(dtype).to(device),
        w=torch.from_numpy(w).to(device),
        lo=torch.zeros(T, dtype=torch.int64),
        hi=torch.arange(N - T + 1, N + 1),
        positions=torch.arange(N - T, N),
        ids=torch.from_numpy(ids),
        tokens=_names(ids, max(1, topics)),
        meta=meta,
    )


def drifting(noise: np.ndarray, smoothness: float) -> np.ndarray:
    """AR(1) along the first axis, in place: each step keeps `smoothness` of the one before, and the variance."""
    fresh = math.sqrt(1 - smoothness**2)
    for t in range(1, len(noise)):
        noise[t] = smoothness * noise[t - 1] + fresh * noise[t]
    return noise


def _add_topics(q: np.ndarray, k: np.ndarray, topics: int, smoothness: float, rngs: dict) -> tuple:
    """Add directions of topics to q and k in place; the topic of each key, and each query's strongest."""
    rng, (T, N, D) = rngs["topics"], (len(q), *k.shape)
    stretches = min(N, STRETCHES * topics)
    cuts = np.sort(rng.permutation(N - 1)[: stretches - 1]) + 1
    of_stretch = rng.integers(topics, size=stretches)
    ids = of_stretch[np.searchsorted(cuts, np.arange(N), side="right")]
    directions = rng.standard_normal((topics, D)).astype(np.float32) * np.float32(math.sqrt(STRENGTH) / D**0.25)
    about = drifting(rngs["drift"].standard_normal((T, topics)), smoothness)
    share = np.exp(SHARPNESS * about)
    share /= share.sum(1, keepdims=True)
    k += directions[ids]
    for topic in range(topics):  # not a matrix product, whose order of sums is the library's own
        q += (share[:, topic, None] * directions[topic]).astype(np.float32)[:, None, :]
    return ids.astype(np.int64), share.argmax(1)


def _whole(q: np.ndarray, k: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The nearest small whole numbers."""
    q = np.clip(np.round(SPREAD * q), -LARGEST_Q, LARGEST_Q)
    k = np.clip(np.round(SPREAD * k), -LARGEST_K, LARGEST_K)
    return q + 0, k + 0, 1 + np.clip(np.round(w), 0, 3)  # + 0: no -0


def _shift(q: np.ndarray, k: np.ndarray, zeros: float, integers: bool) -> None:
    """Lower every product by the last coordinate, so that all H of a score are negative in a share `zeros`."""
    heads, width = q.shape[1:]
    sigmas = NormalDist().inv_cdf(zeros ** (1 / heads))
    unit, constant = (SPREAD**2, 3) if integers else (1.0, 4)
    lower = sigmas * unit * math.sqrt(width - 1) / constant
    q[:, :, -1], k[:, -1] = -(round(lower) if integers else lower), constant


def _hide(q: np.ndarray, k: np.ndarray, w: np.ndarray, needles: int, integers: bool, rng) -> tuple[list, list]:
    """Put needles among the keys that every row sees, and make rows that find them; (rows, positions).

    A needle has the signs of its finders' queries, in each coordinate larger than any key, so that none scores more.
    """
    T, N = len(q), len(k)
    largest = float(np.abs(k).max())
    size = largest + 1 if integers else 1.25 * largest  # beyond what any dtype here rounds away
    places = np.sort(rng.permutation(N - T + 1)[:needles]).tolist()
    found_by = []
    for i, place in enumerate(places):
        start = i * T // needles
        stop = min(start + FINDERS, (i + 1) * T // needles)
        signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=k.shape[1])
        k[place], q[start:stop] = size * signs, signs
        w[start:stop] = np.maximum(w[start:stop], 0.5)
        found_by.append([start, stop])
    return found_by, places


def _names(ids: np.ndarray, topics: int) -> list[str]:
    return [f"topic {i}" if i < topics else f"needle {i - topics}" for i in ids.tolist()]


def _check(T, N, H, D, smoothness, seed, topics, needles, zeros, dtype) -> None:
    least = {"T": (T, 1), "N": (N, 1), "H": (H, 1), "D": (D, 1), "seed": (seed, 0)}
    for name, (value, low) in {**least, "topics": (topics, 0), "needles": (needles, 0)}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{name} must be an int of at least {low}, got {value!r}")
    if T > N:
        raise ValueError(f"the T queries are the last of N keys: T must be <= N, got {T} and {N}")
    if not 0 <= smoothness <= 1:
        raise ValueError(f"smoothness must be in [0, 1], got {smoothness!r}")
    if needles > min(T, N - T + 1):
        raise ValueError(f"needles must be at most T and N - T + 1, {min(T, N - T + 1)}, got {needles}")
    if zeros is not None and not (0 < zeros < 1 and D >= 2):
        raise ValueError(f"zeros must be in (0, 1), and D >= 2, got {zeros!r} and D = {D}")
    if dtype not in DTYPES:
        raise TypeError(f"dtype must be float32, bfloat16, float16 or float8_e4m3fn, got {dtype}")
