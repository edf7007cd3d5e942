"""`selected_attention`: a language model whose global layers attend to selected keys only.

The layers attend through transformers' own attention interface (`index_attention.py`): what they are given, queries and
keys after norm and RoPE and the cache's earlier keys, goes to a `Selection` and then to `qp_kernels`' sparse attention.
Layers with a window, and everything else of the model, stay as they are. Knows nothing of texts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from qp_kernels.attention import sparse_attention

from .index_attention import attention_by
from .index_distilled import LayerInput
from .index_run import index_layers
from .models import LanguageModel
from .selection import Selection

# What changes attention in a way that sparse attention does not know, and what a model calls it.
_UNKNOWN = {
    "softcap": "caps its logits",
    "s_aux": "has sinks",
    "position_bias": "adds a bias",
    "indices": "selects itself",
}
# hidden [S, hidden size] and positions [S] int64 -> q [S, H, D], k [S, D], w [S, H] of these tokens
Indexer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
Watch = Callable[[int, int, list[Tensor]], None]
PHASES = ("prefill", "decode")


class SelectedAttention:
    """What `selected_attention` hands out while it holds.

    Attributes:
        selection: The system. layers: Layers that select, ascending.
        phase: What Reuse and Refine take the tokens of a call for: "prefill", or "decode": groups of a multi-token
            prediction. May be set between calls.
    """

    def __init__(self, selection: Selection, layers: list[int], watch: Watch | None):
        self.selection, self.layers, self._watch = selection, layers, watch
        self._source = selection.source_of(len(layers))
        self._chosen: dict[int, tuple[tuple[int, int], list[Tensor]]] = {}
        self.phase = "prefill"

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, value: str) -> None:
        if value not in PHASES:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {value!r}")
        self._phase = value

    def chosen(self, layer: int, start: int, new: int, parts: Callable[[], list[tuple]]) -> list[Tensor]:
        """Positions [new, <= topk] for each index of the layer: its own selection, or an earlier layer's."""
        number = self.layers.index(layer)
        if self._source[number] == number:
            n = start + new
            found = [self.selection(*index, phase=self.phase)[:, : min(self.selection.topk, n)] for index in parts()]
            self._chosen[number] = ((start, new), found)
        else:
            call, found = self._chosen.get(self._source[number], (None, []))
            if call != (start, new):
                earlier = self.layers[self._source[number]]
                raise RuntimeError(f"layer {layer} takes the selection of layer {earlier}, which has not attended")
        if self._watch is not None:
            self._watch(layer, start, found)
        return found


@contextmanager
def selected_attention(
    lm: LanguageModel,
    selection: Selection,
    *,
    layers: Sequence[int] | None = None,
    indexers: Mapping[int, Indexer] | None = None,
    earlier: tuple[object, Mapping[int, Tensor]] | None = None,
    watch: Watch | None = None,
) -> Iterator[SelectedAttention]:
    """Have a model's global layers attend to selected keys only, for as long as the context lasts.

    `lm.model` is called as always: on a whole text, in chunks that continue a cache, token by token, by `generate`.
    A layer's index is its own attention, as for `capture_index(source="attention")`: each key head selects with the
    query heads that read it, so that a multi-query layer has one selection for all heads. Or it is what `indexers`
    make of the layer's input: then all heads share one selection.

    Args:
        selection: Which system. "full" changes nothing.
        layers: Which layers select; None: all that attend to the whole text (`index_layers`). Others keep attending as
            they do.
        indexers: layer -> f(hidden [S, hidden size], positions [S] int64) -> q [S, H, D], k [S, D], w [S, H] with
            scales in w; hidden is what the layer's attention module is given. One for every layer that makes a
            selection; `distilled_indexers` gives those that were distilled. Keys of earlier tokens are kept beside each
            cache.
        earlier: For one cache that was filled before: the cache, and layer -> keys [n, D] that the indexer made of its
            first n tokens. They hold for this object alone; a copy of it is another cache.
        watch: Called as watch(layer, start, selections): positions [S, <= topk] int32 of the tokens from `start` on,
            one tensor a key head, or one alone.
    Yields:
        A `SelectedAttention`, whose `phase` may be set to "decode" for the groups of a multi-token prediction.
    Raises:
        ValueError: no layer, one without attention to the whole text or without an indexer. While it holds, from a call
            of the model: more than one sequence, padding, gradients, attention with soft caps, sinks or a bias (sparse
            attention has none of these), more tokens than a static cache has seen.
        RuntimeError: from a call: the index keys of a cache's earlier tokens are not known, since it was neither filled
            here nor given as `earlier`, or with keys of fewer tokens; a layer that shares a selection runs before the
            one that makes it.

    One sequence at a time (batch 1). PIVOT's groups begin anew with each call of the model: chunks whose length is a
    multiple of g give what one call gives, and a call of one token selects densely. The model is as before afterwards,
    also after an error; the model's lock is held meanwhile. Contexts may be nested; the inner one's selection holds,
    and captures see what the layers are given.

    Source: DeepSeek-V3.2 (sparse attention over an indexer's selection).
    """
    there = index_layers(lm)
    chosen = there if layers is None else sorted(set(layers))
    wrong = [layer for layer in chosen if layer not in there]
    if wrong or not chosen:
        have = f"layers {there} do" if there else f"no layer of {lm.name} does"
        what = (
            f"layer {wrong[0]} does not attend to the whole text" if wrong else "there is no layer to select keys for"
        )
        raise ValueError(f"{what}: {have}")
    run = SelectedAttention(selection, chosen, watch)
    if indexers is not None:
        lacking = [layer for i, layer in enumerate(chosen) if run._source[i] == i and layer not in indexers]
        if lacking:
            raise ValueError(f"layer {lacking[0]} has no indexer: there are some for layers {sorted(indexers)}")
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        for number, layer in enumerate(chosen if selection.system != "full" else []):
            index = None
            if indexers is not None and run._source[number] == number:
                given = stack.enter_context(LayerInput(layer).hooked(lm.model))
                index = _Indexed(given, indexers[layer])
                if earlier is not None and layer in earlier[1]:
                    index.know(earlier[0], earlier[1][layer])
            stack.enter_context(attention_by(lm.model, layer, _attending(run, layer, index)))
        yield run


