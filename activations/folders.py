"""Model folders in the format of transformers: model and tokenizer, or a word on what is missing.

transformers is imported when something is read.
"""

from __future__ import annotations

from pathlib import Path

from . import cache, gemma

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")


class IncompleteFolder(ValueError):
    """A file that is needed is missing or damaged."""


def read_folder(path: Path, hf: dict):
    """(model, tokenizer) of a folder, without a network.

    Args:
        hf: More arguments of transformers' `from_pretrained`.
    Raises:
        IncompleteFolder: no config.json, no tokenizer, or files that cannot be read.
        ValueError: not a causal language model.
    """
    if not (path / "config.json").is_file():
        raise IncompleteFolder(f"{path} holds no config.json: not a model folder in the format of transformers")
    tokenizer = _folder_tokenizer(path, {key: hf[key] for key in ("trust_remote_code",) if key in hf})
    from safetensors import SafetensorError

    try:
        return read_model(path, **{**hf, "local_files_only": True}), tokenizer
    except (OSError, SafetensorError) as error:
        raise IncompleteFolder(f"the model in {path} cannot be read: {_first_line(error)}") from error


def _folder_tokenizer(path: Path, hf: dict):
    if (path / cache.MANIFEST).is_file() and (path / gemma.TOKENIZER_FILE).is_file():
        return gemma.SentencePieceTokenizer(path / gemma.TOKENIZER_FILE)
    if not any(any(path.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise IncompleteFolder(
            f"{path} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}): add the files, or load both yourself "
            "and use activations.wrap(model, tokenizer)"
        )
    try:
        return read_tokenizer(path, local_files_only=True, **hf)
    except (OSError, ValueError) as error:
        raise IncompleteFolder(f"the tokenizer in {path} cannot be read: {_first_line(error)}") from error


def read_model(path: str | Path, **hf):
    """The model in its stored dtype on the CPU, without transformers' own progress bars.

    Raises:
        ValueError: the architecture is not a causal language model, or weights are missing from its files.
        OSError: files are missing or damaged.
    """
    import transformers
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path, **{"dtype": "auto", **hf}, output_loading_info=True
        )
    except ValueError as error:
        if "Unrecognized configuration class" in str(error):
            raise ValueError(f"{path} is not a causal language model") from error
        raise
    finally:
        if shown:
            logging.enable_progress_bar()
    if missing := sorted(found["missing_keys"]):
        # transformers would go on with random numbers.
        raise ValueError(f"the files of {path} lack {len(missing)} weights of the model, {missing[0]} for one")
    return model


def read_tokenizer(path: str | Path, **hf):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, **hf)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
