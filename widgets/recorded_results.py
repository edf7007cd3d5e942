"""Where panels on recorded numbers get them: `Results`, a name, a path, or what this repository holds."""

from __future__ import annotations

from pathlib import Path

from qp_kernels import results


def open_results(source: results.Results | str | Path, usual: str, what: str) -> tuple[results.Results, list[str]]:
    """Results, and the lines of Python that open them as `found`.

    Args:
        source: Results, a name in data/results, the path of a results file, or of a folder that holds `usual`.
        usual: Name of the results in a folder. what: The plural noun of an error.
    Raises:
        TypeError, ValueError, FileNotFoundError: what was given and what is accepted.
    """
    if isinstance(source, results.Results):
        return source, ["found = ...  # the Results of this panel"]
    if not isinstance(source, (str, Path)):
        raise TypeError(f"{what} come from the name or path of results, or Results; got {type(source).__name__}")
    path, lines = Path(source), ["from qp_kernels import results"]
    if path.is_dir():
        path = path / f"{usual}.json"
    if path.suffix != ".json" and isinstance(source, str):
        return results.read(source), [*lines, f"found = results.read({source!r})"]
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    found = results.read(path.stem, folder=path.parent)
    return found, [*lines, f"found = results.read({path.stem!r}, folder={str(path.parent)!r})"]


def recorded_or_none(name: str) -> results.Results | None:
    """Results of this repository, or None where they were never recorded, or there is no repository."""
    try:
        known = results.names()
    except ValueError:  # not in a clone
        return None
    return results.read(name) if name in known else None


def short(device: str) -> str:
    """The name of a device without its memory or number of cores."""
    return device.split(",")[0].split(" (")[0]
