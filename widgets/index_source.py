"""What a panel on an indexer can be opened on, as layers: captures, files and plain tensors. Nothing here draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from activations import IndexCapture, load_capture
from qp_kernels.pivot.checks import LARGEST_D
from widgets.arrays import read_arrays

UNPACK = "q, k, w, lo, hi = capture.q, capture.k, capture.w, capture.lo, capture.hi"
BOUNDS = "lo, hi = torch.zeros(len(q), dtype=torch.int64), torch.arange(len(k) - len(q) + 1, len(k) + 1)"
ACCEPTED = (
    "a panel on an indexer opens on an IndexCapture, a list or dict of them, tensors (q [T, H, D], k [N, D], "
    "w [T, H]), or a .safetensors capture or an .npz file with q, k and w"
)


@dataclass(frozen=True, eq=False)
class Layer:
    """The queries and keys of one layer.

    Attributes:
        name: What the `layer` control calls it. capture: T >= 1 queries and N >= 1 keys.
        has_text: Whether the keys' tokens are known. caption: Where it is from.
        code: Lines of Python that define q, k, w, lo and hi.
    """

    name: str
    capture: IndexCapture
    has_text: bool
    caption: str
    code: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name in a sentence."""
        return self.name if self.name.startswith("layer") else f"layer {self.name}"

    def __post_init__(self):
        if not len(self.capture.q) or not len(self.capture.k):
            shape = f"{len(self.capture.q)} queries and {len(self.capture.k)} keys"
            raise ValueError(f"an indexer needs at least one query and one key, got {shape}")
        _, heads, width = self.capture.q.shape
        if not heads or not 1 <= width <= LARGEST_D:
            raise ValueError(f"an indexer has at least one head, of 1 to {LARGEST_D} numbers, got {heads} of {width}")


def open_layers(source) -> list[Layer]:
    """The layers of a source, at least one, with different names.

    Raises:
        TypeError, ValueError, FileNotFoundError: what was given and what is accepted.
    """
    if isinstance(source, Mapping):
        return _several([(name, name, one) for name, one in source.items()])
    if isinstance(source, (list, tuple)) and not _are_tensors(source):
        return _several(list(zip(_numbers(source), range(len(source)), source)))
    return [_open(source, "", "capture = ...  # the IndexCapture of this panel")]


def _several(sources: list[tuple]) -> list[Layer]:
    """Layers of (name, index in what was given, source)."""
    if not sources:
        raise ValueError("no layer was given: " + ACCEPTED)
    where = "captures = ...  # the layers of this panel"
    layers = []
    for name, index, one in sources:
        try:
            layers.append(_open(one, name, f"{where}\ncapture = captures[{index!r}]"))
        except (TypeError, ValueError, OSError) as refused:
            kinds = (TypeError, FileNotFoundError, OSError, ValueError)
            kind = next(kind for kind in kinds if isinstance(refused, kind))
            raise kind(f"layer {name}: {refused}") from refused
    if len({layer.name for layer in layers}) < len(layers):
        raise ValueError(f"layers must differ in name as text, got {[layer.name for layer in layers]}")
    return layers


def _numbers(sources) -> list[int]:
    """The layers' own numbers, or where those do not tell them apart their places in the list."""
    numbers = [one.meta.get("layer") if isinstance(one, IndexCapture) else None for one in sources]
    distinct = None not in numbers and len(set(numbers)) == len(numbers)
    return numbers if distinct else list(range(len(sources)))


def _open(source, name, code: str) -> Layer:
    if isinstance(source, IndexCapture):
        return _layer(name, source, (*code.split("\n"), UNPACK))
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), name)
    if isinstance(source, (list, tuple)) and _are_tensors(source):
        made = code.replace("capture = ...  # the IndexCapture", "q, k, w = ...  # the tensors")
        made = made.replace("capture = captures[", "q, k, w = captures[").split("\n")
        if any(isinstance(one, np.ndarray) for one in source):
            made = [
                "import numpy as np",
                *made,
                "q, k, w = (torch.as_tensor(np.ascontiguousarray(x)) for x in (q, k, w))",
            ]
        return _from_tensors(name, dict(zip("qkw", source)), ("import torch", *made, BOUNDS))
    raise TypeError(f"{ACCEPTED}; got {type(source).__name__}")


def _layer(name, capture: IndexCapture, code: tuple[str, ...]) -> Layer:
    number = capture.meta.get("layer")
    known = str(name) if name != "" else "" if number is None else str(number)
    return Layer(known, capture, any(capture.tokens), capture.caption, code)


def _are_tensors(source) -> bool:
    return len(source) == 3 and all(isinstance(one, (torch.Tensor, np.ndarray)) for one in source)


def _open_file(path: Path, name) -> Layer:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    if path.suffix == ".safetensors":
        capture = load_capture(path)
        if not isinstance(capture, IndexCapture):
            raise ValueError(f"{path.name} holds logits, and no queries and keys of an indexer")
        made = ("from activations import load_capture", f"capture = load_capture({str(path)!r})", UNPACK)
        return _layer(name, capture, made)
    if path.suffix != ".npz":
        raise ValueError(f"{path.name}: {ACCEPTED}")

    def choose(names: list[str]) -> list[str]:
        if not {"q", "k", "w"} <= set(names):
            raise ValueError(f"{path.name} holds the arrays {names}; it needs q, k and w")
        return ["q", "k", "w"]

    arrays = read_arrays(path, choose)
    if isinstance(arrays, np.ndarray):
        raise ValueError(f"{path.name} holds a single array; it needs q, k and w")
    made = ["import numpy as np, torch", f"file = np.load({str(path)!r})"]
    made.append("q, k, w = (torch.from_numpy(file[name]) for name in 'qkw')")
    return _from_tensors(name, arrays, (*made, BOUNDS), path.name)


def _tensor(value: torch.Tensor | np.ndarray) -> torch.Tensor:
    """A tensor as it is, an array as one: torch knows no negative strides."""
    return torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value).detach()


def _from_tensors(name, parts: dict, code: tuple[str, ...], title: str = "tensors") -> Layer:
    """Queries that are the last positions of the keys, without a text."""
    tensors = {key: _tensor(value) for key, value in parts.items()}
    q, k = tensors["q"], tensors["k"]
    if q.ndim != 3 or k.ndim != 2:
        raise ValueError(f"q must be [T, H, D] and k [N, D], got {list(q.shape)} and {list(k.shape)}")
    rows, keys = len(q), len(k)
    if rows > keys:
        raise ValueError(f"the T queries are the last of N keys: T must be <= N, got {rows} and {keys}")
    capture = IndexCapture(
        **tensors,
        lo=torch.zeros(rows, dtype=torch.int64),
        hi=torch.arange(keys - rows + 1, keys + 1),
        positions=torch.arange(keys - rows, keys),
        ids=torch.zeros(keys, dtype=torch.int64),
        tokens=[""] * keys,
        meta={"model": title},
    )
    return Layer(str(name), capture, False, capture.caption, code)
