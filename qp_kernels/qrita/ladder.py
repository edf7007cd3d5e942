"""The values of a row as a ladder: what stands at or above any bound is a look-up, so a traced search step is cheap.

Also the sortable keys of bit space: int32 images of fp32 values, in the same order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import reference

INF = math.inf


class Ladder(NamedTuple):
    """The distinct values of what is searched, ascending, and the amount at or above each."""

    logits: np.ndarray  # [n] float64
    points: np.ndarray  # [n] the same in the space's units: float64 logits or int64 keys
    times: np.ndarray  # [n] int64, how often each stands there
    weights: np.ndarray  # [n] int64, the weight of one such entry: 1, or its mass
    counts: np.ndarray  # [n + 1] int64, entries at or above each value, then 0
    above: np.ndarray  # [n + 1] int64, their weight

    @classmethod
    def build(cls, logits: np.ndarray, times: np.ndarray, space: str) -> Ladder:
        """A ladder of counts: every entry weighs 1."""
        points = logits if space == "value" else sortable_keys(logits)
        counts = _from_the_top(times)
        return cls(logits, points, times, np.ones_like(times), counts, counts)

    def cut(self, point: float, ties: int) -> Ladder:
        """Only what is above a point of the ladder, and the first `ties` entries equal to it."""
        place = self.place(point)
        times = self.times[place:].copy()
        times[0] = ties
        return self._replace(
            logits=self.logits[place:],
            points=self.points[place:],
            times=times,
            weights=self.weights[place:],
            counts=_from_the_top(times),
            above=_from_the_top(times * self.weights[place:]),
        )

    def weigh(self, top: float, vocab: int) -> Ladder:
        """The same with fixed-point masses as weights; `top` is the row's maximum."""
        keys = torch.from_numpy((0.0 - self.logits).astype(np.float32))
        weights = reference.fixed_weights(keys, torch.tensor([top], dtype=torch.float32), vocab).numpy()
        return self._replace(weights=weights, above=_from_the_top(self.times * weights))

    def place(self, bound: float) -> int:
        """Index of the smallest value at or above a bound."""
        return int(np.searchsorted(self.points, bound))


def distinct(keys: Tensor, cut: float, space: str) -> Ladder:
    """The eligible logits at or above the cut, from keys = -logit."""
    logits = (0.0 - keys.numpy()).ravel()  # 0 - x: -0.0 and 0.0 are one value
    chosen = logits[(logits >= cut) & (logits > -INF)]
    chosen.sort()
    first = np.flatnonzero(np.append(True, chosen[1:] != chosen[:-1])[: len(chosen)])
    return Ladder.build(chosen[first].astype(np.float64), np.diff(first, append=len(chosen)), space)


def _from_the_top(amounts: np.ndarray) -> np.ndarray:
    """[n + 1]: the sum of each entry and all after it, then 0."""
    return np.append(amounts[::-1].cumsum()[::-1], 0)


def sortable_keys(logits: np.ndarray) -> np.ndarray:
    """int64 keys in the range of int32 that order as float32 values do: the bits, with those of negatives flipped.

    >>> sortable_keys(np.array([-2.0, -1.0, 0.0, 1.0])).tolist()
    [-1073741825, -1065353217, 0, 1065353216]
    """
    bits = (np.asarray(logits, np.float32) + np.float32(0.0)).view(np.int32)  # -0.0 becomes 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)


def key_to_logit(key: int) -> float:
    """The float32 value of a key; inf for the key after inf's, which bounds an interval and is no number.

    >>> key_to_logit(int(sortable_keys(np.array([-3.5]))[0]))
    -3.5
    """
    key = np.int32(min(key, 0x7F800000))
    return float((key ^ ((key >> 31) & np.int32(0x7FFFFFFF))).view(np.float32))
