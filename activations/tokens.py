"""Token ids as the text they stand for, for any tokenizer. Knows tokenizers, not models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import torch

# Slots that training never filled: Gemma, BERT-likes, Llama 3.
_PLACEHOLDER = re.compile(r"<unused\d+>|\[unused\d+\]|<\|reserved_special_token_\d+\|>")


def byte_of_char() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE: visible Latin-1 stands for itself, the rest for U+0100 onwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(visible)]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def placeholder(vocab_id: int) -> str:
    """The label of an id that has no text."""
    return f"<id {vocab_id}>"


class TokenText:
    """`label(ids)` for every id of the head, and which of them are `unused`.

    Args:
        tokenizer: Of Hugging Face, or anything with `convert_ids_to_tokens(ids)` or `decode(ids)`.
        vocab_size: Rows of the head; ids beyond the tokenizer are labelled `<id N>`.
    """

    def __init__(self, tokenizer, vocab_size: int):
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._known = min(vocab_size, _length(tokenizer, vocab_size))
        self._bytes = byte_of_char() if _is_byte_level(tokenizer) else None

    def label(self, ids) -> list[str]:
        """Raw token text, "▁" shown as a space; halves of characters as `\\xe6`; `<id N>` without text."""
        ids = as_ids(ids, self.vocab_size)
        inside = [i for i in ids if i < self._known]
        raw = dict(zip(inside, self._raw(inside), strict=True))
        return [placeholder(i) if raw.get(i) is None else self._text(raw[i]) for i in ids]

    @cached_property
    def unused(self) -> torch.Tensor:
        """bool [V]: `<unused…>` tokens and ids without text. All logits can be compared without them."""
        raw = self._raw(range(self._known))
        mask = torch.ones(self.vocab_size, dtype=torch.bool)
        mask[: self._known] = torch.tensor([text is None or bool(_PLACEHOLDER.fullmatch(text)) for text in raw])
        return mask

    def _raw(self, ids: Sequence[int]) -> list[str | None]:
        if hasattr(self._tokenizer, "convert_ids_to_tokens"):
            return list(self._tokenizer.convert_ids_to_tokens(list(ids)))
        return [self._tokenizer.decode([i]) for i in ids]

    def _text(self, raw: str) -> str:
        if self._bytes is None:
            return raw.replace("▁", " ")
        if any(char not in self._bytes for char in raw):
            return raw
        return bytes(self._bytes[char] for char in raw).decode("utf-8", errors="backslashreplace")


def apart(encode: Callable[[str], torch.Tensor]) -> tuple[torch.Tensor, Callable[[str], torch.Tensor]]:
    """What a tokenizer puts before every text (BOS, or nothing), and an `encode` of what follows it alone."""
    one, other = encode("a"), encode("7")
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return one[:n], lambda text: encode(text)[n:]


def _length(tokenizer, default: int) -> int:
    try:
        return len(tokenizer)
    except TypeError:
        return getattr(tokenizer, "vocab_size", default)


def _is_byte_level(tokenizer) -> bool:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return "ByteLevel" in repr(decoder) or hasattr(tokenizer, "byte_decoder")


def as_ids(ids, vocab_size: int) -> list[int]:
    """A list of vocabulary ids from an int, a sequence, an array or a tensor.

    Raises:
        ValueError: not integers, not one-dimensional, or out of the vocabulary, with the first offender.
    """
    if isinstance(ids, int) and not isinstance(ids, bool):
        ids = [ids]
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"token ids must be integers, got {ids!r:.80}") from error
    if tensor.numel() == 0 and tensor.dim() <= 1:
        return []
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"token ids must be integers, got {tensor.dtype}")
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    if tensor.dim() != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {tuple(tensor.shape)}")
    outside = (tensor < 0) | (tensor >= vocab_size)
    if outside.any():
        raise ValueError(f"token id {tensor[outside][0].item()} is out of the vocabulary [0, {vocab_size})")
    return tensor.tolist()


def encode(tokenizer, text: str) -> list[int]:
    """Ids of a text with the special tokens that this tokenizer starts a text with, and none at its end.

    Raises:
        ValueError: the text is empty, or is no valid Unicode.
        TypeError: not a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}")
    if not text:
        raise ValueError("the text is empty: give at least one character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text holds half a character at position {error.start} (a lone surrogate)") from error
    ids = _call(tokenizer, text)
    eos = getattr(tokenizer, "eos_token_id", None)
    if len(ids) > 1 and eos is not None and ids[-1] == eos and ids[-1:] != _without_special(tokenizer, text)[-1:]:
        ids = ids[:-1]
    if not ids:
        raise ValueError(f"the tokenizer makes no token of the text {text!r:.80}")
    return ids


def _call(tokenizer, text: str) -> list[int]:
    # Transformers warns of texts longer than the tokenizer was told of; the context is checked by the capture.
    if _is_huggingface(tokenizer):
        return list(tokenizer(text, verbose=False)["input_ids"])
    return [int(i) for i in tokenizer.encode(text)]


def _without_special(tokenizer, text: str) -> list[int]:
    if _is_huggingface(tokenizer):
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return []


def _is_huggingface(tokenizer) -> bool:
    return hasattr(tokenizer, "add_special_tokens") and callable(tokenizer)
