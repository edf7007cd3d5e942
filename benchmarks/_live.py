"""Rows of logits of the default model over the reference of Python, for the scripts beside this file."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import activations
from activations import texts

# About 8,500 tokens; rows are spread over them, so that contexts are short and long.
CHARACTERS = 36_000
# Rows worked on at once: the oracle needs about 100 bytes an entry.
ROWS_AT_ONCE = {"cuda": 128, "cpu": 4}


def capture(rows: int, device: str, model: str = activations.models.gemma.NAME) -> activations.LogitCapture:
    """`rows` positions of the text, at equal steps; float32 logits and those of the model's own head."""
    lm = activations.load(model, device=device)
    ids = lm.encode(texts.builtin_text("pydoc", CHARACTERS))
    if device == "cpu":  # a text of thousands of tokens takes minutes there
        ids = ids[: max(8 * rows, 64)]
    first = 16  # the first tokens of a text are like no others
    places = torch.linspace(first, len(ids) - 1, rows).long().unique()
    found = activations.capture_logits(lm, ids, positions=places)
    found.meta["text"] = f"the first {len(ids):,} tokens of pydoc's topics ({texts.PSF_LICENCE})"
    return found


def chunks(found: activations.LogitCapture, dtype: str, device: str) -> Iterator[tuple[slice, torch.Tensor]]:
    """(rows, logits [b, V]) of the whole capture in the order of its rows."""
    step = ROWS_AT_ONCE[torch.device(device).type]
    for start in range(0, len(found), step):
        rows = slice(start, min(start + step, len(found)))
        yield rows, found.logits(rows, dtype)


def float32(found: activations.LogitCapture, device: str) -> torch.Tensor:
    """All logits of a capture, [rows, V] float32."""
    return torch.cat([logits for _, logits in chunks(found, "float32", device)])
