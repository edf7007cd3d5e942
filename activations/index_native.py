"""The lightning indexers of DeepSeek-V3.2 and GLM-5 in transformers: their queries, keys and weights, by hooks.

Keys come out of the cache that the indexer reads them from. Queries leave their projection before RoPE and are rotated
by the function of the model's own file. That nothing else happens to them is checked on every chunk: keys rotated in
the same way must be those of the cache, and the last row must select what the model selects.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .index_attention import attention_modules, chosen

# model_type -> (function of its file that rotates the indexer's queries and keys, what it does)
ROPE = {
    "deepseek_v32": ("apply_rotary_pos_emb", "half-split"),
    "glm_moe_dsa": ("apply_rotary_pos_emb_interleave", "interleaved"),
}
# Renamed within transformers 5.
_CACHE_NAMES = ("cache", "past_key_values")


def indexer_of(model, layer: int):
    """(indexer, its layer): the layer's own, or for a shared layer that of the nearest earlier one; None without."""
    if not any(hasattr(module, "indexer") for module in attention_modules(model, layer)):
        return None
    for earlier in range(layer, -1, -1):
        for module in attention_modules(model, earlier):
            if getattr(module, "indexer", None) is not None:
                return module.indexer, earlier
    return None


class IndexerRows:
    """Queries, keys and weights of an indexer at some positions, gathered over the chunks of a text."""

    def __init__(self, indexer, layer: int, positions: Tensor):
        self.indexer, self.layer, self.positions = indexer, layer, positions
        self.seen = 0
        self._made: dict[str, Tensor] = {}
        self._parts: dict[str, list[Tensor]] = {"q": [], "k": [], "w": []}
        name, self.style = ROPE[indexer.config.model_type]
        self._rotate = getattr(sys.modules[type(indexer).__module__], name)

    @contextmanager
    def hooked(self) -> Iterator[IndexerRows]:
        made = self._made
        handles = [
            getattr(self.indexer, name).register_forward_hook(lambda _m, _i, out, name=name: made.update({name: out}))
            for name in ("wq_b", "k_norm", "weights_proj")
        ]
        handles.append(self.indexer.register_forward_hook(self._after, with_kwargs=True))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _after(self, indexer, args: tuple, kwargs: dict, selected: Tensor) -> None:
        given = inspect.signature(indexer.forward).bind(*args, **kwargs).arguments
        cache = next((given[name] for name in _CACHE_NAMES if given.get(name) is not None), None)
        if cache is None:
            raise RuntimeError("the indexer was called without a cache, which is where its keys are read")
        keys = cache.layers[self.layer].indexer_keys[0]
        q = self._made.pop("wq_b")[0].unflatten(-1, (indexer.n_heads, indexer.head_dim))
        q, k = self._rotated(q, self._made.pop("k_norm")[0], *given["position_embeddings"])
        # A relu lets positive factors pass, so both scales go into the weights.
        w = self._made.pop("weights_proj")[0].float() * (indexer.n_heads**-0.5 * indexer.softmax_scale)
        start = len(keys) - len(q)
        self._check_keys(k, keys[start:])
        self._check_selection(q[-1], keys, w[-1], selected[0, -1])
        rows = chosen(self.positions, start, len(q)).to(q.device)
        self._parts["q"].append(q[rows])
        self._parts["k"].append(keys[start:].clone())
        self._parts["w"].append(w[rows])
        self.seen = len(keys)

    def _rotated(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [S, H, D] and k [S, D] with the first dimensions rotated."""
        width, k = self.indexer.qk_rope_head_dim, k[:, None]
        turned = self._rotate(q[None, ..., :width], k[None, ..., :width], cos, sin, unsqueeze_dim=2)
        q, k = (torch.cat([a[0], b[..., width:]], dim=-1) for a, b in zip(turned, (q, k), strict=True))
        return q, k[:, 0]

    def _check_keys(self, ours: Tensor, own: Tensor) -> None:
        if not torch.allclose(ours.float(), own.float(), rtol=1e-2, atol=1e-3 * own.float().abs().max().item()):
            worst = (ours.float() - own.float()).abs().max().item()
            raise RuntimeError(
                f"layer {self.layer}: keys with {self.style} RoPE are off by up to {worst:.3g} from those of the model"
            )

    def _check_selection(self, q: Tensor, keys: Tensor, w: Tensor, selected: Tensor) -> None:
        """The last row sees every key: what it selects must score at least what it leaves."""
        terms = w[:, None] * (q.float() @ keys.float().t()).relu()
        scores, rest = terms.sum(0), torch.ones(len(keys), dtype=torch.bool, device=keys.device)
        rest[selected.long()] = False
        if rest.any() and scores[~rest].min() < scores[rest].max() - 1e-4 * terms.abs().sum(0).max():
            raise RuntimeError(f"layer {self.layer}: its indexer does not select what the captured index selects")

    def tensors(self) -> dict[str, Tensor]:
        """q [T, H, D], k [N, D] and w [T, H]."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def meta(self) -> dict:
        indexer = self.indexer
        rope = f"post, {self.style} on the first {indexer.qk_rope_head_dim} of {indexer.head_dim}"
        scale = indexer.n_heads**-0.5 * indexer.softmax_scale
        about = {"indexer_layer": self.layer, "index_topk": indexer.index_topk, "rope": rope, "scale": scale}
        return {**about, "w": "weights_proj * scale"}
