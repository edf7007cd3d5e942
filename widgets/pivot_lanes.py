"""What a panel on PIVOT has searched: proxies of every group size, few heads, blocks; made in steps, and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qp_kernels.pivot.candidates import block_levels, order_of, rank_few_heads, rank_proxies
from qp_kernels.pivot.groups import cut
from qp_kernels.pivot.ranking import NEVER
from widgets import ranked_windows
from widgets.index_source import Layer
from widgets.pivot_measures import BYTES_A_KEY, Lane, Queries
from widgets.ranked_windows import Key, Ranked

SEARCHING = "searching for other group sizes and budgets"
KEPT_BYTES = 1 << 30
NEEDED = 6  # of one picture: two layers' windows and groups, few heads, blocks


class Search(NamedTuple):
    """One search over a window: what ("lane", "misa", "hisa"), and for a lane its group size and proxy."""

    key: Key
    what: str
    g: int = 0
    proxy: str = ""


class Few(NamedTuple):
    """MISA's search: the order of its few heads, how many keys it ranks, and from which `rerank` on a key is left."""

    order: Tensor
    count: Tensor
    levels: Tensor


def hisa_block(n_keys: int) -> int:
    """Keys of HISA's blocks: 128 as in its paper from 32,768 keys on, of fewer a 256th."""
    return min(128, max(1, n_keys // 256))


def hisa_blocks(k: int, c: int, block: int) -> int:
    """Blocks of HISA with which it scores about as many keys as Refine does, and at least what k needs."""
    return max(2, -(-k // block) + 1, c // block)


def misa_heads(heads: int) -> int:
    """Heads of MISA: an eighth, as 8 of 64 in its paper."""
    return max(1, heads // 8)


def misa_block(n_keys: int) -> int:
    """Keys of the blocks of MISA's router: 1,024 as in its paper, of few keys a sixteenth."""
    return min(1024, max(1, n_keys // 16))


class Lanes:
    """The searches that were used last, as many as `KEPT_BYTES` hold, and those that one picture needs in any case."""

    def __init__(self, layers: dict[str, Layer]):
        self._layers = layers
        self._found: OrderedDict[Search | Key, object] = OrderedDict()

    def __contains__(self, search: Search) -> bool:
        return search in self._found

    def __getitem__(self, search: Search):
        self._found.move_to_end(search)
        return self._found[search]

    def fitting(self, sizes: set[int], n_queries: int, n_keys: int) -> list[int]:
        """Those group sizes, the largest first, whose searches can all be kept beside what one picture needs."""
        room, out = KEPT_BYTES // 2, []
        for g in sorted(sizes, reverse=True):
            room -= -(-n_queries // g) * n_keys * BYTES_A_KEY
            if room >= 0:
                out.append(g)
        return out

    def queries(self, key: Key, ranked: Ranked) -> Queries:
        """The window as tensors."""
        if key not in self._found or self._found[key].ranked is not ranked:
            mass, rows = self._layers[key.layer].capture.mass, ranked.rows
            part = None if mass is None else mass[rows.start : rows.stop].float().cpu()
            self._keep(key, Queries(ranked, part))
        return self[key]

    def search(self, search: Search, ranked: Ranked, job, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Make a search in steps, and yield after each; nothing is kept once it is not wanted any more."""
        parts, steps = [], list(self._steps(search, ranked))
        capture = self._layers[search.key.layer].capture  # another text may come between the steps
        for function, rows, options in steps:
            job.check(SEARCHING)
            there = slice(ranked.rows.start + rows.start, ranked.rows.start + rows.stop)
            bounds = {"lo": capture.lo[there], "hi": capture.hi[there], "backend": search.key.backend}
            parts.append(function(capture.q[there], capture.k, capture.w[there], **options, **bounds))
            yield
            if not is_wanted():
                return
        self._keep(search, _joined(search, ranked, parts))

    def _steps(self, search: Search, ranked: Ranked) -> Iterator[tuple[Callable, range, dict]]:
        """(function, rows of the window, options) of the parts of a search."""
        capture = self._layers[search.key.layer].capture
        (_, heads, width), n_keys = capture.q.shape, len(capture.k)
        products = ranked_windows.STEP_PRODUCTS // (n_keys * heads * width)
        step = max(1, min(ranked_windows.STEP_SCORES // n_keys, products))
        if search.what == "lane":
            groups = groups_of(ranked, search.g)
            if (groups.stop - groups.start == 1).all():
                return  # all groups are dense: nobody asks a proxy
            options = {"group": search.g, "proxy": search.proxy}
            for first in range(0, len(groups), step):
                last = min(first + step, len(groups)) - 1
                yield rank_proxies, range(int(groups.start[first]), int(groups.stop[last])), options
            return
        function, options = rank_few_heads, {"heads": misa_heads(heads), "block": misa_block(n_keys)}
        if search.what == "hisa":
            function, options = block_levels, {"block": hisa_block(n_keys)}
        for first in range(0, len(ranked.rows), step):
            yield function, range(first, min(first + step, len(ranked.rows))), options

    def _keep(self, name, found) -> None:
        self._found[name] = found
        self._found.move_to_end(name)
        while len(self._found) > NEEDED and sum(map(_bytes, self._found.values())) > KEPT_BYTES:
            self._found.popitem(last=False)

    def clear(self) -> None:
        """Forget all, and the layers."""
        self._found.clear()
        self._layers = {}


def groups_of(ranked: Ranked, g: int):
    """The groups of g that `pivot_topk` forms of the window's queries."""
    return cut(torch.from_numpy(ranked.lo), torch.from_numpy(ranked.hi), g)


def _joined(search: Search, ranked: Ranked, parts: list):
    if search.what == "hisa":
        return torch.cat([part.cpu() for part in parts])
    if search.what == "misa":
        rank, count = (torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("rank", "count"))
        return Few(order_of(rank), count, rank.where(rank == NEVER, rank + 1))
    groups = groups_of(ranked, search.g)
    if not parts:
        return Lane(groups, torch.from_numpy(ranked.rank), torch.from_numpy(ranked.count))
    return Lane.joined(groups, [part for _, part in parts])


def _bytes(found) -> int:
    if isinstance(found, Few):
        return found.order.nbytes + found.levels.nbytes
    return int(np.asarray(found.nbytes))
