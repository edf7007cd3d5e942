"""`capture_index`: a text through a model, and the index of some of its layers.

What is an index: the layer's own attention, the indexer that the model has, or one that was distilled for it. How each
is seen is in `index_attention.py`, `index_native.py` and `index_distilled.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from .capture import chosen_positions, model_meta, text_ids
from .forward import evaluating, hidden_states
from .index_attention import AttentionRows, attention_modules, attention_seen, too_narrow
from .index_capture import IndexCapture
from .index_distilled import DistilledRows, LayerInput, placed
from .index_native import ROPE, IndexerRows, indexer_of
from .indexer_file import indexer_for
from .models import LanguageModel, dtype_name
from .progress import Progress, quiet

SOURCES = ("attention", "distilled", "native")
# Of the mass [T, N] that is taken without being asked for: all 8,192 queries of 8,192 tokens.
MASS_BYTES = 256 << 20
# Kinds of layers in configurations of mixed models, besides linear attention.
_WITHOUT_ATTENTION = ("mamba", "mamba2", "conv", "recurrent")


def index_layers(
    lm: LanguageModel, source: str = "attention", n_tokens: int | None = None, *, indexers=None
) -> list[int]:
    """Layers that `capture_index` takes, as far as the configuration tells.

    Args:
        source: "attention": layers that attend to the whole text; "native": layers with an indexer, their own or a
            shared one; "distilled": those of "attention" that a sound indexer in `indexers` is for.
        n_tokens: Length of a text: a window at least as long does not count. None: any window does.
        indexers: Of "distilled", as `capture_index` takes them.
    """
    _source(source)
    if source == "native":
        return [layer for layer in range(lm.n_layers) if indexer_of(lm.model, layer)]
    reaches = {layer: _reach(lm, layer) for layer in range(lm.n_layers) if _attends(lm, layer)}
    layers = [layer for layer, reach in reaches.items() if reach is None or (n_tokens and n_tokens <= reach)]
    return [layer for layer in layers if source == "attention" or _is_distilled(lm, layer, indexers)]


def _is_distilled(lm: LanguageModel, layer: int, indexers) -> bool:
    try:
        indexer_for(lm, layer, indexers)
    except (ValueError, OSError):  # `capture_index` says which
        return False
    return True


def capture_index(
    lm: LanguageModel,
    text_or_ids,
    *,
    layer: int | Sequence[int],
    source: str = "attention",
    kv_head: int | None = None,
    positions=None,
    mass: bool | None = None,
    indexers=None,
    progress: Progress = quiet,
) -> IndexCapture | list[IndexCapture]:
    """Run a text through the model and keep what index selection works on, at some of its layers.

    "attention" needs no training: the queries and keys of one key head as the layer attends with them, after norm and
    RoPE, and bit for bit. The H heads of the index are the query heads that read this key head, all of them in a
    multi-query model, and w = scale / H with the layer's own scale: the score is the mean over heads of the positive
    attention logits. "native" is the indexer of a `deepseek_v32` or `glm_moe_dsa` model, with both of its scales in w;
    a shared layer gives the index of the layer whose selection it uses. "distilled" is an indexer that `distil` trained
    for the layer, with queries and keys in the dtype that the model computes in, and w in float32.

    Args:
        text_or_ids: A text, or its ids (taken as they are, no BOS added).
        layer: From 0 to n_layers - 1. Several, as a sequence, are captured in one run and returned as a list.
        source: "attention", "distilled" or "native".
        kv_head: Of "attention": which key head, None for the first. With as many key heads as query heads, H is 1.
        positions: Places in the text whose queries are kept, negative ones from the end; None keeps all.
        mass: Whether to keep the attention's mass [T, N], the mean over all heads of the layer; for "native" before
            the indexer cuts. None: where it takes at most 256 MiB a layer.
        indexers: Of "distilled": a file, a folder of `indexer_layer_<n>.safetensors`, a `LightningIndexer`, or several
            by layer. None: those of data/indexers.
        progress: Called as progress(done, total, what) every 512 tokens; may raise to cancel, which leaves nothing.
    Raises:
        ValueError: an empty or too long text, several texts, a layer that has no such index or only attends to a window
            shorter than the text, a key head or position out of range, an indexer that is damaged or of another
            model or layer.
        FileNotFoundError: no such file of an indexer.
        RuntimeError: the layer does not attend through transformers' attention functions, or an indexer does more than
            is known of it.
    """
    _source(source)
    ids = text_ids(lm, text_or_ids)
    several = isinstance(layer, Sequence) and not isinstance(layer, str)
    layers = list(layer) if several else [layer]
    if not layers:
        raise ValueError("no layer is named: the list of layers is empty")
    for one in layers:
        check_layer(lm, one, source, len(ids))
    if indexers is not None and source != "distilled":
        raise ValueError(f"indexers are for source 'distilled' alone, not for {source!r}")
    if kv_head is not None and (source != "attention" or isinstance(kv_head, bool) or not isinstance(kv_head, int)):
        raise ValueError(f"kv_head must be an int and is for source 'attention' alone, got {kv_head!r}")
    kept = chosen_positions(positions, len(ids))
    rows, order = kept.unique(return_inverse=True)
    with_mass = 4 * len(rows) * len(ids) <= MASS_BYTES if mass is None else bool(mass)
    distilled = {one: indexer_for(lm, one, indexers) for one in set(layers)} if source == "distilled" else {}
    indexing, attending = {}, {}
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        for one in set(layers):
            if source == "attention" or with_mass:
                attending[one] = AttentionRows(one, len(ids), rows, kv_head, with_mass)
            if source == "native":
                indexing[one] = stack.enter_context(IndexerRows(*indexer_of(lm.model, one), rows).hooked())
            elif source == "distilled":
                given = stack.enter_context(LayerInput(one).hooked(lm.model))
                indexing[one] = DistilledRows(placed(lm, one, distilled[one]), given, rows, lm.dtype)
            sees = [attending.get(one), indexing.get(one) if source == "distilled" else None]
            stack.enter_context(attention_seen(lm.model, one, *filter(None, sees)))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(evaluating(lm.model))
        progress = progress or quiet
        progress(0, len(ids), "Reading the text")
        hidden_states(lm.model, ids.to(lm.device), None, progress, 0, len(ids), cached=source == "native")
    found = [_capture(lm, one, source, ids, kept, order, indexing.get(one), attending.get(one)) for one in layers]
    return found if several else found[0]


def _capture(
    lm, layer: int, source: str, ids: Tensor, kept: Tensor, order: Tensor, indexing, attending
) -> IndexCapture:
    for watch in (indexing, attending):
        if watch is not None and watch.seen != len(ids):
            raise RuntimeError(
                f"layer {layer} of {lm.name} does not attend through transformers' attention functions: its queries "
                "and keys cannot be seen"
            )
    # Out of inference mode, so that a caller may do anything with what is made of it.
    with torch.inference_mode(False), torch.no_grad():
        tensors = {} if attending is None else attending.tensors()
        tensors |= {} if indexing is None else indexing.tensors()
        if not order.equal(torch.arange(len(order))):
            again = {"q", "w", "mass"} & set(tensors)
            tensors |= {name: tensors[name][order.to(tensors[name].device)] for name in again}
    meta = {**model_meta(lm, layer), "source": source, "dtype": dtype_name(tensors["q"].dtype)}
    del meta["head_dtype"]
    meta |= {"rope": _rope(lm, layer)} | (attending if indexing is None else indexing).meta()
    meta["mass"] = None
    if "mass" in tensors:
        meta["mass"] = f"mean over {attending.heads} heads" + ", before the indexer cuts" * (source == "native")
    return IndexCapture(
        **tensors,
        lo=torch.zeros(len(kept), dtype=torch.int64),
        hi=kept + 1,
        positions=kept,
        ids=ids,
        tokens=lm.tokens(ids),
        meta=meta,
    )


def _source(source: str) -> None:
    if source not in SOURCES:
        raise ValueError(f"source must be one of {SOURCES}, got {source!r}")


def check_layer(lm: LanguageModel, layer: int, source: str, n_tokens: int) -> None:
    """Raise ValueError where a layer has no index of this source over a text of this length."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < lm.n_layers:
        raise ValueError(f"layer must be an int in [0, {lm.n_layers - 1}], got {layer!r}")
    if source == "native":
        found = indexer_of(lm.model, layer)
        if found is None:
            there = index_layers(lm, "native")
            which = f"layers {there} have" if there else f"no layer of {lm.name} has"
            raise ValueError(f"layer {layer} has no indexer: {which} one; source='attention' needs none")
        if found[0].config.model_type not in ROPE:
            raise ValueError(f"the indexer of {found[0].config.model_type} is not known: only {', '.join(ROPE)}")
        return
    if not _attends(lm, layer):
        there = index_layers(lm, "attention", n_tokens)
        which = f"layers {there} have" if there else f"no layer of {lm.name} has"
        raise ValueError(f"layer {layer} has no attention whose queries and keys can be seen: {which} one")
    reach = _reach(lm, layer)
    if reach is not None and n_tokens > reach:
        there = index_layers(lm, "attention", n_tokens)
        which = f"layers {there} attend to all of it" if there else f"no layer of {lm.name} attends to all of it"
        raise ValueError(f"{too_narrow(layer, reach, n_tokens)}; {which}")


