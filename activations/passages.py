"""Passages whose next-token loss says what a selection costs: prose, code, few-shot patterns, several documents.

Each is as long as asked and made from a seed, out of texts that nothing is trained on, or generated. Its last tokens
count, which have all the rest before them. Knows a tokenizer, no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .texts import builtin_text, measuring_text
from .tokens import apart

KINDS = ("prose", "code", "few-shot", "documents")
SCORED = 256  # tokens at the end of a passage
SPLITS = ("evaluation", "training")
# Of `builtin_text`.
CODE = "decimal"
DOCUMENTS = ("argparse", "typing", "functools")
Encode = Callable[[str], Tensor]
# Of the texts here; more are taken where a tokenizer needs fewer tokens.
_CHARACTERS_A_TOKEN = 6
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True, eq=False)
class Passage:
    """A text and which of its tokens count.

    Attributes:
        ids: [N] int64 on the CPU, with BOS if the tokenizer puts one first.
        scored: [n] int64: places in ids, ascending, none 0, whose loss given all tokens before is taken.
        kind, seed: What it was made from.
    """

    ids: Tensor
    scored: Tensor
    kind: str
    seed: int


def passage(encode: Encode, kind: str, length: int, seed: int, *, split: str = "evaluation") -> Passage:
    """A passage of `length` tokens.

    Args:
        encode: Text -> ids [T] int64, as `LanguageModel.encode`.
        kind: "prose" (the reference of the language), "code" (a long module), "few-shot" (lines "word -> made-up word",
            whose right sides count where the word stood before), or "documents" (the beginning of one, two others, and
            the first continued, which counts).
        length: In tokens, at least 64.
        seed: Which one: the same seed gives the same text. Different seeds overlap where the source is short.
        split: "training" takes prose and patterns that no evaluation has, for choosing something; only these two kinds.
    Raises:
        ValueError: an unknown kind or split, a length below 64, another kind of the split "training".
    """
    if kind not in KINDS or split not in SPLITS:
        raise ValueError(f"kind must be one of {KINDS} and split of {SPLITS}, got {kind!r} and {split!r}")
    if split == "training" and kind not in ("prose", "few-shot"):
        raise ValueError(f"there is no {kind} of the split 'training'")
    if length < 64:
        raise ValueError(f"length must be at least 64 tokens, got {length}")
    rng = random.Random(f"passage {split} {kind} {length} {seed}")
    bos, encode = apart(encode)
    rest = length - len(bos)
    scored = torch.arange(rest - min(SCORED, length // 4), rest)
    if kind == "few-shot":
        ids, scored = _few_shot(encode, rest, rng)
    elif kind == "documents":
        ids = _documents(encode, rest, rng)
    else:
        ids = _cut(encode, _prose(split) if kind == "prose" else builtin_text(CODE), rest, rng)
    return Passage(torch.cat([bos, ids]), scored + len(bos), kind, seed)


def _prose(split: str) -> str:
    measured = measuring_text()
    return measured if split == "evaluation" else builtin_text("pydoc")[len(measured) :]


def _excerpt(source: str, characters: int, rng: random.Random) -> str:
    """From a random line on; a source that ends too early begins again."""
    lines = source.splitlines(keepends=True)
    first = rng.randrange(len(lines))
    text = "".join(lines[first:])
    while len(text) < characters:
        text += source
    return text[:characters]


def _cut(encode: Encode, source: str, length: int, rng: random.Random) -> Tensor:
    state = rng.getstate()
    characters = _CHARACTERS_A_TOKEN * length
    while len(ids := encode(_excerpt(source, characters, rng))) < length:
        characters *= 2
        rng.setstate(state)
    return ids[:length]


def _documents(encode: Encode, length: int, rng: random.Random) -> Tensor:
    """A quarter of the first document, a quarter of each of two others, and the first continued to the end."""
    first, *others = (builtin_text(name) for name in rng.sample(DOCUMENTS, 3))
    quarter = length // 4
    main = _cut(encode, first, length, rng)
    rest = [_cut(encode, other, quarter, rng) for other in others]
    return torch.cat([main[:quarter], *rest, main[quarter:]])[:length]


def _few_shot(encode: Encode, length: int, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Lines "word -> made-up word" until the length is reached; each pair comes back after about a third of them."""
    per_line = len(encode("".join(f"\n{_word(rng)} -> {_word(rng)}" for _ in range(50)))) / 50
    count = max(2, int(length / per_line / 3))
    pairs = [[encode(text) for text in (f"\n{_word(rng)} ->", f" {_word(rng)}")] for _ in range(count)]
    parts, n, seen, scored = [], 0, set(), []
    while n < length:
        for i in rng.sample(range(count), count):
            left, right = pairs[i]
            if i in seen:
                scored += range(n + len(left), n + len(left) + len(right))
            seen.add(i)
            parts += [left, right]
            n += len(left) + len(right)
    inside = [place for place in scored if place < length]
    return torch.cat(parts)[:length], torch.tensor(inside[-SCORED:])


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(3))
