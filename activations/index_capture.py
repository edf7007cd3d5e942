"""Queries, keys and weights of a lightning indexer, of a model or made up: what index selection works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@dataclass(frozen=True, eq=False, repr=False)
class IndexCapture:
    """T queries of one layer against N keys, one a token.

    Attributes:
        q: [T, H, D], k: [N, D]: of one dtype of float32, bfloat16, float16, float8_e4m3fn, on one device.
        w: [T, H] float, softmax and head scales folded in.
        lo, hi: [T] int64 on the CPU: row t may select lo[t] <= s < hi[t], both in [0, N].
        positions: [T] int64 on the CPU: which of the N tokens each query is.
        ids: [N] int64 on the CPU. tokens: N strings.
        mass: [T, N] float: what the layer's own attention gives each key; None where that is not known.
        meta: What the caption is made of (model, layer, source, dtype, rope), and more; plain values.
    Raises:
        TypeError: something is of another type or dtype. ValueError: a shape, device or number that does not fit.
    """

    q: Tensor
    k: Tensor
    w: Tensor
    lo: Tensor
    hi: Tensor
    positions: Tensor
    ids: Tensor
    tokens: list[str]
    mass: Tensor | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for name, dims in (("q", 3), ("k", 2), ("w", 2), ("lo", 1), ("hi", 1), ("positions", 1), ("ids", 1)):
            _tensor(name, getattr(self, name), dims)
        (rows, heads, width), keys = self.q.shape, len(self.k)
        if self.q.dtype not in DTYPES or self.k.dtype != self.q.dtype or not self.w.is_floating_point():
            dtypes = f"{self.q.dtype}, {self.k.dtype} and {self.w.dtype}"
            raise TypeError(f"q and k must share a dtype of an indexer, and w be a float tensor, got {dtypes}")
        if self.k.shape[1] != width or self.w.shape != (rows, heads):
            shapes = f"q {list(self.q.shape)}, k {list(self.k.shape)} and w {list(self.w.shape)}"
            raise ValueError(f"k must be [N, D] and w [T, H] for q [T, H, D], got {shapes}")
        if {self.k.device, self.w.device} != {self.q.device}:
            raise ValueError(f"q, k and w must be on one device, got {self.q.device}, {self.k.device}, {self.w.device}")
        for name, length, end in (("lo", rows, keys), ("hi", rows, keys), ("positions", rows, keys - 1)):
            _whole(name, getattr(self, name), length, end)
        _whole("ids", self.ids, keys, None)
        if not isinstance(self.tokens, list) or len(self.tokens) != keys:
            raise ValueError(f"tokens must be a list of N = {keys} strings")
        if not isinstance(self.meta, dict):
            raise TypeError(f"meta must be a dict, got {type(self.meta).__name__}")
        if self.mass is not None:
            _tensor("mass", self.mass, 2)
            if self.mass.shape != (rows, keys) or not self.mass.is_floating_point():
                raise ValueError(f"mass must be [T, N] floats, [{rows}, {keys}], got {list(self.mass.shape)}")

    @property
    def caption(self) -> str:
        """Model, layer, source, dtype and device, for the line under a figure."""
        layer = [f"layer {self.meta['layer']}"] if self.meta.get("layer") is not None else []
        source = [str(self.meta["source"])] if self.meta.get("source") is not None else []
        parts = [str(self.meta.get("model", "unnamed")), *layer, *source]
        dtype = str(self.q.dtype).removeprefix("torch.")
        return " · ".join([*parts, dtype, str(self.q.device), *["recorded"] * bool(self.meta.get("recorded"))])

    def __len__(self) -> int:
        return len(self.q)

    def __repr__(self) -> str:
        heads, width = self.q.shape[1:]
        return f"<IndexCapture {len(self)} queries of {heads} x {width}, {len(self.k):,} keys: {self.caption}>"


def _tensor(name: str, value: Any, dims: int) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.ndim != dims:
        raise ValueError(f"{name} must have {dims} dimensions, got shape {list(value.shape)}")


def _whole(name: str, value: Tensor, length: int, end: int | None) -> None:
    """int64 [length] on the CPU, not negative, at most `end`."""
    if value.dtype != torch.int64 or value.device.type != "cpu":
        raise TypeError(f"{name} must be int64 on the CPU, got {value.dtype} on {value.device}")
    if len(value) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(value)}")
    if length and (int(value.min()) < 0 or (end is not None and int(value.max()) > end)):
        limit = "" if end is None else f" and at most {end}"
        raise ValueError(f"{name} must be >= 0{limit}, got {int(value.min())} to {int(value.max())}")
