"""`Selection`: a system that selects keys, as a value: which one, and with which numbers. Knows tensors, no model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from qp_kernels.pivot import dense_topk, hisa_topk, index_cache_layers, misa_topk, pivot_topk

SYSTEMS = ("full", "dense", "reuse", "refine", "hisa", "misa")
MAX_BYTES = 512 << 20


@dataclass(frozen=True)
class Selection:
    """How the layers of a model choose the keys that they attend to.

    Attributes:
        system: "full" (every key, nothing is selected), "dense", "reuse", "refine", "hisa" or "misa".
        topk: Keys kept a query, >= 1.
        group, budget, window, proxy, guard: Of Reuse and Refine, as in `pivot_topk`.
        block: Keys of a block of HISA or MISA; None: topk / 16, and 1,024.
        blocks: Blocks of HISA whose keys are scored, as in `hisa_topk`; with the block above they hold 4 topk keys.
        heads: Heads with which MISA scores; None: an eighth of them, at least one, as its 8 of 64.
        rerank: Of MISA: how many keys are left to all heads; None is none.
        pattern: IndexCache: a letter for each selecting layer, from the first: F selects, S takes the selection of the
            nearest earlier F; None is F for all. Goes with every system but "full".
        backend, max_bytes: As in `dense_topk`.
    Raises:
        ValueError, TypeError: a name or number that no selection takes; the rest is refused when keys are selected.

    The blocks and heads of HISA and MISA are those of their papers at topk = 2,048 and H = 64, in proportion.

    >>> Selection("refine", topk=64, pattern="FSF").label
    'refine g4 c128 FSF'
    """

    system: str = "dense"
    topk: int = 2048
    group: int = 4
    budget: int | None = None
    window: int | None = None
    proxy: str = "mean"
    guard: bool | int = True
    block: int | None = None
    blocks: int = 64
    heads: int | None = None
    rerank: int | None = None
    pattern: str | None = None
    backend: str = "auto"
    max_bytes: int = MAX_BYTES

    def __post_init__(self):
        if self.system not in SYSTEMS:
            raise ValueError(f"system must be one of {', '.join(SYSTEMS)}, got {self.system!r}")
        for name in ("topk", "group"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if self.pattern is not None:
            if self.system == "full":
                raise ValueError("full attention selects nothing that a pattern could share")
            index_cache_layers(len(self.pattern), pattern=self.pattern)

    @property
    def label(self) -> str:
        """What tells it from others, in words of a table."""
        parts = [self.system]
        if self.system in ("reuse", "refine"):
            parts.append(f"g{self.group}")
            if self.system == "refine":
                window = self.group if self.window is None else self.window
                budget = self.budget or max(2 * self.topk, self.topk + window + self.group - 1)
                parts.append(f"c{budget}")
                parts += [f"W{window}"] * (window != self.group)
            parts += [self.proxy] * (self.proxy != "mean")
            parts += [f"guard {self.guard}"] * (self.guard is not True)
        parts += [f"rerank {self.rerank}"] * (self.rerank is not None)
        parts += [self.pattern] * (self.pattern is not None and "S" in self.pattern)
        return " ".join(parts)

    def source_of(self, n_layers: int) -> list[int]:
        """For each of the selecting layers, the one whose selection it uses.

        Raises:
            ValueError: the pattern has another number of letters.
        """
        pattern = "F" * n_layers if self.pattern is None else self.pattern
        return index_cache_layers(n_layers, pattern=pattern)

    def __call__(self, q: Tensor, k: Tensor, w: Tensor, *, phase: str = "prefill") -> Tensor:
        """Positions of the keys of the last T of N tokens, [T, topk] int32, ascending, -1 tail.

        Args:
            q: [T, H, D]; k: [N, D]; w: [T, H], as for `dense_topk`, with its dtypes and errors.
            phase: "prefill" or "decode" (the rows are one group of a multi-token prediction, or several).
        Raises:
            ValueError: "full" selects nothing.
        """
        given, shared = (q, k, w, self.topk), {"backend": self.backend, "max_bytes": self.max_bytes}
        if self.system == "dense":
            return dense_topk(*given, **shared)
        if self.system in ("reuse", "refine"):
            pivot = {"group": self.group, "budget": self.budget, "window": self.window, "proxy": self.proxy}
            return pivot_topk(*given, mode=self.system, guard=self.guard, phase=phase, **pivot, **shared)
        if self.system == "hisa":
            block = max(1, self.topk // 16) if self.block is None else self.block
            return hisa_topk(*given, block=block, blocks=self.blocks, **shared)
        if self.system == "misa":
            heads = max(1, q.shape[1] // 8) if self.heads is None else self.heads
            block = 1024 if self.block is None else self.block
            return misa_topk(*given, heads=heads, block=block, rerank=self.rerank, **shared)
        raise ValueError("full attention selects nothing")


def systems(topk: int, n_layers: int, *, groups=(1, 2, 4, 8, 16), greedy: str | None = None) -> dict[str, Selection]:
    """Full attention and every system that the paper compares, at one topk.

    Args:
        n_layers: Selecting layers. groups: g of Refine and Reuse.
        greedy: A pattern of `index_cache_greedy`, found on a text that nothing is judged by.
    Returns:
        name -> Selection: "full", "dense", "reuse", "refine" (g = 4, c = 2 topk, mean proxy), "refine first" and
        "refine last", "refine g2", "reuse g2" and so on, "refine least" (the smallest c that is legal), "refine 1.5x"
        and "refine 4x" (c in topk), "hisa", "misa", "misa rerank" (2 topk), "index cache" (uniform, every second layer
        selects), "refine + index cache", and with `greedy` "index cache greedy".
    """
    dense, refine, reuse = (Selection(name, topk) for name in ("dense", "refine", "reuse"))
    found = {"full": Selection("full", topk), "dense": dense, "reuse": reuse, "refine": refine}
    found |= {f"refine {proxy}": replace(refine, proxy=proxy) for proxy in ("first", "last")}
    for g in groups:
        if g != refine.group:
            found |= {f"refine g{g}": replace(refine, group=g), f"reuse g{g}": replace(reuse, group=g)}
    least = topk + 2 * refine.group - 1
    budgets = {"least": least, "1.5x": 3 * topk // 2, "4x": 4 * topk}
    found |= {f"refine {name}": replace(refine, budget=max(least, c)) for name, c in budgets.items()}
    misa = Selection("misa", topk)
    found |= {"hisa": Selection("hisa", topk), "misa": misa, "misa rerank": replace(misa, rerank=2 * topk)}
    letters = ["F" if source == i else "S" for i, source in enumerate(index_cache_layers(n_layers, freq=2))]
    uniform = "".join(letters)
    found |= {"index cache": replace(dense, pattern=uniform)}
    found |= {"refine + index cache": replace(refine, pattern=uniform)}
    if greedy is not None:
        found["index cache greedy"] = replace(dense, pattern=greedy)
    return found
