"""Start the Chromium that the browser tests drive; `tools/browsers.py` says which, as for `make test`."""

import sys
from pathlib import Path

import browsers

# The resolver rule and the missing proxy make "nothing leaves the machine" hold for the browser itself,
# whatever a page asks for (web sockets and beacons included, which request interception does not see).
# Chromium's sandbox works neither for root nor in most containers.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class BrowserMissing(RuntimeError):
    """No usable Chromium; the message is the command that gets one."""


def executable(playwrights_own: str) -> str:
    """Return the browser: `$QP_BROWSER`, then a system Chromium or Chrome, then playwright's own download.

    Raises:
        BrowserMissing: there is none.
        steps.SetupError: `$QP_BROWSER` does not run.
    """
    if found := browsers.installed():
        return found[0]
    if Path(playwrights_own).is_file():
        return playwrights_own
    raise BrowserMissing(
        f"no Chromium or Chrome found. Get one: {sys.executable} -m playwright install --with-deps chromium"
        "  (or name one: QP_BROWSER=/path/to/chrome)"
    )


def launch(playwright):
    """Start the browser without a window."""
    path = executable(playwright.chromium.executable_path)
    return playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS), timeout=60_000)
