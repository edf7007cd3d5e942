"""The rows that are measured on: drawn, or read from a file; always distinct as far as there are enough."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..qrita import truncation
from ..qrita.threshold import sample_view
from .cases import Case

SIGMA = 2.5
UNIFORM, LIE = 8.0, 20.0
# Batches that take turns, of a case whose matrix is small.
MOST_BATCHES = 4
LARGE_BATCH_BYTES = 192 << 20
SAFETENSORS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def make(case: Case, device: torch.device | str, live: Tensor | None = None) -> Tensor:
    """Rows for the batches of a case, [n * B, V] of its dtype on the device; n is at most `MOST_BATCHES`.

    Args:
        live: Rows [R, >= V] of a model, for "live". They are cut to V columns; fewer than B are repeated.
    Raises:
        ValueError: no or too narrow live rows; rows that should miss and do not; an unknown kind.
    """
    device, dtype = torch.device(device), getattr(torch, case.dtype)
    size = case.batch * case.vocab * dtype.itemsize
    total = case.batch * (1 if size > LARGE_BATCH_BYTES else MOST_BATCHES)
    if case.rows == "live":
        return _live(case, live, total).to(device=device, dtype=dtype)
    generator = torch.Generator(device).manual_seed(0)
    shape = (total, case.vocab)
    if case.rows == "gauss":
        return torch.randn(shape, generator=generator, device=device).mul_(SIGMA).to(dtype)
    if case.rows == "miss":
        # No uniform row has entries as far above its mean as a Gaussian one.
        return _missing(torch.rand(shape, generator=generator, device=device).mul_(UNIFORM).to(dtype), case)
    if case.rows == "lie":
        rows = torch.randn(shape, generator=generator, device=device).mul_(SIGMA)
        sample_view(rows).add_(LIE)
        return _missing(rows.to(dtype), case)
    raise ValueError(f"rows must be gauss, live, miss or lie to be made, got {case.rows!r}: pass them")


def _missing(rows: Tensor, case: Case) -> Tensor:
    hit = truncation(rows, case.k, case.p).hit
    if hit.any():
        raise ValueError(f"{case.name}: {int(hit.sum())} of {len(rows)} rows hit, and all should miss")
    return rows


def _live(case: Case, live: Tensor | None, total: int) -> Tensor:
    if live is None:
        raise ValueError(f"{case.name} needs rows of a model: --logits FILE, or benchmarks/qrita_gpu.py")
    if live.ndim != 2 or not len(live) or live.shape[1] < case.vocab:
        raise ValueError(f"{case.name} needs rows of at least {case.vocab:,} logits, got {list(live.shape)}")
    whole_batches = max(case.batch, len(live) // case.batch * case.batch)
    places = torch.arange(min(total, whole_batches), device=live.device) % len(live)
    return live[:, : case.vocab][places]


def batches(rows: Tensor, case: Case) -> list[Tensor]:
    """Rows [R, V] as batches [B, V] that take turns; the rest is left out.

    Raises:
        ValueError: rows of another shape or dtype, or fewer than B.
    """
    if rows.ndim != 2 or rows.shape[1] != case.vocab or len(rows) < case.batch:
        raise ValueError(f"{case.name} needs rows [>= {case.batch}, {case.vocab}], got {list(rows.shape)}")
    if rows.dtype != getattr(torch, case.dtype):
        raise ValueError(f"{case.name} needs {case.dtype} rows, got {rows.dtype}")
    rows = rows.contiguous()
    count = min(len(rows) // case.batch, MOST_BATCHES)
    return list(rows[: count * case.batch].split(case.batch))


def read(path: str | Path) -> Tensor:
    """The logits [R, V] of a .npy, .npz or .safetensors file: of several arrays the one named "logits", else the first.

    Raises:
        ValueError: another kind of file, nothing with two dimensions, or a dtype that holds no logits.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if path.suffix == ".npy":
        arrays = {"logits": np.load(path, mmap_mode="r", allow_pickle=False)}
    elif path.suffix == ".npz":
        arrays = dict(np.load(path, allow_pickle=False))
    elif path.suffix == ".safetensors":
        arrays = _safetensors(path)
    else:
        raise ValueError(f"logits are read from .npy, .npz or .safetensors, got {path.name!r}")
    flat = {name: array for name, array in arrays.items() if array.ndim == 2}
    if not flat:
        raise ValueError(f"{path.name} holds no array [rows, V]")
    found = flat.get("logits", next(iter(flat.values())))
    if not isinstance(found, Tensor):
        if found.dtype not in (np.float16, np.float32, np.float64):
            raise ValueError(f"logits must be float16, float32 or float64, {path.name} has {found.dtype}")
        found = torch.from_numpy(np.array(found))
    return found.float() if found.dtype is torch.float64 else found


def _safetensors(path: Path) -> dict[str, Tensor]:
    """Its floating-point tensors. The format: a length, a header in JSON, the bytes; no library is needed for that."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path.name} is no safetensors file")
        header = json.loads(file.read(length))
        found = {}
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in SAFETENSORS or len(entry["shape"]) != 2:
                continue
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            data = torch.frombuffer(bytearray(file.read(end - start)), dtype=SAFETENSORS[entry["dtype"]])
            found[name] = data.view(entry["shape"])
    return found
