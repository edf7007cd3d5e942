"""Recorded numbers: JSON files that say on which machine, with which versions and from which commit they come.

Knows nothing of what was measured: a record is a flat dict of case fields and values. The files of this repository are
in data/results; elsewhere, name a `folder`.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import backend
from .report import report

SCHEMA = "qp-kernels/results/1"
ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("python", "torch", "triton", "numpy", "system")
QUANTILES = {"min": 0.0, "q05": 0.05, "median": 0.5, "q95": 0.95, "q99": 0.99, "max": 1.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]*")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Results:
    """A file of results.

    Attributes:
        name: Its name, without suffix.
        records: Flat dicts, one a case: strings, numbers, bools and None.
        device: What the numbers were made on, in words.
        driver: Version of the NVIDIA driver, "none" without one.
        clocks: What `nvidia-smi` said of the SM and memory clocks when the file was written; empty without a card.
        versions: Of python, torch, triton, numpy and the system.
        commit: Of the repository, "+changes" where tracked files differed from it; "unknown" without one.
        date: UTC, as 2026-01-31T12:00:00Z.
        command: What made the numbers; "" if not told.
        about: Further flat fields that hold for all records.
    """

    name: str
    records: list[dict[str, Any]]
    device: str
    driver: str
    clocks: dict[str, str]
    versions: dict[str, str]
    commit: str
    date: str
    command: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def caption(self) -> str:
        """Device, driver, torch, triton, commit and day, for the line under a figure."""
        parts = [self.device, f"driver {self.driver}"] if self.driver != "none" else [self.device]
        parts += [f"torch {self.versions['torch']}", f"triton {self.versions['triton']}"]
        return " · ".join([*parts, f"commit {self.commit[:9]}", self.date[:10]])


def write(
    name: str,
    records: Iterable[Mapping[str, Any]],
    *,
    device: str | torch.device | None = None,
    command: str = "",
    about: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
) -> Path:
    """Write records to `<folder>/<name>.json`, with where they come from.

    Args:
        name: Letters, digits, "_" and "-".
        records: At least one flat mapping of string keys to strings, finite numbers, bools or None. Floats keep every
            bit; numpy's scalars become Python's.
        device: What they were made on; None is the GPU where there is one.
        command: How to make them again, without places of this machine.
        about: Flat fields that hold for all records.
        folder: Default: data/results of this repository.
    Returns:
        The path. An older file of this schema is replaced, when the new one is complete.
    Raises:
        ValueError: a wrong name or record; a file of that name that is no results file of this schema; no `folder`
            outside of a clone.
        OSError: the file cannot be written.
    """
    path = _path(name, folder)
    rows = report().as_dict()
    on_gpu = torch.device(device or rows["device"]).type == "cuda"
    results = Results(
        name=name,
        records=[_flat(record, f"record {i}") for i, record in enumerate(records)],
        device=rows["GPU"] if on_gpu else rows["CPU"],
        driver=rows["driver"] if on_gpu else "none",
        clocks=_clocks() if on_gpu else {},
        versions={key: rows[key] for key in VERSIONS},
        commit=commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        about=_flat(about or {}, "about"),
    )
    _check(results)
    if path.exists():
        _read(path)  # raises for what is not ours to replace
    text = json.dumps(asdict(results), indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as working:
        (Path(working) / path.name).write_text(text + "\n", "utf-8")
        (Path(working) / path.name).replace(path)
    return path


def read(name: str, *, folder: str | Path | None = None) -> Results:
    """Read what `write` wrote, and check it.

    Raises:
        ValueError: no such results (the message lists those there are), another schema, a damaged file.
    """
    path = _path(name, folder)
    if not path.is_file():
        there = ", ".join(names(folder=folder)) or "none"
        raise ValueError(f"there are no results {name!r}; there are: {there}")
    return _read(path)


def names(*, folder: str | Path | None = None) -> list[str]:
    """Names of the results in a folder, sorted."""
    return sorted(path.stem for path in _folder(folder).glob("*.json"))


def quantiles(values: Sequence[float] | np.ndarray, name: str, suffix: str = "") -> dict[str, float]:
    """Flat fields for a record: minimum, 5 %, median, 95 %, 99 % and maximum.

    Args:
        suffix: Unit, as "_ms".

    >>> quantiles([1.0, 2.0, 3.0], "time", "_ms")["time_median_ms"]
    2.0
    """
    found = np.quantile(np.asarray(values, dtype=np.float64), list(QUANTILES.values()))
    return {f"{name}_{label}{suffix}": float(value) for label, value in zip(QUANTILES, found, strict=True)}


def commit() -> str:
    """$QP_COMMIT, which names what a copy was made of; else the commit of the clone, "+changes" unless git says that no
    tracked file differs."""
    asked = os.environ.get("QP_COMMIT", "").strip()
    if asked:
        return asked
    if not (ROOT / ".git").exists():  # git would look further up, and find another repository
        return "unknown"
    head = _git("rev-parse", "HEAD")
    if not head:
        return "unknown"
    return head + ("" if _git("status", "--porcelain", "--untracked-files=no") == "" else "+changes")


def _git(*arguments: str) -> str | None:
    """What git says of this clone, None where it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _clocks() -> dict[str, str]:
    fields = ("clocks.sm", "clocks.max.sm", "clocks.mem")
    return {name: backend.nvidia_smi(name) or "unknown" for name in fields}


