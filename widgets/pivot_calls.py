"""The public calls behind a setting of `PivotExplorer`, to be measured, and as lines of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable

from qp_kernels import pivot
from widgets.index_source import Layer
from widgets.pivot_lanes import hisa_block, hisa_blocks, misa_block, misa_heads
from widgets.pivot_view import PivotView, Setting


def call_of(name: str, at: Setting, layer: Layer) -> tuple[str, dict]:
    """Name of the public function that selects as a system does in a layer, and its options."""
    rule, (_, heads, _), n_keys = at.rule(), layer.capture.q.shape, len(layer.capture.k)
    if name == "dense":
        return "dense_topk", {}
    if name == "hisa":
        block = hisa_block(n_keys)
        return "hisa_topk", {"block": block, "blocks": hisa_blocks(at.k, rule.budget, block)}
    if name in ("misa", "misa_rerank"):
        rerank = {"rerank": max(at.k, rule.budget)} if name == "misa_rerank" else {}
        return "misa_topk", {"heads": misa_heads(heads), "block": misa_block(n_keys), **rerank}
    budget = {"budget": rule.budget} if name == "refine" else {}
    options = {"group": at.g, "mode": name, **budget, "window": rule.window, "proxy": at.proxy}
    return "pivot_topk", {**options, "guard": at.guard, "phase": at.phase}


def bound(name: str, at: Setting, layer: Layer, rows: slice) -> Callable:
    """The call for some of the layer's queries, ready to be made."""
    function, options = call_of(name, at, layer)
    one = layer.capture
    bounds = {"lo": one.lo[rows], "hi": one.hi[rows], "backend": at.backend}
    return functools.partial(getattr(pivot, function), one.q[rows], one.k, one.w[rows], at.k, **options, **bounds)


def code(view: PivotView, part: str, earlier: Layer | None) -> list[str]:
    """Lines that compute what is seen: `indices` of the open mode, `dense`, their recall, and each rival by its name.

    Args:
        part: The slice of the window, "" for all queries. earlier: The layer that IndexCache uses, where it is on.
    """

    def line(target: str, name: str, layer: Layer) -> str:
        function, options = call_of(name, view.at, layer)
        said = "".join(f"{key}={value!r}, " for key, value in options.items())
        bounds = f"lo=lo{part}, hi=hi{part}, backend={view.at.backend!r}"
        return f"{target} = {function}(q{part}, k, w{part}, {view.at.k}, {said}{bounds})"

    lines = [
        "from qp_kernels import index_metrics",
        "from qp_kernels.pivot import dense_topk, hisa_topk, misa_topk, pivot_topk",
    ]
    if earlier is not None:
        lines += [f"# IndexCache takes the keys of {earlier.title}", *earlier.code]
        cached = {"index_cache": "dense", "pivot_cache": view.at.mode}
        lines += [line(name, like, earlier) for name, like in cached.items() if name in view.systems]
    lines += [*view.layer.code, line("dense", "dense", view.layer), line("indices", view.at.mode, view.layer)]
    lines += [line(name, name, view.layer) for name in ("hisa", "misa", "misa_rerank") if name in view.systems]
    mean = "index_metrics.recall(indices, dense)[index_metrics.size(dense) > 0].mean()"
    return [*lines, f"recall = {mean}  # in the mean of the queries that select"]
