"""One view of everything a logit panel can be opened on: tensors, arrays, files, captures and live models.

A panel sees `Rows`: how many there are, the logits of one, and what its tokens are called. Nothing here draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from activations import LanguageModel, LogitCapture, load_capture, storage
from widgets.arrays import read_arrays

WINDOW = 200  # tokens shown on either side of a row; a page of thousands would slow the browser


@dataclass(frozen=True)
class TextWindow:
    """A stretch of text around one row.

    Attributes:
        tokens: Their strings. rows: The row that each token's successor is predicted by, -1 where none was captured.
        here: Index in `tokens` of the row's own token, -1 without a text. next_id: Id that really follows, -1: unknown.
    """

    tokens: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    here: int = -1
    next_id: int = -1


class Rows:
    """Rows of logits with the names of their tokens.

    Attributes:
        count: Number of rows R, at least 1.
        vocab_size: V.
        unused: [V] bool, the `<unused…>` tokens, or None when not known.
    """

    count: int
    vocab_size: int
    unused: torch.Tensor | None = None

    def row(self, index: int, logits_dtype: str = "float32") -> torch.Tensor:
        """[V] float32 logits of row `index`; `logits_dtype="model"` as the model's own head rounds them."""
        raise NotImplementedError

    def describe(self, logits_dtype: str = "float32") -> str:
        """Model, layer, dtype and device in words."""
        raise NotImplementedError

    def dtype(self, logits_dtype: str = "float32") -> torch.dtype:
        """The type that the logits of such a row are stored in, before they were widened to float32."""
        return torch.float32

    def label(self, ids) -> list[str]:
        """Names of vocabulary entries."""
        return [f"<id {int(i)}>" for i in ids]

    def text(self, index: int) -> TextWindow:
        """The text around row `index`; empty where no text is known."""
        return TextWindow()

    def code(self, index: int | list[int] | range, logits_dtype: str = "float32") -> list[str]:
        """Lines of Python that define `logits`: one row as float32 [V], or several as [R, V]."""
        raise NotImplementedError


class TensorRows(Rows):
    """Plain logits `[V]` or `[R, V]`."""

    def __init__(self, logits, caption: str | None = None, code: list[str] | None = None):
        logits = torch.from_numpy(logits) if isinstance(logits, np.ndarray) else logits
        if not logits.is_floating_point():
            raise TypeError(f"logits must be floating point, got {logits.dtype}")
        if logits.ndim not in (1, 2) or 0 in logits.shape:
            raise ValueError(
                f"logits must be [V] or [R, V] with at least one row and one entry, got {list(logits.shape)}"
            )
        self._logits = logits.detach().reshape(-1, logits.shape[-1])
        self._code = code
        self.count, self.vocab_size = self._logits.shape
        name = str(logits.dtype).removeprefix("torch.")
        self._caption = caption or f"logits [{self.count:,}, {self.vocab_size:,}] {name} on {logits.device}"

    def describe(self, logits_dtype: str = "float32") -> str:
        return self._caption

    def row(self, index: int, logits_dtype: str = "float32") -> torch.Tensor:
        return self._logits[index].float()

    def dtype(self, logits_dtype: str = "float32") -> torch.dtype:
        return self._logits.dtype if self._logits.dtype.itemsize == 2 else torch.float32

    def code(self, index: int | list[int] | range, logits_dtype: str = "float32") -> list[str]:
        made = self._code or ["logits = ...  # the logits of this panel"]
        return [*made, f"logits = logits.reshape(-1, logits.shape[-1])[{index}].float()"]


