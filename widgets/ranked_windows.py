"""Windows of queries whose keys are ranked: the one scan that a panel on an indexer needs, in steps, and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from qp_kernels.pivot.ranking import Ranking, rank_keys
from widgets.index_source import Layer

WINDOW = 64  # queries that are looked at together
GROUPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)  # sizes that the lines over g are drawn at
# Scores and products that a step of the scan makes; ranked windows that are kept.
STEP_SCORES, STEP_PRODUCTS, KEPT_BYTES = 1 << 22, 1 << 31, 1 << 30


def window_of(query: int, count: int) -> range:
    """The rows that a query is compared with: the 64 of its block, or the last ones."""
    start = min(query // WINDOW * WINDOW, max(count - WINDOW, 0))
    return range(start, min(start + WINDOW, count))


@dataclass(frozen=True, eq=False)
class Ranked:
    """A window of T queries whose N keys are ranked.

    Attributes:
        rows: Which queries of the layer. rank, equal, count, scores: As `Ranking` has them, as arrays.
        lo, hi, positions: [T] int64 of these queries.
    """

    rows: range
    rank: np.ndarray
    equal: np.ndarray
    count: np.ndarray
    scores: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, capture, rows: range, parts: list[Ranking]) -> Ranked:
        """From rankings of the rows, in order."""
        arrays = {name: torch.cat([getattr(part, name).cpu() for part in parts]).numpy() for name in Ranking._fields}
        here = slice(rows.start, rows.stop)
        return cls(rows, **arrays, **{name: getattr(capture, name)[here].numpy() for name in ("lo", "hi", "positions")})

    @property
    def nbytes(self) -> int:
        return self.rank.nbytes + self.equal.nbytes + self.scores.nbytes

    @cached_property
    def alike(self) -> int:
        """How many queries score all their keys alike."""
        inside = np.arange(self.equal.shape[1]) < self.count[:, None] - 1
        return int(((self.equal & inside).sum(1) == self.count - 1).sum() - (self.count == 1).sum())

    @cached_property
    def step(self) -> int:
        """Tokens between neighbouring queries of one sequence: the smallest distance, 0 without a neighbour."""
        apart = np.diff(self.positions)[self.lo[1:] == self.lo[:-1]]
        apart = apart[apart > 0]
        return int(apart.min()) if len(apart) else 0


class Key(NamedTuple):
    """Which window: the layer's name, its first row, and the back-end that made the scores."""

    layer: str
    first: int
    backend: str


class RankedWindows:
    """The windows that were ranked last, as many as `KEPT_BYTES` hold, and the two newest in any case."""

    def __init__(self, layers: dict[str, Layer]):
        self._layers = layers
        self._ranked: OrderedDict[Key, Ranked] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._ranked

    def __getitem__(self, key: Key) -> Ranked:
        self._ranked.move_to_end(key)
        return self._ranked[key]

    def key(self, layer: str, query: int, backend: str) -> Key:
        """The window of a layer that holds a query, or of a shorter layer the last one."""
        count = len(self._layers[layer].capture)
        return Key(layer, window_of(min(query, count - 1), count).start, backend)

    def rank(self, key: Key, job, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Rank a window in steps of some rows, and yield after each; nothing is kept once it is not wanted any more."""
        layer = self._layers[key.layer]
        capture = layer.capture
        (count, heads, width), n_keys = capture.q.shape, len(capture.k)
        rows, parts = range(key.first, min(key.first + WINDOW, count)), []
        of = f" of {layer.title}" if layer.name else ""
        step = max(1, min(STEP_SCORES // n_keys, STEP_PRODUCTS // (n_keys * heads * width)))
        for first in range(rows.start, rows.stop, step):
            job.progress(first - rows.start, len(rows), f"scoring keys{of}: query")
            part = slice(first, min(first + step, rows.stop))
            bounds = {"lo": capture.lo[part], "hi": capture.hi[part]}
            parts.append(rank_keys(capture.q[part], capture.k, capture.w[part], **bounds, backend=key.backend))
            yield
            if not is_wanted():
                return
        self._ranked[key] = Ranked.of(capture, rows, parts)
        while len(self._ranked) > 2 and sum(one.nbytes for one in self._ranked.values()) > KEPT_BYTES:
            self._ranked.popitem(last=False)

    def clear(self) -> None:
        """Forget all windows, and the layers."""
        self._ranked.clear()
        self._layers = {}
