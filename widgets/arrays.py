"""Arrays from files of numpy, without pickle; a file that is not sound is named. Nothing here draws."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def read_arrays(path: Path, choose: Callable[[list[str]], list[str]]) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a `.npy` file, or by name those of an `.npz` file that `choose` takes of all names.

    Raises:
        ValueError: the file is damaged, holds objects, or what `choose` refuses.
    """
    with path.open("rb") as file:
        with _named(path):
            loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = choose(loaded.files)
            with _named(path):
                return {name: loaded[name] for name in names}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is no sound file of arrays without pickled objects: {error}") from error
