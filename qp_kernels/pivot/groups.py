"""Query groups: which rows share a proxy. Numbers on the host; knows no tensor of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

PROXIES = ("mean", "first", "last")


class Group(NamedTuple):
    """Rows start .. stop - 1. first: keys [lo, hi) of the first member; hi_last: where the last member's end."""

    start: int
    stop: int
    lo: int
    hi: int
    hi_last: int


@dataclass(frozen=True)
class Groups:
    """The same of all groups, in order: int64 arrays [G]."""

    start: np.ndarray
    stop: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    hi_last: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def __iter__(self) -> Iterator[Group]:
        columns = (getattr(self, name).tolist() for name in Group._fields)
        return (Group(*fields) for fields in zip(*columns, strict=True))

    def part(self, some: slice) -> Groups:
        """Neighbouring groups, whose rows follow each other from 0 on."""
        chosen = np.zeros(len(self), bool)
        chosen[some] = True
        return self.those(chosen)

    def those(self, chosen: np.ndarray) -> Groups:
        """Some of the groups [G bool], whose rows follow each other from 0 on."""
        counts = (self.stop - self.start)[chosen]
        stop = counts.cumsum()
        return Groups(stop - counts, stop, *(getattr(self, name)[chosen] for name in ("lo", "hi", "hi_last")))

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Whether each row belongs to one of the chosen groups: [T] bool."""
        return np.repeat(chosen, self.stop - self.start)

    def are_dense(self, shortest: int) -> np.ndarray:
        """[G] bool: which take the dense path: alone, without keys, or with at most `shortest` keys."""
        return (self.stop - self.start == 1) | (self.hi - self.lo <= max(shortest, 0))


def cut(lo: Tensor, hi: Tensor, size: int) -> Groups:
    """Cut rows into groups of `size`: anew at every row whose lo differs, or whose hi is not one more, than before.

    Args:
        lo, hi: [T] int64 on the host.

    >>> import torch
    >>> [one[:2] for one in cut(torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 2, 3, 3, 4]), 2)]
    [(0, 2), (2, 3), (3, 5)]
    """
    lo, hi = lo.numpy(), hi.numpy()
    row = np.arange(len(lo))
    is_new = np.ones(len(lo), bool)
    is_new[1:] = (np.diff(lo) != 0) | (np.diff(hi) != 1)
    run = np.maximum.accumulate(np.where(is_new, row, 0)) if len(lo) else row
    start = np.flatnonzero((row - run) % size == 0)
    stop = np.append(start[1:], len(lo))[: len(start)]
    return Groups(start, stop, lo[start], hi[start], hi[stop - 1])
