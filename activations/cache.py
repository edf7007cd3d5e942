"""Folders that are made once and then trusted: the cache of prepared models.

A folder appears under its name only when complete: it is made beside, its manifest (sizes and sha256) is written last,
then it is renamed. One process makes it while others wait. Knows nothing about models; imports neither torch nor
transformers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .progress import Progress, quiet

MANIFEST = "manifest.json"
MEBIBYTE = 1 << 20
# Files above this size are hashed again only when size or time of change differ from the recorded ones: half a
# gigabyte costs about a second, and the whole start has twenty.
_ALWAYS_HASHED_BYTES = 32 * MEBIBYTE
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def cache_folder() -> Path:
    """`$QP_CACHE`, else the user's cache folder of this platform. It need not exist."""
    if chosen := os.environ.get("QP_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qp-explorer"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qp-explorer"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qp-explorer"


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem_of(folder: Path, recipe: str, *, full: bool = False) -> str | None:
    """What is wrong with a made folder, in words; None if it can be used.

    Args:
        recipe: Version of the way it is made; a folder made another way is not used.
        full: Hash every byte, also of large files that look untouched.
    """
    if not folder.is_dir():
        return "not there yet"
    try:
        manifest = read_manifest(folder)
        if manifest["recipe"] != recipe:
            return f"made by recipe {manifest['recipe']}, this is {recipe}"
        restamped = False
        for name, entry in manifest["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != entry["bytes"]:
                return f"{name} has {stat.st_size} bytes instead of {entry['bytes']}"
            same_time = stat.st_mtime_ns == entry["mtime_ns"]
            if full or not same_time or stat.st_size <= _ALWAYS_HASHED_BYTES:
                if sha256_of(folder / name) != entry["sha256"]:
                    return f"{name} does not have the recorded sha256"
            if not same_time:
                entry["mtime_ns"], restamped = stat.st_mtime_ns, True
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if restamped and os.access(folder, os.W_OK):
        # A copied or restored cache has new times: remember them, or every start would hash it all again.
        _write_text(folder / MANIFEST, json.dumps(manifest, indent=1))
    return None


def _write_text(path: Path, text: str) -> None:
    working = path.with_name(f"{path.name}.{os.getpid()}")
    working.write_text(text, "utf-8")
    working.replace(path)


def read_manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text("utf-8"))


def ensure_folder(
    folder: Path,
    build: Callable[[Path, Progress], dict],
    *,
    recipe: str,
    needs_bytes: int,
    progress: Progress = quiet,
    full: bool = False,
) -> Path:
    """Return `folder` once it is complete, making it with `build` if it is missing or broken.

    Args:
        build: Called with an empty folder to fill and the progress; returns what the manifest should say of the source.
        needs_bytes: Room that the making takes at its peak.
    Raises:
        OSError: the cache cannot be written, or has too little room; nothing is left behind.
    """
    problem = problem_of(folder, recipe, full=full)
    if problem is None:
        return folder
    _make_parent(folder.parent)
    with _locked(folder, progress):
        problem = problem_of(folder, recipe, full=full)
        if problem is None:
            return folder
        if folder.exists():
            progress(0, 0, f"{folder.name} in the cache is broken ({problem}): making it again")
            shutil.rmtree(folder)
        for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):
            shutil.rmtree(leftover)
        _check_room(folder.parent, needs_bytes)
        working = folder.parent / f"{folder.name}.tmp-{os.getpid()}"
        try:
            working.mkdir()
            source = build(working, progress)
            _write_manifest(working, recipe, source)
            working.rename(folder)
        except OSError as error:
            if error.errno in _FULL:
                raise _no_room(folder.parent, needs_bytes) from error
            raise
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return folder


def _make_parent(parent: Path) -> None:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        probe = parent / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the cache folder cannot be written ({error.strerror}); set QP_CACHE to a folder that can",
            str(parent),
        ) from error


def _check_room(parent: Path, needs_bytes: int) -> None:
    if shutil.disk_usage(parent).free < needs_bytes:
        raise _no_room(parent, needs_bytes)


def _no_room(parent: Path, needs_bytes: int) -> OSError:
    free = shutil.disk_usage(parent).free // MEBIBYTE
    return OSError(
        errno.ENOSPC,
        f"{-(-needs_bytes // MEBIBYTE)} MB of free disk are needed, {free} MB are free; make room, "
        "or set QP_CACHE to a folder on a larger disk",
        str(parent),
    )


def _write_manifest(working: Path, recipe: str, source: dict) -> None:
    files = {}
    for path in sorted(p for p in working.rglob("*") if p.is_file()):
        stat = path.stat()
        files[path.relative_to(working).as_posix()] = {
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "sha256": sha256_of(path),
        }
    text = json.dumps({"recipe": recipe, "source": source, "files": files}, indent=1)
    (working / MANIFEST).write_text(text, "utf-8")


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold `<folder>.lock`. The system lets go of it when a process dies, so there are no stale locks."""
    with open(folder.parent / f"{folder.name}.lock", "a+b") as file:
        waited = False
        while not _try_lock(file):
            if not waited:
                progress(0, 0, f"another process is making {folder.name}: waiting for it")
                waited = True
            time.sleep(0.2)
        yield


def _try_lock(file) -> bool:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
