"""Captures as files: safetensors only, complete or absent, bit-equal when read back.

A file holds the rows [P, V], or the hidden states and the head where those are smaller, so that it opens without the
model. Strings travel as one block of UTF-8 with offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import index_storage
from .capture import DTYPES, HiddenRows, LogitCapture, StoredRows
from .head import Head
from .index_capture import IndexCapture
from .models import dtype_name
from .tensor_file import opened, replace_tensors
from .tokens import as_ids, placeholder

SCHEMA = "qp-explorer/logit-capture/1"
# Tokens whose text goes with each stored row: far more than anything draws.
_LABELS_PER_ROW = 2000


def save_capture(capture: LogitCapture | IndexCapture, path: str | Path, head: str = "auto") -> Path:
    """Write a capture to one `.safetensors` file, which replaces an older one only when complete.

    Args:
        head: Of logits: "rows" stores [P, V]; "head" the hidden states and the output embedding; "auto" the smaller.
    Raises:
        ValueError: a wrong `head`, another suffix, or "head" for a capture that has stored rows only.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"captures are .safetensors files, got {path.name!r}")
    if head not in ("auto", "rows", "head"):
        raise ValueError(f"head must be 'auto', 'rows' or 'head', got {head!r}")
    if isinstance(capture, IndexCapture):
        _write(path, *index_storage.content_of(capture), index_storage.SCHEMA)
        return path
    live = isinstance(capture.source, HiddenRows)
    if head == "head" and not live:
        raise ValueError("this capture has stored rows only: there is no head to save")
    with_head = head == "head" or (head == "auto" and live and _head_bytes(capture) < _row_bytes(capture))
    tensors = {"ids": capture.ids, "starts": capture.starts, "positions": capture.positions}
    content = {"vocab_size": capture.vocab_size, "logits_dtype": capture.logits_dtype, "meta": capture.meta}
    if with_head:
        content["head"] = _head_into(tensors, capture)
        labelled = range(capture.vocab_size)
    else:
        labelled = _rows_into(tensors, capture)
    tensors["label_ids"], tensors["label_ends"], tensors["label_bytes"] = _pack(capture.label(labelled), labelled)
    if capture.unused is not None:
        tensors["unused_ids"] = capture.unused.nonzero().flatten().to(torch.int32)
    _write(path, tensors, content)
    return path


def _model_dtype(capture: LogitCapture) -> torch.dtype:
    return capture.source.model_dtype


def _row_bytes(capture: LogitCapture) -> int:
    item_bytes = 4 + (0 if _model_dtype(capture) is torch.float32 else _model_dtype(capture).itemsize)
    return len(capture) * capture.vocab_size * item_bytes


def _head_bytes(capture: LogitCapture) -> int:
    source = capture.source
    return source.hidden.nbytes + source.head.vocab_size * source.head.hidden_size * source.head.dtype.itemsize


def _head_into(tensors: dict, capture: LogitCapture) -> dict:
    source = capture.source
    head = source.head
    weight, bias = head.matrix(head.dtype)
    # A head that was only widened to compute with goes back to what it was stored in; wrapped ones were never.
    narrow = weight.to(source.model_dtype)
    tensors["head_weight"] = narrow if torch.equal(narrow.to(head.dtype), weight) else weight
    tensors["hidden"] = source.hidden
    if bias is not None:
        tensors["head_bias"] = bias
    dtypes = {"model_dtype": dtype_name(source.model_dtype), "compute_dtype": dtype_name(head.dtype)}
    return {"softcap": head.softcap, "scale": head.scale, **dtypes}


def _rows_into(tensors: dict, capture: LogitCapture) -> list[int]:
    """Both kinds of rows, one at a time; returns the ids whose text is kept."""
    shape = (len(capture), capture.vocab_size)
    kinds = {"rows_float32": ("float32", torch.float32)}
    if _model_dtype(capture) is not torch.float32:
        # Rounding the float32 rows does not give these: the head rounds its input as well.
        kinds["rows_model"] = ("model", _model_dtype(capture))
    labelled = set(capture.ids.tolist())
    for name, (logits_dtype, dtype) in kinds.items():
        tensors[name] = torch.empty(shape, dtype=dtype)
        for row in range(len(capture)):
            values = capture.logits(row, logits_dtype).cpu()
            tensors[name][row] = values
            order = values.float().nan_to_num(nan=-torch.inf).topk(min(_LABELS_PER_ROW, capture.vocab_size))
            labelled.update(order.indices.tolist())
    return sorted(labelled)


