"""What the attention of a layer reads, and what a distilled indexer makes of it, chunk by chunk of a text."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from qp_kernels.pivot.reference import IEEE

from .index_attention import attention_modules, chosen
from .indexer import LightningIndexer
from .indexer_file import indexer_for
from .models import LanguageModel

# What models call the cache that they hand to their attention.
_CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")


class LayerInput:
    """The hidden states that a layer's attention was called with last, [S, hidden], and the cache, if there is one."""

    def __init__(self, layer: int):
        self.layer = layer
        self.hidden: Tensor | None = None
        self.cache = None

    @contextmanager
    def hooked(self, model) -> Iterator[LayerInput]:
        handles = [
            module.register_forward_pre_hook(self._keep, with_kwargs=True)
            for module in attention_modules(model, self.layer)
        ]
        try:
            yield self
        finally:
            self.hidden = self.cache = None
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
        self.cache = next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)


def placed(lm: LanguageModel, layer: int, indexer: LightningIndexer) -> LightningIndexer:
    """A copy of an indexer where the layer's weights are."""
    (module, *_) = attention_modules(lm.model, layer)
    return copy.deepcopy(indexer).to(next(module.parameters()).device)


def index_of(indexer: LightningIndexer, hidden: Tensor, positions: Tensor, dtype: torch.dtype):
    """q [S, H, D] and k [S, D] in a dtype, and w [S, H] float32, of hidden states [S, hidden] at positions [S]."""
    with IEEE, torch.autocast(hidden.device.type, enabled=False):
        q, w = indexer.queries(hidden, positions)
        k = indexer.keys(hidden, positions)
    # As a native indexer keeps them: queries and keys in the dtype that the model computes in.
    return q.to(dtype), k.to(dtype), w


def distilled_indexers(lm: LanguageModel, layers: Sequence[int], given=None) -> dict[int, Callable]:
    """Distilled indexers as functions, for `selected_attention`.

    Args:
        layers: Which. given: As `indexers` of `capture_index`: None is data/indexers.
    Returns:
        layer -> f(hidden [S, hidden size], positions [S]) -> q [S, H, D], k [S, D], w [S, H].
    Raises:
        ValueError: one is not there, damaged, or of another model or layer.
    """
    found = {layer: placed(lm, layer, indexer_for(lm, layer, given)) for layer in layers}
    return {layer: functools.partial(_index, indexer, lm.dtype) for layer, indexer in found.items()}


def _index(indexer: LightningIndexer, dtype: torch.dtype, hidden: Tensor, positions: Tensor):
    return index_of(indexer, hidden, positions, dtype)


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
        # Of all tokens, so that a query has the same bits whichever others are kept.
        q, k, w = index_of(self.indexer, hidden, place, self.dtype)
        rows = chosen(self.positions, start, new).to(q.device)
        for name, part in (("q", q[rows]), ("k", k), ("w", w[rows])):
            self._parts[name].append(part)
        self.seen = start + new

    def tensors(self) -> dict[str, Tensor]:
        """q [T, H, D], k [N, D] and w [T, H] float32."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def meta(self) -> dict:
        indexer = self.indexer
        recipe = {name: indexer.meta[name] for name in ("derived", "recipe") if name in indexer.meta}
        return {"rope": indexer.rope, "scale": indexer.scale, "w": "weights_proj * scale", **recipe}
