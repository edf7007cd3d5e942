"""What every view of an indexer's layer knows: the open query, its window, and the stretch of the text around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from widgets.index_source import Layer
from widgets.ranked_windows import Ranked
from widgets.text import escape

STRETCH = 300  # tokens of the text that are shown at once
BEFORE = 220  # of them before the place that is looked at


@dataclass(frozen=True, eq=False)
class IndexView:
    """What a panel shows of one layer. Subclasses give `ranked`, the window of queries.

    Attributes:
        layer: The open layer. query: The open one, a row of the layer. place: Position that the text is shown around.
    """

    layer: Layer
    query: int
    place: int

    @property
    def ranked(self) -> Ranked:
        raise NotImplementedError

    @property
    def rows(self) -> range:
        return self.ranked.rows

    @property
    def row(self) -> int:
        """The open query within its window."""
        return self.query - self.rows.start

    @property
    def position(self) -> int:
        return int(self.ranked.positions[self.row])

    @property
    def n_keys(self) -> int:
        return self.ranked.rank.shape[1]

    def stretch(self) -> range:
        """The tokens that are shown."""
        start = max(0, min(self.place - BEFORE, self.n_keys - STRETCH))
        return range(start, min(start + STRETCH, self.n_keys))

    def name_of(self, row: int) -> str:
        """A query of the window in words: its number, its position and its token."""
        position = int(self.ranked.positions[row])
        token = f" {self.layer.capture.tokens[position]!r}" if self.layer.has_text else ""
        return f"query {self.rows[row]} (position {position:,}{token})"

    @property
    def token(self) -> str:
        """The open query's token for a heading, with a space before it; empty without a text."""
        return f" <b>{escape(self.layer.capture.tokens[self.position])}</b>" if self.layer.has_text else ""


def inside(keys: np.ndarray, shown: range) -> list[int]:
    """Those of the positions that are shown, as indices of what is shown."""
    return (keys[(keys >= shown.start) & (keys < shown.stop)] - shown.start).tolist()


def busiest(keys: np.ndarray, n_keys: int) -> int:
    """The place whose stretch of the text holds the most of the keys [ascending]."""
    if not len(keys):
        return n_keys - 1
    starts = np.minimum(keys, max(0, n_keys - STRETCH))
    held = np.searchsorted(keys, starts + STRETCH) - np.searchsorted(keys, starts)
    return int(min(starts[held.argmax()] + BEFORE, n_keys - 1))