class CaptureRows(Rows):
    """A `LogitCapture`; `made` are the lines of code that make it."""

    def __init__(self, capture: LogitCapture, made: list[str]):
        self.capture, self._made = capture, made
        self.count, self.vocab_size = len(capture.positions), capture.vocab_size
        self.unused = capture.unused
        self._row_at = {int(position): row for row, position in enumerate(capture.positions)}

    def describe(self, logits_dtype: str = "float32") -> str:
        return self.capture.describe(logits_dtype)

    def row(self, index: int, logits_dtype: str = "float32") -> torch.Tensor:
        return self.capture.logits(index, logits_dtype=logits_dtype).float()

    def dtype(self, logits_dtype: str = "float32") -> torch.dtype:
        return torch.float32 if logits_dtype == "float32" else self.capture.source.model_dtype

    def label(self, ids) -> list[str]:
        return self.capture.label(ids)

    def text(self, index: int) -> TextWindow:
        position = int(self.capture.positions[index])
        begin, end = self._bounds(position)
        begin, end = max(begin, position - WINDOW), min(end, position + WINDOW)
        rows = [self._row_at.get(place, -1) for place in range(begin, end)]
        return TextWindow(self.capture.tokens[begin:end], rows, position - begin, int(self.capture.next_ids[index]))

    def code(self, index: int | list[int] | range, logits_dtype: str = "float32") -> list[str]:
        return [*self._made, f"logits = capture.logits({index}, logits_dtype={logits_dtype!r}).float()"]

    def _bounds(self, position: int) -> tuple[int, int]:
        """Start and end of the text that holds `position` (several texts can be packed in one capture)."""
        starts = [int(s) for s in self.capture.starts] + [len(self.capture.tokens)]
        which = max(i for i in range(len(starts) - 1) if starts[i] <= position)
        return starts[which], starts[which + 1]


def is_live(source) -> bool:
    return isinstance(source, LanguageModel)


def open_rows(source) -> Rows:
    """Rows of a tensor, an array, a `LogitCapture` or a file.

    A file is a capture or plain logits (`.safetensors`), an array (`.npy`), or an `.npz`; one that holds several arrays
    has one called `logits`.

    Raises:
        TypeError, ValueError, FileNotFoundError: what was given and what is accepted.
    """
    if isinstance(source, Rows):
        return source
    if isinstance(source, LogitCapture):
        return CaptureRows(source, ["capture = ...  # the LogitCapture of this panel"])
    if isinstance(source, (torch.Tensor, np.ndarray)):
        return TensorRows(source)
    if isinstance(source, (str, Path)):
        return _open_file(Path(source))
    raise TypeError(
        "a panel opens on a live model, a LogitCapture, logits [V] or [R, V], or a .safetensors, .npy or .npz "
        f"file; got {type(source).__name__}"
    )


def _open_file(path: Path) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    if path.suffix == ".safetensors":
        return _open_safetensors(path)
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"{path.name}: only .safetensors, .npy and .npz files are read")
    array, key = _read_array(path)
    made = ["import numpy as np, torch", f"logits = torch.from_numpy(np.load({str(path)!r}){key})"]
    return TensorRows(array, caption=f"{path.name}: {list(array.shape)} {array.dtype}", code=made)


def _open_safetensors(path: Path) -> Rows:
    if storage.is_capture(path):
        made = ["from activations import load_capture", f"capture = load_capture({str(path)!r})"]
        capture = load_capture(path)
        if not isinstance(capture, LogitCapture):
            raise ValueError(f"{path.name} holds queries and keys of an indexer, and no logits")
        return CaptureRows(capture, made)
    logits = storage.load_logits(path)
    made = ["from activations import storage", f"logits = storage.load_logits({str(path)!r})"]
    return TensorRows(logits, caption=f"{path.name}: {list(logits.shape)} {logits.dtype}", code=made)


def _read_array(path: Path) -> tuple[np.ndarray, str]:
    """The array of a numpy file, and the index expression that picks it."""

    def choose(names: list[str]) -> list[str]:
        if "logits" not in names and len(names) != 1:
            raise ValueError(f"{path.name} holds the arrays {names}; name one of them 'logits'")
        return ["logits"] if "logits" in names else names

    loaded = read_arrays(path, choose)
    if isinstance(loaded, np.ndarray):
        return loaded, ""
    [(key, array)] = loaded.items()
    return array, f"[{key!r}]"
