"""What the attention of one layer is given, seen where transformers hands it to its attention function.

There queries and keys are what the layer really uses: projected, normed and rotated by the model's own code. For a
time the layer's attention module reads its configuration through a stand-in that names our function, which looks, or
attends otherwise (`selected.py`), and calls the one that the model would have called. Knows nothing of texts.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NAME = "qp_explorer_index"
# Logits of one head of a few rows, at once.
_LOGITS_BYTES = 64 << 20
# Implementations for which the DSA models of transformers turn their selection into a mask.
_MASKED = ("eager", "sdpa")


class _Config:
    """A configuration that differs in the name of the attention function alone."""

    _attn_implementation = NAME

    def __init__(self, own, attend: Callable):
        self.__dict__.update(own=own, attend=attend)

    def __getattr__(self, name: str):
        return getattr(self.own, name)


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)


def attention_modules(model, layer: int) -> list:
    """The self-attention modules of a layer whose function comes from transformers' table: one, in a causal model."""
    return [
        module
        for module in model.modules()
        if getattr(module, "layer_idx", None) == layer
        and "attention" in type(module).__name__.lower()
        and hasattr(module, "config")
        and hasattr(sys.modules[type(module).__module__], "ALL_ATTENTION_FUNCTIONS")
        and not getattr(module, "is_cross_attention", False)
    ]


@contextmanager
def attention_by(model, layer: int, attend: Callable) -> Iterator[None]:
    """Have a layer attend by attend(own, module, query, key, value, mask, **options).

    Args:
        attend: Gets what an attention function of transformers gets, after `own`: the function that would have been
            called, which takes the same without itself. What replaces a layer already is such a function.
    """
    _register()
    found = [(module, module.config) for module in attention_modules(model, layer)]
    try:
        for module, config in found:
            module.config = _Config(config, functools.partial(attend, functools.partial(_own, config)))
        yield
    finally:
        for module, config in found:
            module.config = config


@contextmanager
def attention_seen(model, layer: int, *sees: Callable) -> Iterator[None]:
    """Call each see(module, query [Hq, S, D], key [Hkv, n, D], options) whenever the layer attends; nothing without."""
    if not sees:
        yield
        return

    def look_and_attend(own, module, query, key, value, mask, *args, **options):
        for see in sees:
            see(module, query[0], key[0], options)
        return own(module, query, key, value, mask, *args, **options)

    with attention_by(model, layer, look_and_attend):
        yield


def _attend(module, *args, **options):
    return module.config.attend(module, *args, **options)


def _own(config, module, query, key, value, mask, *args, **options):
    """Attend as the module does with this configuration."""
    if isinstance(config, _Config):
        return config.attend(module, query, key, value, mask, *args, **options)
    name = config._attn_implementation
    home = sys.modules[type(module).__module__]
    function = home.ALL_ATTENTION_FUNCTIONS.get_interface(name, getattr(home, "eager_attention_forward", None))
    if options.get("indices") is not None and name in _MASKED:
        mask = _without_the_rest(mask, options.pop("indices"), query.dtype)
    return function(module, query, key, value, mask, *args, **options)