def _folder(folder: str | Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    if not (ROOT / "pyproject.toml").is_file() or not (ROOT / "data").is_dir():
        raise ValueError("qp_kernels is not in a clone of its repository here: say where results are, folder=...")
    return ROOT / "data" / "results"


def _path(name: str, folder: str | Path | None) -> Path:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a name of results has letters, digits, '_' and '-', got {name!r}")
    return _folder(folder) / f"{name}.json"


def _flat(record: Any, what: str) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise ValueError(f"{what} must be a mapping, got {type(record).__name__}")
    for key in record:
        if not isinstance(key, str) or not key:
            raise ValueError(f"{what} has the key {key!r}; keys are strings")
    return {key: _plain(value, f"{what}, {key!r},") for key, value in record.items()}


def _plain(value: Any, what: str) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise ValueError(f"{what} must be finite (None where there is no number), got {value}")
        return float(value)
    raise ValueError(f"{what} must be a string, number, bool or None, got {type(value).__name__}")


def _read(path: Path) -> Results:
    def refuse(constant: str):
        raise ValueError(f"{constant} is no JSON")

    try:
        content = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # damaged JSON or UTF-8
        raise ValueError(f"{path} is no results file: {error}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has the schema {schema!r}; this version reads {SCHEMA!r}")
    try:
        results = Results(**content)
        _check(results)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no sound results file: {error}") from error
    if results.name != path.stem:
        raise ValueError(f"{path} holds the results {results.name!r}: it was renamed")
    return results


def _check(results: Results) -> None:
    for name in ("name", "device", "driver", "commit", "date", "command"):
        value = getattr(results, name)
        if not isinstance(value, str) or (not value and name != "command"):
            raise ValueError(f"{name} must be a string that is not empty, got {value!r}")
    if not _DATE.fullmatch(results.date):
        raise ValueError(f"date must be as 2026-01-31T12:00:00Z, got {results.date!r}")
    datetime.fromisoformat(results.date)  # a ValueError where there is no such day
    for name, wanted in (("versions", VERSIONS), ("clocks", ())):
        value = _flat(getattr(results, name), name)
        if missing := set(wanted) - set(value):
            raise ValueError(f"{name} lacks {', '.join(sorted(missing))}")
        if wrong := [key for key in value if not isinstance(value[key], str)]:
            raise ValueError(f"{name} must hold strings, {wrong[0]!r} is {value[wrong[0]]!r}")
    _flat(results.about, "about")
    if not isinstance(results.records, list) or not results.records:
        raise ValueError("records must be a list of at least one")
    for i, record in enumerate(results.records):
        _flat(record, f"record {i}")
