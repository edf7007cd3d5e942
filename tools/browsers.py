"""Find a Chromium or Chrome for the browser tests, by running it: a stub, or one without its libraries, does not do."""

import os
import platform
import shutil
import time
from pathlib import Path

from steps import SetupError, environ, logged, quiet, say, step, tail

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = {
    "Darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ),
    "Windows": (
        r"%ProgramFiles%\Google\Chrome\Application\chrome.exe",
        r"%ProgramFiles(x86)%\Google\Chrome\Application\chrome.exe",
        r"%LocalAppData%\Google\Chrome\Application\chrome.exe",
        r"%ProgramFiles(x86)%\Microsoft\Edge\Application\msedge.exe",
    ),
}
DOWNLOAD_LIMIT_S = 300
CONNECTION_LIMIT_MS = "10000"


def runs(path):
    """True when the browser starts. On Windows `--version` opens a window instead, so there a file must do."""
    if platform.system() == "Windows":
        return Path(path).is_file()
    return quiet([path, "--version"], 30)[0] == 0


def installed():
    """(path, how it was found) of a browser on this machine, or None.

    Raises:
        SetupError: $QP_BROWSER is set to something that does not run.
    """
    named = os.environ.get("QP_BROWSER")
    if named:
        if runs(named):
            return named, "$QP_BROWSER"
        raise SetupError(f"QP_BROWSER={named} does not run.")
    found = [path for command in COMMANDS if (path := shutil.which(command))]
    found += [path for place in PLACES.get(platform.system(), ()) if Path(path := os.path.expandvars(place)).is_file()]
    return next(((path, "system") for path in found if runs(path)), None)


def playwrights_own(python):
    """The path of the browser that playwright has downloaded, or None."""
    script = "from playwright.sync_api import sync_playwright as p\nwith p() as q: print(q.chromium.executable_path)"
    code, out = quiet([python, "-c", script])
    path = out.strip()
    return path if code == 0 and Path(path).is_file() and runs(path) else None


def find(venv):
    """A browser that runs, fetched if need be: system, playwright's own, and as root on Debian the distribution's.

    Returns:
        (path, how it was found)
    Raises:
        SetupError: none can be had; the message has the one command.
    """
    found = installed()
    if found:
        return found
    if path := playwrights_own(venv.python) or _download(venv):
        return path, "playwright's own"
    if is_debian_root() and _apt_install(venv.log):
        found = installed()
        if found:
            return found[0], "Debian's chromium"
    raise SetupError(
        "no Chromium or Chrome was found, and none could be fetched. Install one: "
        f"{venv.python} -m playwright install --with-deps chromium (or name one: QP_BROWSER=/path/to/chrome)"
    )


def _download(venv):
    with step("no browser here: asking playwright to download Chromium"):
        env = environ(PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT=CONNECTION_LIMIT_MS)
        command = [venv.python, "-m", "playwright", "install", "chromium"]
        if logged(command, venv.log, env, DOWNLOAD_LIMIT_S) != 0:
            say("  it could not be downloaded")
    return playwrights_own(venv.python)


def is_debian_root():
    """True for root on Debian itself; Ubuntu's chromium package only points to a snap."""
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        return False
    return "\nID=debian" in "\n" + release and os.geteuid() == 0


def _apt_install(log):
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=180", "-o", "Acquire::Retries=3"]
    env = environ(DEBIAN_FRONTEND="noninteractive")
    packages = ["chromium", "fonts-liberation"]  # a bare Debian has no font at all
    with step(f"running as root on Debian: apt-get update && apt-get install -y {' '.join(packages)}"):
        for attempt in range(3):
            # The lock of the package lists knows no time-out option, so a busy apt is simply asked again.
            logged([*apt, "update"], log, env)
            if logged([*apt, "install", "-y", "--no-install-recommends", *packages], log, env) == 0:
                return True
            if attempt < 2:
                say("  apt did not succeed; trying again in 10 s")
                time.sleep(10)
        say(tail(log))
    return False
