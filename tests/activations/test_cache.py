"""Folders of the cache: whole or absent, checked, made once."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from activations import cache
from activations.progress import quiet

ROOT = Path(__file__).resolve().parents[2]
BIG = b"weights" * 1000


def build(working, progress):
    (working / "weights").write_bytes(BIG)
    (working / "config").write_text("{}")
    return {"from": "test"}


def ensure(folder, build=build, **kwargs):
    return cache.ensure_folder(folder, build, recipe="test/1", needs_bytes=1, **kwargs)


def refuse(working, progress):
    raise AssertionError("made again although it was whole")


def test_made_once_then_trusted(tmp_path):
    folder = tmp_path / "deep" / "model"
    assert ensure(folder) == folder
    assert (folder / "weights").read_bytes() == BIG
    assert cache.read_manifest(folder)["source"] == {"from": "test"}
    ensure(folder, refuse)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "weights").write_bytes(BIG[:-1]), "weights has 6999 bytes instead of 7000"),
        (lambda f: (f / "weights").write_bytes(b"W" + BIG[1:]), "weights does not have the recorded sha256"),
        (lambda f: (f / "weights").unlink(), "weights is missing"),
        (lambda f: (f / cache.MANIFEST).unlink(), "manifest.json is missing"),
        (lambda f: (f / cache.MANIFEST).write_text("{"), "manifest.json cannot be read"),
        (lambda f: (f / cache.MANIFEST).write_text("[]"), "manifest.json cannot be read"),
        (lambda f: (f / cache.MANIFEST).write_text('{"recipe": "test/1", "files": 3}'), "manifest.json cannot be read"),
        (lambda f: (f / cache.MANIFEST).write_text('{"recipe": "old"}'), "made by recipe old, this is test/1"),
    ],
)
def test_a_broken_folder_is_made_again_with_a_word(tmp_path, damage, words):
    folder = ensure(tmp_path / "model")
    damage(folder)
    said = []
    ensure(folder, progress=lambda done, total, what: said.append(what))
    assert said == [f"model in the cache is broken ({words}): making it again"]
    assert (folder / "weights").read_bytes() == BIG


def test_large_files_are_hashed_when_touched_and_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_ALWAYS_HASHED_BYTES", 100)
    folder = ensure(tmp_path / "model")
    weights = folder / "weights"
    stat = weights.stat()
    weights.write_bytes(b"W" + BIG[1:])
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.problem_of(folder, "test/1") is None
    assert "sha256" in cache.problem_of(folder, "test/1", full=True)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert "sha256" in cache.problem_of(folder, "test/1")


def test_a_copied_folder_is_hashed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_ALWAYS_HASHED_BYTES", 100)
    folder = ensure(tmp_path / "model")
    os.utime(folder / "weights", ns=(1, 1))
    hashed = []
    monkeypatch.setattr(
        cache, "sha256_of", lambda path, real=cache.sha256_of: (hashed.append(path.name), real(path))[1]
    )
    assert cache.problem_of(folder, "test/1") is None
    assert cache.problem_of(folder, "test/1") is None
    assert hashed.count("weights") == 1


def test_too_little_room_says_how_much_and_where(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 3 << 20, 3 << 20))
    with pytest.raises(OSError, match=r"12 MB of free disk are needed, 3 MB are free.*QP_CACHE") as caught:
        cache.ensure_folder(tmp_path / "model", refuse, recipe="test/1", needs_bytes=12 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path)
    assert not (tmp_path / "model").exists()


def test_a_disk_that_fills_up_leaves_nothing(tmp_path):
    def fill(working, progress):
        (working / "half").write_bytes(BIG)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="of free disk are needed"):
        ensure(tmp_path / "model", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["model.lock"]


def test_cancelling_leaves_nothing(tmp_path):
    def cancel(working, progress):
        (working / "half").write_bytes(BIG)
        progress(1, 2, "half")

    def stop(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path / "model", cancel, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["model.lock"]


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="the cache folder cannot be written.*QP_CACHE"):
        ensure(tmp_path / "file" / "model", refuse)


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("QP_CACHE", str(tmp_path))
    assert cache.cache_folder() == tmp_path
    monkeypatch.delenv("QP_CACHE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.cache_folder() == tmp_path / ".cache" / "qp-explorer"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.cache_folder() == tmp_path / "Library" / "Caches" / "qp-explorer"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert cache.cache_folder() == tmp_path / "Local" / "qp-explorer"


def python(script, *arguments):
    """Start a Python that can import the rooms."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_what_a_killed_run_left_is_removed(tmp_path):
    script = """
        import os, signal, sys
        from pathlib import Path
        from activations import cache
        def build(working, progress):
            (working / "half").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        cache.ensure_folder(Path(sys.argv[1]), build, recipe="test/1", needs_bytes=1)
    """
    killed = python(script, tmp_path / "model")
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(left) == 1
    assert left[0].startswith("model.tmp-")
    assert cache.problem_of(tmp_path / "model", "test/1") == "not there yet"
    ensure(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def test_two_processes_make_it_once(tmp_path):
    script = """
        import sys, time
        from pathlib import Path
        from activations import cache
        folder = Path(sys.argv[1])
        def build(working, progress):
            with open(folder.parent / "log", "a") as log:
                log.write("made\\n")
            time.sleep(0.5)
            (working / "weights").write_bytes(b"whole")
            return {}
        def say(done, total, what):
            print(what)
        cache.ensure_folder(folder, build, recipe="test/1", needs_bytes=1, progress=say)
        print((folder / "weights").read_text())
    """
    both = [python(script, tmp_path / "model") for _ in range(2)]
    said = [process.communicate(timeout=30) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert (tmp_path / "log").read_text() == "made\n"
    assert sorted(out for out, _ in said) == ["another process is making model: waiting for it\nwhole\n", "whole\n"]


def test_the_manifest_records_sizes_and_hashes(tmp_path):
    folder = ensure(tmp_path / "model", progress=quiet)
    files = json.loads((folder / cache.MANIFEST).read_text())["files"]
    assert files["weights"]["bytes"] == len(BIG)
    assert files["weights"]["sha256"] == cache.sha256_of(folder / "weights")
    assert set(files) == {"weights", "config"}