def _without_the_rest(mask: Tensor, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """A causal mask [1, 1, S, n] that leaves only the selected keys [1, S, topk], as the model makes it."""
    selected = torch.zeros(mask.shape[0], *mask.shape[2:], dtype=torch.bool, device=mask.device)
    selected = selected.scatter_(-1, indices.long(), True)[:, None]
    return mask & selected if mask.dtype == torch.bool else mask.masked_fill(~selected, torch.finfo(dtype).min)


class AttentionRows:
    """Queries, keys and mass of a layer at some positions, gathered over the chunks of a text.

    Args:
        layer, n_tokens: What is captured; N.
        positions: int64, ascending and unique.
        kv_head: The key head that is kept, with the query heads that read it; None: the first.
        with_mass: Whether the mass that attention gives each key is taken too.
    """

    def __init__(self, layer: int, n_tokens: int, positions: Tensor, kv_head: int | None, with_mass: bool):
        self.layer, self.n_tokens, self.positions = layer, n_tokens, positions
        self.kv_head, self.with_mass = kv_head or 0, with_mass
        self.seen = self.heads = self.kv_heads = 0
        self.scale = 1.0
        self._parts: dict[str, list[Tensor]] = {}

    def __call__(self, module, query: Tensor, key: Tensor, options: dict) -> None:
        new = query.shape[1]
        start = key.shape[1] - new
        self._check(module, key, options, start)
        if start == 0:  # a text that could not be continued by chunks begins again
            self._parts = {"q": [], "k": [], "mass": []}
        self.seen, self.heads, self.kv_heads = start + new, len(query), len(key)
        self.scale = float(query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"])
        rows = chosen(self.positions, start, new)
        group = self.heads // self.kv_heads
        own = query[self.kv_head * group : (self.kv_head + 1) * group, rows.to(query.device)]
        self._parts["k"].append(key[self.kv_head, start:].clone())
        self._parts["q"].append(own.transpose(0, 1).contiguous())
        if self.with_mass:
            sinks, softcap = options.get("s_aux"), options.get("softcap")
            given = attention_mass(query, key, rows, scale=self.scale, softcap=softcap, sinks=sinks)
            self._parts["mass"].append(torch.nn.functional.pad(given, (0, self.n_tokens - given.shape[1])))

    def _check(self, module, key: Tensor, options: dict, start: int) -> None:
        window = options.get("sliding_window") or self.n_tokens
        if self.n_tokens > window:
            raise ValueError(too_narrow(self.layer, window, self.n_tokens))
        if not getattr(module, "is_causal", True):
            raise ValueError(f"layer {self.layer} also attends to later tokens: it has no causal index")
        if not 0 <= self.kv_head < len(key):
            heads = "1 key head" if len(key) == 1 else f"{len(key)} key heads"
            raise ValueError(
                f"layer {self.layer} has {heads}: kv_head must be in [0, {len(key) - 1}], got {self.kv_head}"
            )
        if start not in (0, self.seen):
            raise RuntimeError(f"layer {self.layer} attends to {key.shape[1]} keys after {self.seen} tokens were read")

    def tensors(self) -> dict[str, Tensor]:
        """q [T, H, D], k [N, D], w [T, H] and, if it was taken, mass [T, N]."""
        found = {name: torch.cat(parts) for name, parts in self._parts.items() if parts}
        group = found["q"].shape[1]
        found["w"] = torch.full(found["q"].shape[:2], self.scale / group, device=found["q"].device)
        return found

    def meta(self) -> dict:
        group = self.heads // self.kv_heads
        first = self.kv_head * group
        heads = {"kv_head": self.kv_head, "kv_heads": self.kv_heads, "heads": list(range(first, first + group))}
        return {**heads, "scale": self.scale, "w": f"scale / {group}"}


def chosen(positions: Tensor, start: int, count: int) -> Tensor:
    """Which of the tokens from `start` on, `count` of them, are wanted: their places in the chunk."""
    return positions[(positions >= start) & (positions < start + count)] - start


def too_narrow(layer: int, window: int, n_tokens: int) -> str:
    return (
        f"layer {layer} attends to {window:,} neighbouring tokens only, of {n_tokens:,} in the text: there is nothing "
        "to select beyond them"
    )


def attention_mass(query, key, rows, *, scale: float, softcap: float | None = None, sinks=None) -> Tensor:
    """The mean over heads of what attention gives each key, [rows, n] float32.

    Args:
        query: [Hq, S, D], the last S of n tokens. key: [Hkv, n, D]. rows: int64, places in S.
        softcap: c of c tanh(logit / c). sinks: [Hq] logits of a key that is not there, which takes mass.
    """
    heads, new = query.shape[:2]
    keys, group = key.shape[1], heads // len(key)
    place, rows = torch.arange(keys, device=key.device), rows.to(key.device)
    mass = torch.zeros(len(rows), keys, device=key.device)
    step = max(1, _LOGITS_BYTES // (4 * keys))
    for kv_head in range(len(key)):
        columns = key[kv_head].float().t()
        for head in range(kv_head * group, (kv_head + 1) * group):
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                logits = (query[head, part].float() @ columns).mul_(scale)
                if softcap:
                    logits.div_(softcap).tanh_().mul_(softcap)
                logits.masked_fill_(place > (part + keys - new)[:, None], -torch.inf)
                total = logits.logsumexp(1, keepdim=True)
                if sinks is not None:
                    total = torch.logaddexp(total, sinks[head].float())
                mass[start : start + step] += logits.sub_(total).exp_()
    return mass.div_(heads)