def _pack(strings: list[str], ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    blocks = [text.encode("utf-8", errors="replace") for text in strings]
    ends = torch.tensor([len(block) for block in blocks], dtype=torch.int64).cumsum(0)
    joined = torch.frombuffer(bytearray(b"".join(blocks) or b" "), dtype=torch.uint8)
    return torch.tensor(list(ids), dtype=torch.int32), ends, joined


def _write(path: Path, tensors: dict, content: dict, schema: str = SCHEMA) -> None:
    replace_tensors(tensors, path, {"schema": schema, "content": json.dumps(content)})


def load_capture(path: str | Path) -> LogitCapture | IndexCapture:
    """Read what `save_capture` wrote; everything is on the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, holds something else, or has another schema version.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no capture {path}")
    schema, tensors, content = _read(path)
    try:
        return MAKERS[schema](tensors, content)
    except KeyError as error:
        raise ValueError(f"{path} is no complete capture: {error} is missing") from error
    except (ValueError, TypeError, IndexError, RuntimeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no sound capture: {error}") from error


def load_logits(path: str | Path) -> torch.Tensor:
    """Read plain logits from a `.safetensors` file that is no capture: its tensor "logits", or its only one.

    Raises:
        ValueError: the file is damaged or holds several tensors, none of them called "logits".
    """
    with opened(path) as file:
        names = list(file.keys())
        if "logits" not in names and len(names) != 1:
            raise ValueError(f"{path} holds the tensors {names}; name one of them 'logits'")
        return file.get_tensor("logits" if "logits" in names else names[0])


def is_capture(path: str | Path) -> bool:
    """Whether a whole safetensors file says that it is a capture, of whatever schema version."""
    with opened(path) as file:
        return "schema" in (file.metadata() or {})


def _read(path: Path) -> tuple[str, dict, dict]:
    try:
        with opened(path) as file:
            metadata = file.metadata() or {}
            if (schema := metadata.get("schema")) not in MAKERS:
                known = " and ".join(map(repr, MAKERS))
                raise ValueError(f"{path} has the schema {schema!r}; this version reads {known}")
            content = json.loads(metadata.get("content", ""))
            return schema, {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has unreadable metadata: {error}") from error


def _capture_from(tensors: dict, content: dict) -> LogitCapture:
    vocab_size, meta = content["vocab_size"], content["meta"]
    _require(isinstance(vocab_size, int) and vocab_size > 0, "vocab_size must be a positive int")
    _require(isinstance(meta, dict), "meta must be an object")
    for kind, names in ((str, ("model", "compute_dtype", "head_dtype", "device")), (int, ("layer", "n_layers"))):
        for name in names:
            _require(isinstance(meta[name], kind), f"meta.{name} must be of type {kind.__name__}")
    _require(content["logits_dtype"] in DTYPES, f"logits_dtype must be one of {DTYPES}")
    ids, starts, positions = (tensors[name] for name in ("ids", "starts", "positions"))
    for name, tensor in (("ids", ids), ("starts", starts), ("positions", positions)):
        _require(tensor.dtype is torch.int64 and tensor.dim() == 1 and len(tensor), f"{name} must be int64, 1-D")
    _within(ids, vocab_size, "ids")
    _within(positions, len(ids), "positions")
    _within(starts, len(ids), "starts")
    _require(starts[0] == 0 and bool((starts[1:] > starts[:-1]).all()), "starts must rise from 0")
    rows = _rows_from(tensors, content, (len(positions), vocab_size))
    unused = None
    if "unused_ids" in tensors:
        _within(tensors["unused_ids"], vocab_size, "unused_ids")
        unused = torch.zeros(vocab_size, dtype=torch.bool)
        unused[tensors["unused_ids"].long()] = True
    return LogitCapture(
        ids=ids,
        starts=starts,
        positions=positions,
        rows=rows,
        label=_unpack(tensors, vocab_size),
        unused=unused,
        vocab_size=vocab_size,
        logits_dtype=content["logits_dtype"],
        meta={**meta, "recorded": True},
    )


def _rows_from(tensors: dict, content: dict, shape: tuple[int, int]) -> HiddenRows | StoredRows:
    if "hidden" not in tensors:
        float32 = tensors["rows_float32"]
        _require(float32.shape == shape and float32.dtype is torch.float32, f"rows_float32 must be float32 {shape}")
        model = tensors.get("rows_model", float32)
        _require(model.shape == shape and model.is_floating_point(), f"rows_model must be floats {shape}")
        return StoredRows(float32, model)
    weight, hidden, about = tensors["head_weight"], tensors["hidden"], content["head"]
    bias = tensors.get("head_bias")
    _require(weight.dim() == 2 and weight.is_floating_point() and len(weight) == shape[1], "head_weight must be [V, H]")
    _require(hidden.shape == (shape[0], weight.shape[1]) and hidden.is_floating_point(), "hidden must be [P, H]")
    _require(bias is None or bias.shape == shape[1:], "head_bias must be [V]")
    model_dtype, compute_dtype = (_float_dtype(about[name]) for name in ("model_dtype", "compute_dtype"))
    softcap, scale = about["softcap"], about["scale"]
    _require(softcap is None or isinstance(softcap, (int, float)), "softcap must be a number or null")
    _require(isinstance(scale, (int, float)), "scale must be a number")
    # As wide as it was computed with, for the same bits.
    weight = weight.to(compute_dtype)
    return HiddenRows(hidden, Head(weight, bias, softcap=softcap, scale=scale), model_dtype)


def _float_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    _require(isinstance(dtype, torch.dtype) and dtype.is_floating_point, f"{name} is no dtype of logits")
    return dtype


def _unpack(tensors: dict, vocab_size: int) -> Callable[[Sequence[int]], list[str]]:
    ids, ends, joined = (tensors[f"label_{part}"] for part in ("ids", "ends", "bytes"))
    _within(ids, vocab_size, "label_ids")
    _require(ends.shape == ids.shape and ends.dtype is torch.int64, "label_ends must be int64, one per label")
    bounds = [0, *ends.tolist()]
    rising = all(a <= b for a, b in zip(bounds, bounds[1:], strict=False))
    _require(joined.dtype is torch.uint8 and joined.dim() == 1, "label_bytes must be uint8, 1-D")
    _require(rising and bounds[-1] <= len(joined), "label_ends must rise within label_bytes")
    block = joined.numpy().tobytes()
    texts = {i: block[a:b].decode("utf-8") for i, a, b in zip(ids.tolist(), bounds, bounds[1:], strict=False)}
    return lambda wanted: [texts.get(i, placeholder(i)) for i in as_ids(wanted, vocab_size)]


def _within(values: torch.Tensor, end: int, name: str) -> None:
    whole = not values.is_floating_point() and values.dtype is not torch.bool and values.dim() == 1
    _require(whole and bool(((values >= 0) & (values < end)).all()), f"{name} must be integers in [0, {end})")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


MAKERS = {SCHEMA: _capture_from, index_storage.SCHEMA: index_storage.capture_from}
