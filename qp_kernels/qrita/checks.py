"""Arguments of the public functions, checked once and brought to one form. Nothing is computed or written here.

What is wrong by type is a `TypeError`, what is wrong by value a `ValueError`, each with what was received. Contents of
CPU tensors are read; contents of CUDA tensors are not, because reading them would synchronise.
"""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LOGIT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGER_DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
ORDERS = ("k_then_p", "joint")
TIES = ("index", "all")
RULES = ("sigma", "paper")


@dataclass
class Limits:
    """k and p of every row, checked. Numbers stay numbers until a tensor of them is asked for: it costs a launch.

    Attributes:
        k_number: k in 1..V - 1 for every row, or None. k_rows: [B] int64 in 1..V (V where a row has no k), or None.
        p_number: p in [0, 1) for every row, or None. p_rows: [B] float64 in [0, 1] (1 where a row has no p), or None.
        k_max: The largest k as far as the host knows it: the tensor's on a CPU, else V.
        order: "k_then_p" or "joint". ties: "index" or "all".
        batch, device: B, and where the rows are.
    """

    k_number: int | None
    k_rows: Tensor | None
    p_number: float | None
    p_rows: Tensor | None
    k_max: int
    order: str
    ties: str
    batch: int
    device: torch.device

    @functools.cached_property
    def k(self) -> Tensor | None:
        """[B] int64 in 1..V, or None: off for every row."""
        return self._tensor(self.k_rows, self.k_number, torch.int64)

    @functools.cached_property
    def p(self) -> Tensor | None:
        """[B] float64 in [0, 1], or None: off for every row."""
        return self._tensor(self.p_rows, self.p_number, torch.float64)

    def _tensor(self, rows: Tensor | None, number: float | None, dtype: torch.dtype) -> Tensor | None:
        return rows if number is None else torch.full((self.batch,), number, dtype=dtype, device=self.device)

    @property
    def has_k(self) -> bool:
        return self.k_number is not None or self.k_rows is not None

    @property
    def has_p(self) -> bool:
        return self.p_number is not None or self.p_rows is not None

    @property
    def off(self) -> bool:
        """Whether neither k nor p is on, as far as the host knows."""
        return not (self.has_k or self.has_p)

    def rows(self, chunk: slice) -> Limits:
        """The limits of some of the rows."""
        k = None if self.k is None else self.k[chunk]
        p = None if self.p is None else self.p[chunk]
        batch = len(range(*chunk.indices(self.batch)))
        return Limits(None, k, None, p, self.k_max, self.order, self.ties, batch, self.device)


