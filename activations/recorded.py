"""Captures that come with the repository, so that everything opens without a model.

What they are derived from, and its terms: data/captures/NOTICE. `record.py` makes them.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data" / "captures"


def recorded_names() -> list[str]:
    """Names of the captures in data/captures, sorted, numbers by size."""
    return sorted((path.stem for path in FOLDER.glob("*.safetensors")), key=_by_size)


def _by_size(name: str) -> list:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def recorded(name: str):
    """The capture recorded under a name.

    "openers" and "other_samplers" are rows of logits. "index_layer_5", "index_layer_11" and "index_layer_17" are what
    the global layers of the default model make of 8,192 tokens of pydoc's topics: all keys, and the last 64 queries
    with the mass of attention. These queries read lines that stand, word for word, 5,926 tokens before as well.
    "sentence_layer_5", "sentence_layer_11" and "sentence_layer_17" are the same of every token of a short sentence.

    Returns:
        A `LogitCapture` or, of the names that end with a layer, an `IndexCapture`.
    Raises:
        ValueError: no such name; the message lists those there are.
    """
    from .storage import load_capture

    if name not in recorded_names():
        there = ", ".join(recorded_names()) or f"none in {FOLDER} (use a clone of the repository)"
        raise ValueError(f"there is no recorded capture {name!r}; there are: {there}")
    return load_capture(FOLDER / f"{name}.safetensors")
