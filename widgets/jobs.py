"""One background worker for a panel: the latest request wins, progress is told, no error is lost.

Widget callbacks run on JupyterLab's message threads, so they only submit; everything that computes or draws runs here,
one job at a time. A job is `fn(job)`; a long one calls `job.progress(done, total, what)`, which raises `Cancelled`, and
may be a generator: at each `yield` it lets more urgent requests pass.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable

import torch

DROPPED = "the last change is not drawn"
CLOSED = "this panel is closed; make a new one"
_alive: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End the workers before the interpreter does: a thread inside torch at that moment aborts the process."""
    for worker in list(_alive):
        worker.close()


class Cancelled(Exception):
    """Raised inside a job after `Worker.cancel`, or when a newer request of its kind came."""


def describe(error: BaseException) -> str:
    """An error as one line for a person: our own messages speak for themselves, others carry their type."""
    text = " ".join(str(error).split())
    plain = isinstance(error, (ValueError, TypeError, OSError, RuntimeError)) and text
    return text if plain else f"{type(error).__name__}: {text}".rstrip(": ")


class Job:
    """What a running job sees: progress to tell, and whether it should stop."""

    def __init__(self, kind: str, on_progress: Callable[[int, int, str], None]):
        self.kind = kind
        self._on_progress = on_progress
        self._stop = threading.Event()

    def cancel(self) -> None:
        self._stop.set()

    def check(self, what: str) -> None:
        """Raise `Cancelled` when the job should stop; nothing is told: for what is over before one could read it."""
        if self._stop.is_set():
            raise Cancelled(what)

    def progress(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` steps of `what` are finished. Raises `Cancelled` when the job should stop."""
        self.check(what)
        self._on_progress(done, total, what)


class Worker:
    """A thread that runs the latest request of each kind, in the order of `kinds`.

    The kind `limited` runs at most `updates_per_s` times a second: the first request of a burst at once, later ones
    replace each other and run at that rate, the last always runs. A new request cancels a running job of its kind.
    Where a job is a generator, requests of kinds before its own run between its steps.

    Args:
        kinds: Names of the request kinds, urgent first. A waiting request is replaced by a newer one of its kind.
        on_state: Called as `on_state(kind, state, text)` with state "busy", "idle", "cancelled" or "error".
        limited: The kind whose rate is limited.
        background: The kind that `wait` does not wait for.
        on_end: Called once when the thread has ended.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        on_state: Callable[[str, str, str], None],
        limited: str,
        background: str = "",
        updates_per_s: float = 10.0,
        on_end: Callable[[], None] = lambda: None,
    ):
        self.kinds, self.limited, self.background = kinds, limited, background
        self.updates_per_s = updates_per_s
        self._on_state, self._on_end = on_state, on_end
        self._waiting: dict[str, tuple[float, Callable[[Job], None]]] = {}
        self._jobs: list[Job] = []  # what runs; the last one between the steps of those before it
        self._last_limited = 0.0
        self._errors: dict[str, BaseException] = {}
        self._closed = False
        self._wake = threading.Condition()
        # A slider's step is a hundred short torch calls, and the kernel's message threads are busy with the same move:
        # at the usual 5 ms, handing the interpreter over between them takes longer than the step.
        sys.setswitchinterval(min(sys.getswitchinterval(), 5e-4))
        self._thread = threading.Thread(target=self._run, name="qp-panel", daemon=True)
        _alive.add(self)
        self._thread.start()

    def submit(self, kind: str, fn: Callable[[Job], None], delay_s: float = 0.0) -> None:
        """Ask for `fn(job)`, not before `delay_s` from now. A request of the same kind that waits is dropped."""
        with self._wake:
            if self._closed:
                raise RuntimeError(CLOSED)
            if kind not in self.kinds:
                raise ValueError(f"kind must be one of {self.kinds}, got {kind!r}")
            self._waiting[kind] = (time.monotonic() + delay_s, fn)
            self._errors.pop(kind, None)
            for job in self._jobs:
                if job.kind == kind:
                    job.cancel()
            self._wake.notify_all()

    def cancel(self) -> None:
        """Stop the running job at its next progress call and drop what waits, which is told as cancelled too."""
        with self._wake:
            dropped = [kind for kind in self.kinds if kind in self._waiting and kind != self.background]
            self._stop_all()
        for kind in dropped:
            self._on_state(kind, "cancelled", DROPPED)

    def wait(self, timeout_s: float) -> None:
        """Block until nothing but background work runs or waits. Raises TimeoutError, or the error of a last job."""
        if self.is_current:
            raise RuntimeError("wait would block the worker that it waits for")
        with self._wake:
            if not self._wake.wait_for(self._is_done, timeout_s):
                raise TimeoutError(f"the panel is still working after {timeout_s} s")
            errors, self._errors = self._errors, {}
        for kind in self.kinds:
            if kind in errors:
                raise errors[kind]

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; requests that wait are dropped."""
        with self._wake:
            self._closed = True
            self._stop_all()
        if not self.is_current:
            self._thread.join(timeout_s)

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _stop_all(self) -> None:
        self._waiting.clear()
        for job in self._jobs:
            job.cancel()
        self._wake.notify_all()

    def _is_done(self) -> bool:
        busy = any(job.kind != self.background for job in self._jobs)
        return not busy and not set(self._waiting) - {self.background}

    def _take(self, before: str | None = None) -> Callable[[Job], None] | None:
        """Make the next request that is due the running job; None when closed.

        Waits for one. With `before` only a request that is more urgent than that kind counts, and None says that none
        is due now.
        """
        kinds = self.kinds if before is None else self.kinds[: self.kinds.index(before)]
        with self._wake:
            while not self._closed:
                now, pause = time.monotonic(), None
                for kind in kinds:
                    if kind not in self._waiting:
                        continue
                    due, fn = self._waiting[kind]
                    if kind == self.limited:
                        due = max(due, self._last_limited + 1.0 / self.updates_per_s)
                    if due <= now:
                        del self._waiting[kind]
                        self._jobs.append(Job(kind, functools.partial(self._busy, kind)))
                        return fn
                    pause = min(due - now, pause or due - now)
                if before is not None:
                    return None
                self._wake.wait(pause)
            return None

    def _run(self) -> None:
        while (fn := self._take()) is not None:
            self._work(fn)
            del fn
        self._on_end()

    def _work(self, fn: Callable[[Job], None]) -> None:
        """Run the newest of the running jobs to its end."""
        job = self._jobs[-1]
        if job.kind == self.limited:
            self._last_limited = time.monotonic()
        state, text, error = "idle", "", None
        try:
            with torch.inference_mode():  # grad mode is per thread: a cell's setting does not hold here
                steps = fn(job)
                for _ in steps if inspect.isgenerator(steps) else ():
                    while (urgent := self._take(before=job.kind)) is not None:
                        self._work(urgent)
        except Cancelled as stopped:
            state, text = "cancelled", str(stopped)
        except Exception as failure:
            state, text, error = "error", describe(failure), failure
        self._finish(job.kind, state, text, error)

    def _finish(self, kind: str, state: str, text: str, error: BaseException | None) -> None:
        with self._wake:
            replaced = state == "cancelled" and kind in self._waiting
        try:
            if not (self._closed or replaced):
                self._on_state(kind, state, text)
        except Exception as failure:  # a status line that can't be shown must not end the worker
            error = error or failure
        with self._wake:
            self._jobs.pop()
            if error is not None and kind not in self._waiting:
                self._errors[kind] = error
            self._wake.notify_all()

    def _busy(self, kind: str, done: int, total: int, what: str) -> None:
        self._on_state(kind, "busy", f"{what} {done:,} of {total:,}" if total else what)
