"""Progress as one callable, `progress(done, total, what)`, and two that are always at hand.

`total` is 0 while it is not known. A callable may raise, which cancels the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int, str], None]


def quiet(done: int, total: int, what: str) -> None:
    """Say nothing."""


class ConsoleBar:
    """A line on standard error that is redrawn on a terminal, and one line per step elsewhere."""

    def __init__(self, stream=None, width: int = 30):
        self._stream = stream or sys.stderr
        self._width = width
        self._what = None
        self._drawn = 0.0

    def __call__(self, done: int, total: int, what: str) -> None:
        new = what != self._what
        live = self._stream.isatty()
        finished = total > 0 and done >= total
        if not new and not (live and (finished or time.monotonic() - self._drawn > 0.1)):
            return
        if new and live and self._what is not None:
            self._stream.write("\n")
        self._what, self._drawn = what, time.monotonic()
        if live and total > 0:
            filled = self._width * done // total
            bar = "█" * filled + "░" * (self._width - filled)
            self._stream.write(f"\r{what} {bar} {100 * done // total:3d} %")
        else:
            self._stream.write(what if live else what + "\n")
        self._stream.flush()

    def close(self) -> None:
        if self._what is not None and self._stream.isatty():
            self._stream.write("\n")
        self._what = None