def _attending(run: SelectedAttention, layer: int, index: _Indexed | None) -> Callable:
    """The attention of a layer of this run; without `index` by its own queries and keys."""

    def attend(own, module, query, key, value, mask, *args, **options):
        _check(layer, module, query, key, mask, options)
        new, n = query.shape[2], key.shape[2]
        scale = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]

        def parts():
            return _own_indices(query[0], key[0], scale) if index is None else [index(n - new, new)]

        found = run.chosen(layer, n - new, new, parts)
        q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))  # [S, Hq, D], [n, Hkv, D]
        backend = run.selection.backend
        if len(found) == 1:
            return sparse_attention(q, k, v, found[0], scale=float(scale), backend=backend)[None], None
        if len(found) != k.shape[1]:
            raise RuntimeError(f"layer {layer} has {k.shape[1]} key heads, the selection that it shares {len(found)}")
        group, out = q.shape[1] // k.shape[1], []
        for h, indices in enumerate(found):
            one, heads = slice(h, h + 1), slice(h * group, (h + 1) * group)
            out.append(
                sparse_attention(q[:, heads], k[:, one], v[:, one], indices, scale=float(scale), backend=backend)
            )
        return torch.cat(out, 1)[None], None

    return attend


def _own_indices(query: Tensor, key: Tensor, scale: float) -> list[tuple]:
    """(q [S, H, D], k [n, D], w [S, H]) of each key head, from query [Hq, S, D] and key [Hkv, n, D]."""
    group = len(query) // len(key)
    w = torch.full((query.shape[1], group), scale / group, device=query.device)
    return [(q.transpose(0, 1), k, w) for q, k in zip(query.split(group), key, strict=True)]


def _check(layer: int, module, query: Tensor, key: Tensor, mask, options: dict) -> None:
    if len(query) != 1:
        raise ValueError(f"attention over selected keys takes one sequence at a time, got a batch of {len(query)}")
    if not getattr(module, "is_causal", True):
        raise ValueError(f"layer {layer} also attends to later tokens")
    for name, what in _UNKNOWN.items():
        if options.get(name) is not None:
            raise ValueError(f"layer {layer} {what} ({name}): attention over selected keys knows nothing of it")
    if options.get("dropout"):
        raise ValueError(f"layer {layer} drops shares of its attention at random: call eval() first")
    if torch.is_grad_enabled() and query.requires_grad:
        raise ValueError("no gradient passes a selection: call the model within torch.no_grad()")
    if mask is not None and not _is_causal(mask, query.shape[2], key.shape[2]):
        raise ValueError(
            f"the mask of layer {layer} hides more than later tokens: attention over selected keys takes one sequence "
            "without padding, and a cache that holds read tokens only"
        )


def _is_causal(mask, new: int, n: int) -> bool:
    """Whether a mask, which never shows later tokens, hides nothing else from the last `new` of n tokens."""
    if not isinstance(mask, Tensor):
        return False
    shown = mask if mask.dtype == torch.bool or mask.ndim == 2 else mask > torch.finfo(mask.dtype).min / 2
    wanted = n if mask.ndim == 2 else new * n - new * (new - 1) // 2  # [1, n] is one of flash attention
    return int(shown.count_nonzero()) == wanted


class _Indexed:
    """The index that an indexer makes of a layer's input, with its keys of the tokens before, for each cache."""

    def __init__(self, given: LayerInput, indexer: Indexer):
        self.given, self.indexer = given, indexer
        self._keys: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def know(self, cache: object, keys: Tensor) -> None:
        """Take keys [n, D] for those of the first n tokens that a cache holds."""
        self._keys[cache] = keys

    def __call__(self, start: int, new: int) -> tuple[Tensor, Tensor, Tensor]:
        """q [new, H, D], k [start + new, D], w [new, H]."""
        hidden, cache = self.given.hidden, self.given.cache
        q, k, w = self.indexer(hidden, torch.arange(start, start + new, device=hidden.device))
        if start:
            before = None if cache is None else self._keys.get(cache)
            if before is None or len(before) < start:
                known = 0 if before is None else len(before)
                raise RuntimeError(
                    f"layer {self.given.layer} continues {start} tokens, of which the indexer has seen {known}: fill "
                    "the cache within the same context, or give its keys as `earlier`"
                )
            k = torch.cat([before[:start], k])  # a cache may have been cropped
        if cache is not None:
            self.know(cache, k)
        return q, k, w
