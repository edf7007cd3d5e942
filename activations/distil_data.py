"""What an indexer is distilled from: pieces of texts by step, and what attention does on one of them.

Which piece a step reads depends on the seed and the step alone, so that a resumed run reads what the first would have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from . import forward, tokens
from .forward import evaluating, hidden_states
from .index_attention import attention_mass, attention_seen, too_narrow
from .index_distilled import LayerInput
from .models import LanguageModel

# On a GPU a model reads more at once: its launches take longer than its products. Masks are this times the text.
_CHUNK_ON_GPU = 4096


class Pieces:
    """Texts laid one after the other, of which every step takes a piece of each length.

    Args:
        given: Texts or ids.
        lengths: Tokens of the pieces of one step.
    Raises:
        ValueError: less text than the longest piece takes.
    """

    def __init__(self, lm: LanguageModel, given: Iterable, lengths: Sequence[int], seed: int):
        bos = getattr(lm.tokenizer, "bos_token_id", None)
        texts = [_ids(lm, text) for text in given]
        self._first = bool(texts) and bos is not None and all(int(ids[0]) == bos for ids in texts)
        parts = [ids[1:] if self._first else ids for ids in texts]
        self._bos, self.ids = bos, torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32)
        self.lengths, self.seed = tuple(lengths), seed
        if len(self.ids) < max(lengths):
            raise ValueError(f"the texts have {len(self.ids):,} tokens, pieces of {max(lengths):,} are wanted")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.ids.numpy().tobytes()).hexdigest()

    def at(self, step: int) -> list[Tensor]:
        """ids [length] int64 of the step's pieces, with BOS first where the tokenizer puts it there."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        found = []
        for length in self.lengths:
            begin = int(torch.randint(len(self.ids) - length + 1, (), generator=generator))
            piece = self.ids[begin : begin + length].long()
            if self._first:
                piece[0] = self._bos
            found.append(piece)
        return found

    def rows(self, step: int, length: int, count: int | None) -> Tensor:
        """Which queries of a piece count in this step, ascending int64: all, or `count` of them."""
        if count is None or count >= length:
            return torch.arange(length)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) * 4099 + length)
        return torch.randperm(length, generator=generator)[:count].sort().values


def _ids(lm: LanguageModel, text) -> Tensor:
    """int32 ids of a text of any length."""
    ids = lm.encode(text) if isinstance(text, str) else torch.tensor(tokens.as_ids(text, lm.vocab_size))
    return ids.int()


@dataclass
class Attention:
    """What the attention of a layer reads, and what it does with it, for a text of N tokens.

    Attributes:
        hidden: [N, hidden]. query: [Hq, N, D], key: [Hkv, N, D]: after norm and RoPE. All in the model's dtype.
        options: scale, softcap and sinks, as `attention_mass` takes them.
    """

    hidden: Tensor
    query: Tensor
    key: Tensor
    options: dict

    def mass(self, rows: Tensor) -> Tensor:
        """The mean over heads of what rows [R], ascending, give the keys up to the last of them: [R, n] float32."""
        end = int(rows[-1]) + 1
        return attention_mass(self.query[:, :end], self.key[:, :end], rows, **self.options)


class _Watch:
    """Gathers `Attention` over the chunks of a text. Is called whenever the layer attends."""

    def __init__(self, layer: int, n_tokens: int, given: LayerInput):
        self.layer, self.n_tokens, self.given = layer, n_tokens, given
        self._hidden: list[Tensor] = []
        self._query: list[Tensor] = []
        self._key, self._options = None, {}

    def __call__(self, module, query: Tensor, key: Tensor, options: dict) -> None:
        window = options.get("sliding_window") or self.n_tokens
        if self.n_tokens > window:
            raise ValueError(too_narrow(self.layer, window, self.n_tokens))
        if key.shape[1] == query.shape[1]:  # a text that could not be continued by chunks begins again
            self._hidden, self._query = [], []
        scale = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
        sinks = options.get("s_aux")
        self._options = {"scale": float(scale), "softcap": options.get("softcap")}
        self._options["sinks"] = None if sinks is None else sinks.detach()
        self._hidden.append(self.given.hidden)
        self._query.append(query)
        self._key = key  # of all tokens so far

    def found(self, name: str) -> Attention:
        seen = sum(map(len, self._hidden))
        if seen != self.n_tokens or self._key.shape[1] != self.n_tokens:
            raise RuntimeError(
                f"layer {self.layer} of {name} does not attend through transformers' attention functions: it cannot be "
                "distilled"
            )
        return Attention(torch.cat(self._hidden), torch.cat(self._query, dim=1), self._key, self._options)


def read_attention(
    lm: LanguageModel, ids: Tensor, layers: Sequence[int], stop: Callable[[], None]
) -> dict[int, Attention]:
    """Run a text [N] through the frozen model and keep what some layers attend with; memory grows with N alone.

    Args:
        stop: Called after each chunk of the text; may raise to cancel.
    """
    watches = {}
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(lm.model))
        for layer in layers:
            given = stack.enter_context(LayerInput(layer).hooked(lm.model))
            watches[layer] = _Watch(layer, len(ids), given)
            stack.enter_context(attention_seen(lm.model, layer, watches[layer]))
        chunk = _CHUNK_ON_GPU if lm.device.type == "cuda" else forward.CHUNK
        hidden_states(lm.model, ids.to(lm.device), None, lambda *_: stop(), 0, len(ids), chunk=chunk)
    return {layer: watch.found(lm.name) for layer, watch in watches.items()}
