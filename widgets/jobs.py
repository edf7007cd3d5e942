"""One background worker for a panel: the latest request wins, progress is told, no error is lost.

Widget callbacks run on JupyterLab's message threads, so they only submit; everything that computes or draws runs here,
one job at a time. A job is `fn(job)`; a long one calls `job.progress(done, total, what)`, which raises `Cancelled`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import torch


@contextmanager
def one_thread():
    """Keep torch's steps over one row on this thread: beside a busy browser, waiting for a second one costs more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Cancelled(Exception):
    """Raised inside a job after `Worker.cancel`."""


def describe(error: BaseException) -> str:
    """An error as one line for a person: our own messages speak for themselves, others carry their type."""
    text = " ".join(str(error).split())
    plain = isinstance(error, (ValueError, TypeError, OSError, RuntimeError)) and text
    return text if plain else f"{type(error).__name__}: {text}".rstrip(": ")


class Job:
    """What a running job sees: progress to tell, and whether it should stop."""

    def __init__(self, on_progress: Callable[[int, int, str], None]):
        self._on_progress = on_progress
        self._stop = threading.Event()

    def cancel(self) -> None:
        self._stop.set()

    def progress(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` steps of `what` are finished. Raises `Cancelled` when the job should stop."""
        if self._stop.is_set():
            raise Cancelled(what)
        self._on_progress(done, total, what)


class Worker:
    """A thread that runs the latest request of each kind, in the order of `kinds`.

    The kind `limited` runs at most `updates_per_s` times a second: the first request of a burst at once, later ones
    replace each other and run at that rate, the last always runs.

    Args:
        kinds: Names of the request kinds, urgent first. A waiting request is replaced by a newer one of its kind.
        on_state: Called as `on_state(kind, state, text)` with state "busy", "idle", "cancelled" or "error".
        limited: The kind whose rate is limited.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        on_state: Callable[[str, str, str], None],
        limited: str,
        updates_per_s: float = 10.0,
    ):
        self.kinds, self.limited = kinds, limited
        self.updates_per_s = updates_per_s
        self._on_state = on_state
        self._waiting: dict[str, Callable[[Job], None]] = {}
        self._running: Job | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="qp-panel", daemon=True)
        self._thread.start()

    def submit(self, kind: str, fn: Callable[[Job], None]) -> None:
        """Ask for `fn(job)`. A request of the same kind that has not started yet is dropped."""
        with self._wake:
            if self._closed:
                raise RuntimeError("this panel is closed; make a new one")
            if kind not in self.kinds:
                raise ValueError(f"kind must be one of {self.kinds}, got {kind!r}")
            self._waiting[kind] = fn
            self._error = None
            self._wake.notify_all()

    def cancel(self) -> None:
        """Stop the running job at its next progress call and drop what waits."""
        with self._wake:
            self._waiting.clear()
            if self._running is not None:
                self._running.cancel()
            self._wake.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Block until nothing runs or waits. Raises TimeoutError, or the error of the last job."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("wait would block the worker that it waits for")
        with self._wake:
            if not self._wake.wait_for(lambda: not self._waiting and self._running is None, timeout_s):
                raise TimeoutError(f"the panel is still working after {timeout_s} s")
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; requests that wait are dropped."""
        with self._wake:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.cancel()
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _take(self, not_before: float) -> tuple[str, Callable[[Job], None]] | None:
        """Wait for the next request; the limited kind also waits until `not_before`. None when closed."""
        with self._wake:
            while not self._closed:
                for kind in self.kinds:
                    if kind in self._waiting:
                        pause = not_before - time.monotonic() if kind == self.limited else 0.0
                        if pause > 0:
                            self._wake.wait(pause)
                            break  # a more urgent request may have come
                        self._running = Job(
                            lambda done, total, what, kind=kind: self._tell(kind, "busy", what, done, total)
                        )
                        return kind, self._waiting.pop(kind)
                else:
                    self._wake.wait()
            return None

    def _loop(self) -> None:
        not_before = 0.0
        while (taken := self._take(not_before)) is not None:
            kind, fn = taken
            if kind == self.limited:
                not_before = time.monotonic() + 1.0 / self.updates_per_s
            state, text, error = "idle", "", None
            try:
                with torch.inference_mode():  # grad mode is per thread: a cell's setting does not hold here
                    fn(self._running)
            except Cancelled as stopped:
                state, text = "cancelled", str(stopped)
            except Exception as failure:
                state, text, error = "error", describe(failure), failure
            self._finish(kind, state, text, error)

    def _finish(self, kind: str, state: str, text: str, error: BaseException | None) -> None:
        if not self._closed:
            self._tell(kind, state, text)
        with self._wake:
            self._running = None
            self._error = error if error is not None else self._error
            self._wake.notify_all()

    def _tell(self, kind: str, state: str, text: str, done: int = 0, total: int = 0) -> None:
        self._on_state(kind, state, f"{text} {done:,} of {total:,}" if total else text)
