"""What the attention of a layer reads, and what a distilled indexer makes of it, chunk by chunk of a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from qp_kernels.pivot.reference import IEEE

from .index_attention import attention_modules, chosen
from .indexer import LightningIndexer


class LayerInput:
    """The hidden states that a layer's attention was called with last, [S, hidden]."""

    def __init__(self, layer: int):
        self.layer = layer
        self.hidden: Tensor | None = None

    @contextmanager
    def hooked(self, model) -> Iterator[LayerInput]:
        handles = [
            module.register_forward_pre_hook(self._keep, with_kwargs=True)
            for module in attention_modules(model, self.layer)
        ]
        try:
            yield self
        finally:
            self.hidden = None
            for handle in handles:
                handle.remove()

    def _keep(self, module, args: tuple, kwargs: dict) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0] if args else None
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            raise RuntimeError(
                f"layer {self.layer} ({type(module).__name__}) is called without hidden states [1, S, hidden]: no "
                "indexer can read them"
            )
        self.hidden = hidden[0]


class DistilledRows:
    """Queries, keys and weights of an indexer at some positions, gathered over the chunks of a text.

    Is called whenever the layer attends, as `index_attention.attention_seen` does.
    """

    def __init__(self, indexer: LightningIndexer, given: LayerInput, positions: Tensor, dtype: torch.dtype):
        self.indexer, self.given, self.positions, self.dtype = indexer, given, positions, dtype
        self.seen = 0
        self._parts: dict[str, list[Tensor]] = {}

    def __call__(self, module, query: Tensor, key: Tensor, options: dict) -> None:
        new = query.shape[1]
        start = key.shape[1] - new
        if start == 0:  # a text that could not be continued by chunks begins again
            self._parts = {"q": [], "k": [], "w": []}
        elif start != self.seen:
            raise RuntimeError(
                f"layer {self.given.layer} attends to {key.shape[1]} keys after {self.seen} tokens were read"
            )
        hidden = self.given.hidden
        place = torch.arange(start, start + new, device=hidden.device)
        with IEEE, torch.autocast(hidden.device.type, enabled=False):
            # Of all tokens, so that a query has the same bits whichever others are kept.
            q, w = self.indexer.queries(hidden, place)
            k = self.indexer.keys(hidden, place)
        rows = chosen(self.positions, start, new).to(q.device)
        # As a native indexer keeps them: queries and keys in the dtype that the model computes in.
        for name, part in (("q", q[rows].to(self.dtype)), ("k", k.to(self.dtype)), ("w", w[rows])):
            self._parts[name].append(part)
        self.seen = start + new

    def tensors(self) -> dict[str, Tensor]:
        """q [T, H, D], k [N, D] and w [T, H] float32."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def meta(self) -> dict:
        indexer = self.indexer
        recipe = {name: indexer.meta[name] for name in ("derived", "recipe") if name in indexer.meta}
        return {"rope": indexer.rope, "scale": indexer.scale, "w": "weights_proj * scale", **recipe}
