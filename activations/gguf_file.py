"""Read a GGUF file: its key-value header, and one tensor at a time in float32.

Written here because the readers at hand visit every token of a 262,144-word vocabulary as a numpy object
(20 s a pass); a plain struct walk takes a third of a second. Knows nothing about any model.
Source: the GGUF specification, version 3 (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major (numpy order); `kind` is the ggml quantisation type."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """`header` (dict), `tensors` (name -> TensorInfo) and `read(name)`. Use as a context manager.

    Raises:
        ValueError: not a GGUF file of version 2 or 3, or one that ends too early.
    """

    def __init__(self, path: str | Path):
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        try:
            if self._bytes[:4] != b"GGUF" or (version := self._number("I")) not in (2, 3):
                raise ValueError(f"{path} is not a GGUF file of version 2 or 3")
            self.version = version
            n_tensors, n_keys = self._number("Q"), self._number("Q")
            self.header = {self._string(): self._value(self._number("I")) for _ in range(n_keys)}
            self.tensors = dict(self._tensor_info() for _ in range(n_tensors))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is cut off or damaged: {error}") from error
        alignment = self.header.get("general.alignment", 32)
        self._data = self._at + -self._at % alignment

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc) -> None:
        self._bytes.close()

    def _number(self, code: str):
        (value,) = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._bytes):
            raise IndexError("a string runs past the end")
        return self._bytes[start : self._at].decode("utf-8")

    def _value(self, kind: int):
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, length = self._number("I"), self._number("Q")
            return [self._value(item) for _ in range(length)]
        return self._number(_NUMBERS[kind])

    def _tensor_info(self) -> tuple[str, TensorInfo]:
        name = self._string()
        shape = [self._number("Q") for _ in range(self._number("I"))][::-1]
        return name, TensorInfo(tuple(shape), self._number("I"), self._number("Q"))

    def read(self, name: str, rows: slice = slice(None)) -> np.ndarray:
        """Float32 values of a tensor, or of some rows along its first axis. The result is a copy."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.tensors[name]
        kind = GGMLQuantizationType(info.kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = info.shape[-1] // block * block_bytes
        n_bytes = row_bytes * int(np.prod(info.shape[:-1], dtype=np.int64))
        packed = np.frombuffer(self._bytes, np.uint8, n_bytes, self._data + info.offset)
        values = dequantize(packed.reshape(*info.shape[:-1], row_bytes)[rows], kind)
        return np.array(values, dtype=np.float32)