def _config(lm: LanguageModel):
    return lm.model.config.get_text_config(decoder=True)


def _kind(lm: LanguageModel, layer: int) -> str:
    """What the configuration calls the layer; "" where it names none."""
    kinds = getattr(_config(lm), "layer_types", None)
    return kinds[layer] if kinds else ""


def _attends(lm: LanguageModel, layer: int) -> bool:
    kind = _kind(lm, layer)
    return "linear" not in kind and kind not in _WITHOUT_ATTENTION and bool(attention_modules(lm.model, layer))


def _reach(lm: LanguageModel, layer: int) -> int | None:
    """How many tokens back a layer attends, as the configuration says; None: all."""
    config, kind = _config(lm), _kind(lm, layer)
    if not kind and getattr(config, "sliding_window", None):
        kind = "sliding_attention"
    name = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}.get(kind)
    return getattr(config, name, None) if name else None


def _rope(lm: LanguageModel, layer: int) -> str:
    """ "post": q and k come rotated. "none": the layer knows no RoPE."""
    config = _config(lm)
    without = getattr(config, "no_rope_layers", None)
    rotates = getattr(config, "rope_parameters", None) and not (without and without[layer] == 0)
    return "post" if rotates else "none"


def rope_theta(lm: LanguageModel, layer: int) -> float:
    """The base of a layer's rotation; 10,000 where the configuration names none."""
    given = getattr(_config(lm), "rope_parameters", None) or {}
    given = given.get(_kind(lm, layer), given)  # one for each kind of layer, in mixed models
    return float(given.get("rope_theta") or 10_000.0)
