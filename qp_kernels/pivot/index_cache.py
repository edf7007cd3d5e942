"""IndexCache: which layers of a model select keys, and which reuse an earlier selection. Source: IndexCache."""

from __future__ import annotations

import math
from collections.abc import Callable

from .checks import whole


def index_cache_layers(n_indexed: int, *, freq: int | None = None, pattern: str | None = None) -> list[int]:
    """For each indexed layer the indexed layer whose selection it uses: its own, or the nearest earlier one's.

    Args:
        n_indexed: Layers with an indexer, >= 1.
        freq: Layer i selects where max(i - 1, 0) is a multiple of freq.
        pattern: Or a string with F (selects) or S (shares) for each layer; the first is F.
    Raises:
        ValueError: both or neither, a frequency below 1, a pattern of another length or with other letters.

    >>> index_cache_layers(6, freq=2)
    [0, 1, 1, 3, 3, 5]
    >>> index_cache_layers(4, pattern="FSSF")
    [0, 0, 0, 3]
    """
    n_indexed = whole("n_indexed", n_indexed, 1)
    if (freq is None) == (pattern is None):
        raise ValueError(f"pass freq or pattern, got freq={freq!r} and pattern={pattern!r}")
    if pattern is None:
        freq = whole("freq", freq, 1)
        pattern = "".join("S" if max(i - 1, 0) % freq else "F" for i in range(n_indexed))
    if not isinstance(pattern, str) or len(pattern) != n_indexed or set(pattern) - {"F", "S"} or pattern[0] != "F":
        raise ValueError(f"pattern must be {n_indexed} letters F or S, the first F, got {pattern!r}")
    found, latest = [], 0
    for i, letter in enumerate(pattern):
        latest = i if letter == "F" else latest
        found.append(latest)
    return found


def index_cache_greedy(loss_of_pattern: Callable[[str], float], n_indexed: int, keep: int) -> str:
    """A pattern with `keep` selecting layers: one layer after the other shares, each time the one that costs least.

    Args:
        loss_of_pattern: A pattern of F and S -> its loss.
        n_indexed: Layers with an indexer. keep: How many select at the end, 1 <= keep <= n_indexed; the first always
            does.
    Ties: the lowest layer shares first. A loss of NaN loses to every other.
    Raises:
        ValueError: keep out of range, or every loss is NaN.

    >>> index_cache_greedy(lambda pattern: abs(pattern.find("S") - 2), 4, 3)
    'FFSF'
    """
    n_indexed, keep = whole("n_indexed", n_indexed, 1), whole("keep", keep, 1)
    if keep > n_indexed:
        raise ValueError(f"keep must be <= n_indexed, {n_indexed}, got {keep}")
    pattern = "F" * n_indexed
    while pattern.count("F") > keep:
        tried = [pattern[:i] + "S" + pattern[i + 1 :] for i in range(1, n_indexed) if pattern[i] == "F"]
        losses = [float(loss_of_pattern(one)) for one in tried]
        if all(math.isnan(loss) for loss in losses):
            raise ValueError(f"the loss of every pattern is NaN that follows {pattern!r}")
        pattern = min(zip(losses, tried, strict=True), key=lambda one: math.inf if math.isnan(one[0]) else one[0])[1]
    return pattern
