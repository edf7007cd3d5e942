"""Captures that come with the repository, so that everything opens without a model.

What they are derived from, and its terms: data/captures/NOTICE. `record.py` makes them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data" / "captures"


def recorded_names() -> list[str]:
    """Names of the captures in data/captures, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def recorded(name: str):
    """The LogitCapture recorded under a name.

    Raises:
        ValueError: no such name; the message lists those there are.
    """
    from .storage import load_capture

    if name not in recorded_names():
        there = ", ".join(recorded_names()) or f"none in {FOLDER} (use a clone of the repository)"
        raise ValueError(f"there is no recorded capture {name!r}; there are: {there}")
    return load_capture(FOLDER / f"{name}.safetensors")
