"""Language models to capture from: the default one, a folder, a Hugging Face id, or one already in memory.

Knows how models are found and what they are called; capturing is in `capture.py`. transformers is imported when a
model is loaded, not before: it costs seconds.
"""

from __future__ import annotations

from pathlib import Path

import torch

from . import gemma, tokens
from .folders import read_folder
from .head import Head, Shared
from .hub import read_from_hub
from .progress import ConsoleBar, Progress

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LanguageModel:
    """A causal model with its tokenizer: what `capture_logits` needs to know of both.

    Attributes:
        model, tokenizer: As given.
        name: For captions.
        head_dtype: dtype in which the output embedding is stored, which may be coarser than what it is computed in.
    """

    def __init__(self, model, tokenizer, *, name: str, head_dtype: torch.dtype | None = None, meta: dict | None = None):
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.meta = meta or {}
        self._shared = Shared.of(model)
        self.head_dtype = head_dtype or self.head.dtype
        self.text = tokens.TokenText(tokenizer, self.vocab_size)
        self.loaded_from: str | None = None  # what `load` was given; None for a wrapped model

    @property
    def lock(self):
        """Held while the model runs; the same for every LanguageModel around one model."""
        return self._shared.lock

    @property
    def head(self) -> Head:
        return self._shared.head(self.model)

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def n_layers(self) -> int:
        return self._config.num_hidden_layers

    @property
    def context(self) -> int | None:
        """Longest text in tokens; None if the model names no limit."""
        return getattr(self._config, "max_position_embeddings", None)

    @property
    def _config(self):
        return self.model.config.get_text_config(decoder=True)

    @property
    def unused_ids(self) -> torch.Tensor:
        """int64: ids of `<unused…>` tokens and of rows beyond the tokenizer."""
        return self.text.unused.nonzero().flatten()

    @property
    def caption(self) -> str:
        return f"{self.name} · computed in {dtype_name(self.dtype)} · {self.device}"

    def encode(self, text: str) -> torch.Tensor:
        """int64 [T]: ids of a text, with BOS if the tokenizer puts one first."""
        return torch.tensor(tokens.encode(self.tokenizer, text), dtype=torch.int64)

    def tokens(self, ids) -> list[str]:
        """Raw text of ids: "▁" as a space, `<id N>` beyond the tokenizer."""
        return self.text.label(ids)

    def decode(self, ids) -> str:
        return self.tokenizer.decode(tokens.as_ids(ids, self.vocab_size))

    def __repr__(self) -> str:
        return f"<LanguageModel {self.caption}, {self.n_layers} layers, vocabulary {self.vocab_size:,}>"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def wrap(model, tokenizer, *, name: str | None = None) -> LanguageModel:
    """A causal model of transformers in memory, on any device, with its tokenizer.

    Args:
        tokenizer: Of Hugging Face, or any object with `encode(text)` and `decode(ids)`.
    Raises:
        ValueError: not a causal language model with a plain linear head.
        TypeError: a tokenizer without `encode` and `decode`.
    """
    if not callable(getattr(model, "get_output_embeddings", None)) or not hasattr(model, "config"):
        raise ValueError(f"wrap needs a causal language model of transformers, got {type(model).__name__}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{type(model).__name__} is an encoder-decoder; only causal language models can be captured")
    for method in ("encode", "decode"):
        if not callable(getattr(tokenizer, method, None)):
            raise TypeError(f"the tokenizer ({type(tokenizer).__name__}) has no method {method}()")
    return LanguageModel(model, tokenizer, name=name or _name_of(model))


def _name_of(model) -> str:
    path = str(getattr(model.config, "_name_or_path", "") or "").rstrip("/\\")
    return Path(path).name if path else type(model).__name__


def load(
    name_or_path: str | Path = gemma.NAME,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    progress: Progress | None = None,
    **hf,
) -> LanguageModel:
    """Load a causal language model, without a network if it is on this machine.

    Args:
        name_or_path: The default model, a folder in the format of transformers, or a Hugging Face id.
        device: "auto" takes CUDA if it works, else the CPU.
        dtype: "auto" is the stored one on a GPU. On a CPU it is float32 (bf16 is several times slower on most), unless
            that would not fit into half of the memory. Captions name it.
        progress: Called as progress(done, total, what); may raise to cancel. None: a line on standard error.
        **hf: Passed to transformers' `from_pretrained` (revision, token, trust_remote_code, ...).
    Raises:
        ConnectionError: an id that is not on this machine, and no network.
        ValueError: an unknown name or id, a folder without model or tokenizer, a wrong dtype.
        OSError: no room, or a cache that cannot be written.
        ImportError: the default model's package is not installed.
    """
    target = _device(device)
    wanted = _dtype(dtype)
    bar = progress or ConsoleBar()
    name = str(name_or_path)
    if not name.strip():
        raise ValueError("the model's name is empty")
    try:
        if name == gemma.NAME:
            path = gemma.prepare(bar)
            bar(0, 0, f"Loading {name}")
            model, tokenizer = read_folder(path, hf)
            meta = {"gguf_sha256": gemma.GGUF_SHA256, "terms": gemma.TERMS}
        elif Path(name).expanduser().is_dir():
            path = Path(name).expanduser()
            bar(0, 0, f"Loading {path.name}")
            model, tokenizer = read_folder(path, hf)
            name, meta = path.resolve().name, {}
        else:
            _refuse_missing_path(name)
            model, tokenizer, commit = read_from_hub(name, hf, bar)
            meta = {"commit": commit}
    finally:
        if progress is None:
            bar.close()
    stored = model.get_output_embeddings().weight.dtype
    if wanted is None:
        wanted = torch.float32 if target.type == "cpu" and _fits_in_float32(model) else stored
    # With a device map the parts stay where accelerate put them.
    model = model.to(dtype=wanted) if "device_map" in hf else model.to(device=target, dtype=wanted)
    # Widening to float32 keeps every stored value; any other change makes the new dtype the model's own.
    own = stored if wanted is torch.float32 else wanted
    lm = LanguageModel(model.eval(), tokenizer, name=name, head_dtype=own, meta=meta)
    lm.loaded_from = str(name_or_path)
    return lm


def _refuse_missing_path(name: str) -> None:
    if name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1:
        raise ValueError(f"there is no folder {name}")


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if _cuda_works() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not _cuda_works():
        raise ValueError(f"device {device!r}: CUDA does not work here; use device='cpu' or 'auto'")
    return chosen


def _cuda_works() -> bool:
    if not torch.cuda.is_available():
        return False
    try:
        return bool((torch.ones(1, device="cuda") + 1).item() == 2)
    except RuntimeError:
        # A card whose driver is too old is available by name only.
        return False


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if dtype == "auto":
        return None
    chosen = _DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise ValueError(f"dtype must be 'auto' or one of {', '.join(_DTYPES)}, got {dtype!r}")
    return chosen


def _fits_in_float32(model) -> bool:
    import os

    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return True
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 * sum(p.numel() for p in model.parameters()) <= memory_bytes / 2
