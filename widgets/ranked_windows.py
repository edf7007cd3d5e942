"""Windows of queries whose keys are ranked: the one scan that a panel on an indexer needs, in steps, and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from qp_kernels.pivot.ranking import rank_keys
from widgets.index_source import Layer
from widgets.overlap_measures import WINDOW, Ranked, window_of

# Scores and products that a step of the scan makes; ranked windows that are kept.
STEP_SCORES, STEP_PRODUCTS, KEPT_BYTES = 1 << 22, 1 << 31, 1 << 30


class Key(NamedTuple):
    """Which window: the layer's name, its first row, and the back-end that made the scores."""

    layer: str
    first: int
    backend: str


class RankedWindows:
    """The windows that were ranked last, as many as `KEPT_BYTES` hold, and the newest in any case."""

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
        while len(self._ranked) > 1 and sum(one.nbytes for one in self._ranked.values()) > KEPT_BYTES:
            self._ranked.popitem(last=False)

    def clear(self) -> None:
        """Forget all windows, and the layers."""
        self._ranked.clear()
        self._layers = {}