def as_rows(logits: Any) -> Tensor:
    """`logits` as [B, V], a view."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a torch.Tensor, got {type(logits).__name__}")
    if logits.layout != torch.strided:
        raise TypeError(f"logits must be a dense tensor, got layout {logits.layout}")
    if logits.dtype not in LOGIT_DTYPES:
        raise TypeError(f"logits must be float32, float16 or bfloat16, got {_name(logits.dtype)}")
    if logits.ndim not in (1, 2) or logits.shape[-1] == 0:
        raise ValueError(f"logits must be [B, V] or [V] with V >= 1, got shape {list(logits.shape)}")
    return logits if logits.ndim == 2 else logits[None]


def limits(logits: Tensor, k: Any, p: Any, order: str = "k_then_p", ties: str = "index") -> Limits:
    """k, p, order and ties for the rows of `logits` ([B, V] or [V])."""
    one_of("order", order, ORDERS)
    one_of("ties", ties, TIES)
    k_number, k_rows = _k(k, logits)
    p_number, p_rows = _p(p, logits)
    k_max = logits.shape[-1] if k_number is None else k_number
    if k_rows is not None and k_rows.numel() and not k_rows.is_cuda:
        k_max = int(k_rows.amax())
    return Limits(k_number, k_rows, p_number, p_rows, k_max, order, ties, batch_of(logits), logits.device)


def _k(k: Any, logits: Tensor) -> tuple[int | None, Tensor | None]:
    vocab, kind = logits.shape[-1], "k must be an int or an integer tensor with one value per row"
    if k is None:
        return None, None
    if isinstance(k, Tensor):
        if k.dtype not in INTEGER_DTYPES:
            raise TypeError(f"{kind}, got a {_name(k.dtype)} tensor")
        rows = per_row("k", k, logits).to(torch.int64)
        if k.dtype == torch.uint64:  # 2**63 and more wrap to negative values, and are beyond any V
            rows = torch.where(rows < 0, vocab, rows)
        if not k.is_cuda and (rows < -1).any():
            raise ValueError(f"k must be >= -1, got {int(rows.min())}")
        return None, torch.where(rows <= 0, vocab, rows.clamp(max=vocab))
    if isinstance(k, (bool, np.bool_)) or not isinstance(k, numbers.Integral):
        raise TypeError(f"{kind}, got {k!r}")
    if k < -1:
        raise ValueError(f"k must be >= -1, got {k}")
    return (int(k) if 0 < k < vocab else None), None


def _p(p: Any, logits: Tensor) -> tuple[float | None, Tensor | None]:
    if p is None:
        return None, None
    value = real_or_rows("p", p, logits)
    if isinstance(value, Tensor):
        return None, value.nan_to_num(nan=1.0).clamp(0.0, 1.0)
    return (value if value < 1 else None), None


def temperatures(temperature: Any, logits: Tensor) -> Tensor | float:
    """Temperature, 0 for argmax: a number, or [B] float64."""
    value = real_or_rows("temperature", temperature, logits, high=math.inf)
    if isinstance(value, Tensor):
        return value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0.0)
    return value


def as_row_values(value: Tensor | float, logits: Tensor) -> Tensor | None:
    """A temperature as [B] float64; None for the number 1, which changes nothing."""
    if isinstance(value, Tensor):
        return value
    return None if value == 1 else fill(logits, value, torch.float64)


def real_rows(name: str, value: Any, logits: Tensor, high: float = 1.0) -> Tensor:
    """A number, or a float tensor with one value per row, in [0, high] and finite, as [B] float64."""
    value = real_or_rows(name, value, logits, high)
    return value if isinstance(value, Tensor) else fill(logits, value, torch.float64)


def real_or_rows(name: str, value: Any, logits: Tensor, high: float = 1.0) -> Tensor | float:
    """The same, where a number stays a float."""
    if not isinstance(value, Tensor):
        if not _in_range(real(name, value), high):
            raise ValueError(_range_message(name, value, high))
        return float(value)
    if value.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} must be a number or a float tensor with one value per row, got {_name(value.dtype)}")
    rows = per_row(name, value, logits).to(torch.float64)
    if not value.is_cuda and not (fine := _in_range(rows, high)).all():
        raise ValueError(_range_message(name, float(rows[~fine][0]), high))
    return rows


def _in_range(value: Any, high: float) -> Any:
    return (value >= 0) & (value <= high) & (value < math.inf)


def _range_message(name: str, value: Any, high: float) -> str:
    wanted = "finite and >= 0" if high == math.inf else f"in [0, {high:g}]"
    return f"{name} must be {wanted}, got {value}"


def seed_rows(seeds: Any, logits: Tensor) -> Tensor:
    """Seeds as [B] int64."""
    if not isinstance(seeds, Tensor) or seeds.dtype != torch.int64:
        got = f"a {_name(seeds.dtype)} tensor" if isinstance(seeds, Tensor) else repr(seeds)
        raise TypeError(f"seeds must be an int64 tensor with one value per row, got {got}")
    return per_row("seeds", seeds, logits)


def per_row(name: str, values: Tensor, logits: Tensor) -> Tensor:
    """A tensor of one value per row as [B]: [B] for [B, V]; 0-d or [1] for [V]."""
    if values.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {values.layout}")
    if values.device != logits.device:
        raise ValueError(f"{name} must be on {logits.device} as logits are, got {values.device}")
    allowed = [logits.shape[:1]] if logits.ndim == 2 else [(), (1,)]
    if tuple(values.shape) not in [tuple(shape) for shape in allowed]:
        wanted = f"[{logits.shape[0]}]" if logits.ndim == 2 else "[] (0-d)"
        raise ValueError(f"{name} must have shape {wanted}, got {list(values.shape)}")
    return values.detach().reshape(-1)


def batch_of(logits: Tensor) -> int:
    """B, which is 1 for [V]."""
    return logits.shape[0] if logits.ndim == 2 else 1


def fill(logits: Tensor, value: float, dtype: torch.dtype) -> Tensor:
    """One value for every row, [B], made on the device (a copy from the host would synchronise)."""
    return torch.full((batch_of(logits),), value, dtype=dtype, device=logits.device)


def real(name: str, value: Any) -> float:
    """A real number that is not a bool; NaN passes."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> int:
    """An int >= 1 that is not a bool."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    return int(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
