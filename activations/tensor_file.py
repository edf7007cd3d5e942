"""Safetensors files: complete or absent, with the permissions that any new file gets, and a word on damaged ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def save_tensors(tensors: dict, path: Path, metadata: dict[str, str]) -> None:
    """Write a file. The library would make it private to the user."""
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata=metadata)
    path.chmod(mode)


def replace_tensors(tensors: dict, path: Path, metadata: dict[str, str]) -> None:
    """Write tensors of any device to a file, which replaces an older one only when complete.

    Raises:
        OSError: the file cannot be written.
    """
    working = path.with_name(f".{path.name}.{os.getpid()}")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_tensors(plain, working, metadata)
        working.replace(path)
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise OSError(f"cannot write {path}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            working.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator:
    """A safetensors file; ValueError when it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
