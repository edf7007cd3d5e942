"""Write safetensors with the permissions that any new file gets: the library makes them private to the user."""

from __future__ import annotations

from pathlib import Path


def save_tensors(tensors: dict, path: Path, metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata=metadata)
    path.chmod(mode)
