"""Run the steps of a set-up: say what happens, show that it moves, keep the full output in a log."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEARTBEAT_S = 30.0
PIPED = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
PIPED |= {"text": True, "errors": "replace"}
BIG_DOWNLOAD = re.compile(r"Downloading (\S+?)-\d\S* \((\d+(?:\.\d+)? [MG]B)\)")


class SetupError(Exception):
    """Something a user can mend; the message says how. Shown without a traceback."""


def say(text):
    print(text, flush=True)


@contextlib.contextmanager
def step(title):
    """Announce a step, and how long it took once it has succeeded."""
    say(f"→ {title}")
    start = time.perf_counter()
    yield
    say(f"  done in {time.perf_counter() - start:.1f} s")


def quiet(command, timeout_s=60, **kwargs):
    """Run a command for its answer: (return code, stdout); (-1, the reason) when it cannot run."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            text=True,
            errors="replace",
            check=False,
            **kwargs,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout


def logged(command, log, env=None, timeout_s=None):
    """Run a long command with its output in `log`, a line now and then on the screen.

    Returns:
        Its return code; -1 when the time limit ended it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(part) for part in command]
    with log.open("a", encoding="utf-8", errors="replace") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        with subprocess.Popen(command, cwd=ROOT, env=env, **PIPED) as process:
            progress = _Progress(process, timeout_s)
            progress.start()
            try:
                for line in process.stdout:
                    out.write(line)
                    progress.see(line)
                code = process.wait()
            except KeyboardInterrupt:
                process.terminate()
                raise
            finally:
                progress.stop()
    return -1 if progress.timed_out else code


def tail(log, lines=15):
    """The last lines of a log, indented for the screen."""
    text = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join("    " + line for line in text[-lines:])


class _Progress(threading.Thread):
    """Says which big file is on its way, and now and then that work goes on; ends a process that runs too long."""

    def __init__(self, process, timeout_s):
        super().__init__(daemon=True)
        self.process, self.timeout_s, self.timed_out = process, timeout_s, False
        self._last, self._ended = "", threading.Event()
        self._on_terminal = sys.stdout.isatty()

    def see(self, line):
        self._last = line.strip()
        big = BIG_DOWNLOAD.search(line)
        if big and (big[2].endswith("GB") or float(big[2].split()[0]) >= 50):
            say(f"  downloading {big[1]}, {big[2]}")
        elif line.startswith("Installing collected packages:"):
            say(f"  installing {line.count(',') + 1} packages")

    def stop(self):
        self._ended.set()
        self.join()

    def run(self):
        start = shown = time.perf_counter()
        while not self._ended.wait(1.0):
            now = time.perf_counter()
            if self.timeout_s and now - start > self.timeout_s:
                self.timed_out = True
                self.process.kill()
                return
            if now - shown >= (5.0 if self._on_terminal else HEARTBEAT_S):
                shown = now
                say(f"  … {now - start:.0f} s: {self._last[:90]}")


def cache_folder():
    """Where models are kept: the rule of activations/cache.py, for when there is no ./.venv yet (a test compares)."""
    if chosen := os.environ.get("QP_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qp-explorer"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qp-explorer"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qp-explorer"


def environ(**changes):
    """The environment for our own commands: no prompt, no --user installs, UTF-8.

    A relative $QP_CACHE becomes absolute, since our commands, and the kernels of a lesson, run in other folders.
    """
    cache = {"QP_CACHE": str(cache_folder())} if os.environ.get("QP_CACHE") else {}
    return {
        **os.environ,
        **cache,
        "PIP_USER": "0",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUTF8": "1",
        **changes,
    }
