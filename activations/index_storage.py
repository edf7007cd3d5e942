"""What a file of an `IndexCapture` holds; `storage` writes and reads it."""

from __future__ import annotations

import torch

from .index_capture import IndexCapture

SCHEMA = "qp-explorer/index-capture/1"
TENSORS = ("q", "k", "w", "lo", "hi", "positions", "ids")


def content_of(capture: IndexCapture) -> tuple[dict, dict]:
    """(tensors, plain content) of a capture; the tokens as one block of UTF-8 with their ends."""
    blocks = [text.encode("utf-8", errors="replace") for text in capture.tokens]
    tensors = {name: getattr(capture, name) for name in TENSORS}
    if capture.mass is not None:
        tensors["mass"] = capture.mass
    tensors["token_ends"] = torch.tensor([len(block) for block in blocks], dtype=torch.int64).cumsum(0)
    tensors["token_bytes"] = torch.frombuffer(bytearray(b"".join(blocks) or b" "), dtype=torch.uint8)
    return tensors, {"meta": capture.meta}


def capture_from(tensors: dict, content: dict) -> IndexCapture:
    """The capture of a file; it checks itself.

    Raises:
        KeyError, TypeError, ValueError: something is missing or does not fit.
    """
    meta = content["meta"]
    if not isinstance(meta, dict):
        raise ValueError("meta must be an object")
    fields = {name: tensors[name] for name in TENSORS}
    tokens = _unpack(tensors["token_ends"], tensors["token_bytes"])
    return IndexCapture(**fields, tokens=tokens, mass=tensors.get("mass"), meta={**meta, "recorded": True})


def _unpack(ends: torch.Tensor, joined: torch.Tensor) -> list[str]:
    if ends.dtype is not torch.int64 or joined.dtype is not torch.uint8 or ends.dim() != 1 or joined.dim() != 1:
        raise ValueError("token_ends must be int64 and token_bytes uint8, 1-D")
    bounds = [0, *ends.tolist()]
    if bounds != sorted(bounds) or bounds[-1] > len(joined):
        raise ValueError("token_ends must rise within token_bytes")
    block = joined.numpy().tobytes()
    return [block[a:b].decode("utf-8") for a, b in zip(bounds, bounds[1:])]
