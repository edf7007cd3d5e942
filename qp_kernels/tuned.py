"""Launch tables measured on a card (`python -m qp_kernels.tune`), kept as a file per device; here they are read and
written.

No result depends on what is read, so every number is checked against what the kernels can work with. A file that is
damaged, of another schema, of another card or made with another minor version of Triton is ignored, with one warning.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import backend, results
from .qrita import configs
from .qrita.configs import Config, Line

SCHEMA = "qp-kernels/tuned/1"
OFF = "off"
# A lane of a slice has at least so many places.
LEAST_DEPTH = 4
LARGEST = {"warps": 16, "block": 8_192, "search_block": 8_192, "depth": 1_024}
LEAST_REGISTERS, MOST_REGISTERS = 24, 255


class Tuned(NamedTuple):
    """What was measured on a card: the lines of the table, and up to how many rows per core rows are split."""

    lines: dict[str, Line]
    few_rows: int


def folder() -> Path | None:
    """`$QP_TUNED`, else the user's cache folder; None where `$QP_TUNED` is "off". It need not exist."""
    chosen = os.environ.get("QP_TUNED", "")
    if chosen.lower() == OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "qp_kernels" / "tuned"


def slug(device_name: str) -> str:
    """A device's name as the name of a file.

    >>> slug("NVIDIA H200 (141 GB)")
    'nvidia-h200-141-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "device"


def path_of(device_name: str) -> Path | None:
    """Where the table of a device is kept, whether it is there or not; None where that is switched off."""
    where = folder()
    return None if where is None else where / f"{slug(device_name)}.json"


def read(device_name: str) -> dict[str, Line] | None:
    """The lines of the table measured on a device, None where there is no sound file of it."""
    found = kept(device_name)
    return None if found is None else found.lines


def kept(device_name: str) -> Tuned | None:
    """Everything that was measured on a device, None where there is no sound file of it."""
    path = path_of(device_name)
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        return _checked(content, device_name)
    except (OSError, ValueError, RecursionError) as error:
        _warn(f"{path.name} in the folder of tuned launch tables is ignored: {error}")
        return None


def write(device_name: str, tuned: Tuned) -> Path:
    """Keep what was measured on a device; an older file of it is replaced.

    Raises:
        ValueError: a table that the kernels cannot work with, or no place to keep it ($QP_TUNED is "off").
        OSError: the file cannot be written.
    """
    path = path_of(device_name)
    if path is None:
        raise ValueError('there is no place for it: $QP_TUNED is "off"')
    content = {
        "schema": SCHEMA,
        "device": device_name,
        "driver": backend.nvidia_smi("driver_version") or "none",
        "triton": triton_version(),
        "torch": str(torch.__version__),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": results.commit(),
        "few_rows": tuned.few_rows,
        "lines": {
            name: {side: config._asdict() for side, config in line._asdict().items()}
            for name, line in tuned.lines.items()
        },
    }
    _checked(content, device_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as working:
        (Path(working) / path.name).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        (Path(working) / path.name).replace(path)
    return path


def remove(device_name: str) -> bool:
    """Forget what was measured on a device; whether there was anything."""
    path = path_of(device_name)
    if path is None or not path.is_file():
        return False
    path.unlink()
    return True


def problem_of(config: Config, side: str) -> str | None:
    """Why the kernels cannot work with a configuration ("many" or "few" rows), None where they can."""
    for name, value in config._asdict().items():
        if name == "registers" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} must be an int >= 1, got {value!r}"
        if name in LARGEST and (value > LARGEST[name] or value & (value - 1)):
            return f"{name} must be a power of two up to {LARGEST[name]}, got {value}"
    if config.registers is not None and not LEAST_REGISTERS <= config.registers <= MOST_REGISTERS:
        return f"registers must be {LEAST_REGISTERS} to {MOST_REGISTERS}, got {config.registers}"
    if config.block < config.lanes:
        return f"block must be a multiple of its {config.lanes} lanes, got {config.block}"
    if config.capacity > configs.MOST_HELD:
        return f"a program must hold fewer than {configs.MOST_HELD + 1} candidates, got {config.capacity}"
    if side == "few" and configs.SLICES * config.lanes * LEAST_DEPTH > configs.MOST_HELD + 1:
        return f"{configs.SLICES} slices of {config.lanes} lanes hold more than {configs.MOST_HELD + 1} candidates"
    return None


def triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "not installed"


def _checked(content: Any, device_name: str) -> Tuned:
    """What a file holds. Raises ValueError."""
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, Mapping) else None
        raise ValueError(f"it has the schema {schema!r}, and this version reads {SCHEMA!r}")
    if content.get("device") != device_name:
        raise ValueError(f"it was measured on {content.get('device')!r}, and this is {device_name!r}")
    made, here = str(content.get("triton")), triton_version()
    if _minor(made) != _minor(here):
        raise ValueError(f"it was measured with Triton {made}, and this is {here}: python -m qp_kernels.tune")
    few_rows, lines = content.get("few_rows"), content.get("lines")
    if isinstance(few_rows, bool) or not isinstance(few_rows, int) or few_rows < 0:
        raise ValueError(f"few_rows must be an int >= 0, got {few_rows!r}")
    if not isinstance(lines, Mapping) or set(lines) != set(configs.TABLE):
        raise ValueError(f"its lines must be {', '.join(map(repr, configs.TABLE))}")
    return Tuned({name: _line(name, lines[name]) for name in configs.TABLE}, few_rows)


def _line(name: str, content: Any) -> Line:
    if not isinstance(content, Mapping) or set(content) != set(Line._fields):
        raise ValueError(f"line {name!r} must have {' and '.join(Line._fields)}")
    found = {}
    for side in Line._fields:
        if not isinstance(content[side], Mapping) or set(content[side]) != set(Config._fields):
            raise ValueError(f"line {name!r}, {side}, must have {', '.join(Config._fields)}")
        found[side] = Config(**content[side])
        if problem := problem_of(found[side], side):
            raise ValueError(f"line {name!r}, {side}: {problem}")
    return Line(**found)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
