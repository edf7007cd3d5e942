"""Arguments of index selection, checked once and brought to one form. Nothing is computed here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import backend as backends
from ..machine import upload

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
LARGEST_D = 256


@dataclass(frozen=True)
class Problem:
    """Queries, keys and what each row may select, checked.

    Attributes:
        q [T, H, D], k [N, D]: of one dtype. w [T, H]: float32. q_scale [T, H], k_scale [N]: float32, or None for 1.
        lo, hi: [T] int64 in [0, N], on the host: row t may select lo[t] <= s < hi[t].
        topk: Keys selected. max_bytes: Of scores that exist at once. backend: "triton" or "torch".
    """

    q: Tensor
    k: Tensor
    w: Tensor
    q_scale: Tensor | None
    k_scale: Tensor | None
    lo: Tensor
    hi: Tensor
    topk: int
    max_bytes: int
    backend: str

    def __len__(self) -> int:
        return len(self.q)

    @property
    def keys(self) -> int:
        return len(self.k)

    def rows(self, chosen: slice | Tensor) -> Problem:
        """The same keys for some of the rows: a slice, or their numbers on the host."""
        there = on_device(chosen, self.q)
        scale = None if self.q_scale is None else self.q_scale[there]
        fields = {"q": take(self.q, there), "w": self.w[there], "q_scale": scale}
        return replace(self, **fields, lo=self.lo[chosen], hi=self.hi[chosen])


def together(rows: Tensor) -> slice | Tensor:
    """Ascending row numbers as a slice where they follow each other: then nothing is copied."""
    is_slice = len(rows) > 0 and int(rows[-1]) + 1 - int(rows[0]) == len(rows)
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_slice else rows


def on_device(rows: slice | Tensor, where: Tensor) -> slice | Tensor:
    """Rows as an index of a tensor on another device."""
    return upload(rows, where.device) if isinstance(rows, Tensor) else rows


def take(values: Tensor, index) -> Tensor:
    """values[index]; float8 has no gather of its own on every device."""
    if values.dtype == torch.float8_e4m3fn:
        return values.view(torch.uint8)[index].view(values.dtype)
    return values[index]


def problem(q, k, w, topk, *, q_scale, k_scale, lo, hi, backend, max_bytes) -> Problem:
    """Check everything that the selections share.

    Raises:
        TypeError, ValueError: see `dense_topk`. RuntimeError: the back-end cannot run here.
    """
    for name, value, dims in (("q", q, 3), ("k", k, 2), ("w", w, 2)):
        tensor(name, value, dims)
    if q.dtype not in DTYPES or k.dtype != q.dtype:
        raise TypeError(f"q and k must share a dtype of {', '.join(map(_name, DTYPES))}, got {q.dtype} and {k.dtype}")
    if not w.dtype.is_floating_point:
        raise TypeError(f"w must be a float tensor, got {_name(w.dtype)}")
    (rows, heads, width), keys = q.shape, len(k)
    if heads < 1 or not 1 <= width <= LARGEST_D:
        raise ValueError(f"q must be [T, H >= 1, 1 <= D <= {LARGEST_D}], got {list(q.shape)}")
    if k.shape[1] != width or w.shape != (rows, heads):
        shapes = f"q {list(q.shape)}, k {list(k.shape)} and w {list(w.shape)}"
        raise ValueError(f"k must be [N, D] and w [T, H] for q [T, H, D], got {shapes}")
    for name, value, shape in (("q_scale", q_scale, (rows, heads)), ("k_scale", k_scale, (keys,))):
        if value is not None:
            _scale(name, value, shape)
    for name, value in (("k", k), ("w", w), ("q_scale", q_scale), ("k_scale", k_scale)):
        if value is not None and value.device != q.device:
            raise ValueError(f"{name} must be on {q.device} as q is, got {value.device}")
    one_of("backend", backend, backends.BACKENDS)
    backend = backends.resolve(q.device, backend).name
    lo, hi = _bounds(lo, hi, rows, keys)
    scales = (None if scale is None else scale.float().contiguous() for scale in (q_scale, k_scale))
    topk, max_bytes = whole("topk", topk, 1), whole("max_bytes", max_bytes, 1)
    # Contiguous, so that a product takes the same path whoever asks for it.
    return Problem(q.contiguous(), k.contiguous(), w.float(), *scales, lo, hi, topk, max_bytes, backend)


def tensor(name: str, value: Any, dims: int) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.ndim != dims:
        raise ValueError(f"{name} must have {dims} dimensions, got shape {list(value.shape)}")
    return value


def whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return value


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def _scale(name: str, value: Any, shape: tuple[int, ...]) -> None:
    tensor(name, value, len(shape))
    if not value.dtype.is_floating_point:
        raise TypeError(f"{name} must be a float tensor, got {_name(value.dtype)}")
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(value.shape)}")
    value = value.float()
    if not value.is_cuda and not bool(((value > 0) & (value < math.inf)).all()):
        raise ValueError(f"{name} must be positive and finite")


def _bounds(lo: Any, hi: Any, rows: int, keys: int) -> tuple[Tensor, Tensor]:
    """lo and hi on the host, clamped into [0, N]; by default the rows are the last positions of the keys."""
    if hi is None and rows > keys:
        raise ValueError(f"without hi the T queries are the last of N keys: T must be <= N, got {rows} and {keys}")
    lo = torch.zeros(rows, dtype=torch.int64, device="cpu") if lo is None else _bound("lo", lo, rows)
    hi = torch.arange(keys - rows + 1, keys + 1, device="cpu") if hi is None else _bound("hi", hi, rows)
    return lo.clamp(0, keys), hi.clamp(0, keys)


def _bound(name: str, value: Any, rows: int) -> Tensor:
    tensor(name, value, 1)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got {_name(value.dtype)}")
    if len(value) != rows:
        raise ValueError(f"{name} must have one value per query, {rows}, got {len(value)}")
    if value.dtype == torch.uint64:  # more than int64 holds is beyond every key
        return torch.from_numpy(value.cpu().numpy().clip(max=2**62).astype("int64"))
    return value.to("cpu", torch.int64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
