"""One text through a causal model, keeping what its output embedding sees at every position.

A hook takes the head's input and hands on only the last position, so that [T, V] is never made and the model's own
logits of that position come out for comparison. Works for every architecture that calls its head as a module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .progress import Progress

CHUNK = 512
# Renamed within transformers 5; the old name warns where the new one is known.
_CACHE_NAMES = ("cache", "past_key_values")
_FINAL_NORMS = {"norm", "final_norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f"}


def hidden_states(
    model,
    ids: torch.Tensor,
    layer: int | None,
    progress: Progress,
    done: int,
    total: int,
    *,
    cached: bool = False,
    chunk: int | None = None,
):
    """Head inputs of one text, in chunks that reuse the model's cache.

    Args:
        ids: [T] int64 on the model's device.
        layer: None for the model's output, else the output of that layer (0: the embeddings) after the final norm.
        done, total: Tokens before this text and in all, for `progress`, which may raise to stop.
        cached: Let the model keep a cache even of a text that is one chunk.
        chunk: Tokens read at once; None is `CHUNK`.
    Returns:
        hidden [T, H]; what the head saw at the last position [1, H]; the logits [V] that the model made of it.
    Raises:
        RuntimeError: the model does not call its head, or its final norm cannot be found.
    """
    parts, cache, last, own = [], None, None, None
    chunk = chunk or CHUNK
    chunked, start = len(ids) > chunk, 0
    while start < len(ids):
        # A model whose cache cannot be continued by a chunk gets the whole text at once instead.
        stop = min(start + chunk, len(ids)) if chunked else len(ids)
        arguments = _arguments(model, ids[start:stop], cache, chunked or cached)
        states, last, own, cache = _forward(model, arguments, layer)
        if stop < len(ids) and not _only_attends(cache):
            chunked, cache = False, None
            continue
        parts.append(states)
        start = stop
        progress(done + stop, total, "Reading the text")
    return torch.cat(parts), last, own


def continued(model, ids: torch.Tensor, cache=None, chunk: int | None = None):
    """Head inputs of further tokens of a text, and the model's cache, which then holds them too.

    Args:
        ids: [S] int64 on the model's device. cache: What the earlier tokens gave; None begins a text.
        chunk: Tokens read at once; None: 512.
    Returns:
        hidden [S, H], cache.
    Raises:
        ValueError: no ids, or a chunk below 1. RuntimeError: the model's cache holds more than keys and values, so that
            it cannot be continued by several tokens.
    """
    chunk = CHUNK if chunk is None else chunk
    if not len(ids) or chunk < 1:
        raise ValueError(f"there must be tokens, and a chunk of at least 1, got {len(ids)} and {chunk}")
    parts = []
    for some in ids.split(chunk):
        states, _, _, cache = _forward(model, _arguments(model, some, cache, True), None)
        if not _only_attends(cache):
            raise RuntimeError(f"the cache of {type(model).__name__} holds more than keys and values: no chunks")
        parts.append(states)
    return torch.cat(parts), cache


def _arguments(model, ids: torch.Tensor, cache, use_cache: bool) -> dict:
    arguments = {"input_ids": ids[None], "use_cache": use_cache}
    if cache is not None:
        accepted = inspect.signature(model.forward).parameters
        arguments[next(name for name in _CACHE_NAMES if name in accepted)] = cache
    return arguments


def _forward(model, arguments: dict, layer: int | None):
    """hidden [T, H], head input [1, H] and own logits [V] of the last position, cache or None."""
    with _head_input(model) as seen, _final_norms(model, wanted=layer is not None) as norms:
        out = model(**arguments, output_hidden_states=layer is not None, return_dict=True)
    if "states" not in seen:
        raise RuntimeError(f"{type(model).__name__} does not call its output embedding: its logits cannot be captured")
    states = seen["states"]
    last = states[0, -1:]
    if layer is not None:
        norm = next((module for module, output in norms if torch.equal(output, states)), None)
        if norm is None:
            raise RuntimeError(f"{type(model).__name__}: found no final norm before the head, so no logits of a layer")
        states = norm(out.hidden_states[layer])
    cache = next((out[name] for name in _CACHE_NAMES if name in out.keys()), None)  # noqa: SIM118
    return states[0], last, out.logits[0, -1], cache


def _only_attends(cache) -> bool:
    """Whether all that a cache holds is keys and values: state-space layers continue one token at a time only."""
    layers = getattr(cache, "layers", None)
    return bool(layers) and all(
        isinstance(getattr(layer, "keys", None), torch.Tensor) and not hasattr(layer, "recurrent_states")
        for layer in layers
    )


@contextmanager
def _head_input(model) -> Iterator[dict]:
    seen = {}

    def keep(module, inputs):
        seen["states"] = inputs[0]
        return (inputs[0][:, -1:], *inputs[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def _final_norms(model, wanted: bool) -> Iterator[list]:
    """(module, output) of every module that is named as final norms are."""
    seen = []
    handles = []
    try:
        if wanted:
            for name, module in model.named_modules():
                if name.rpartition(".")[2] in _FINAL_NORMS:
                    handles.append(module.register_forward_hook(lambda m, _, output: seen.append((m, output))))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluating(model) -> Iterator[None]:
    """Without dropout; each module goes back to the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
