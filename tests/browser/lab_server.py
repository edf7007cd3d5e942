"""A JupyterLab of our own: real server and kernels, every folder temporary, nothing of the user's touched.

Knows the server process and its REST interface; knows nothing of the browser (`lab.py`) nor of what notebooks show.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # A save dialog would cover the page, and a saved notebook would come back with outputs.
    "docmanager-extension/plugin": {"autosave": False},
}


def isolated_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Jupyter and IPython read and write only below `folder`.

    Kernels started in it note every host name or address outside this machine that Python tries to reach in
    `folder/outgoing.log` (see `kernel_watch.py`).
    """
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(HERE / "kernel_watch.py", startup / "00-kernel-watch.py")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_"))}
    for variable in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        env[f"JUPYTER_{variable}"] = str(folder / variable.lower())
    for variable in ("SETTINGS_DIR", "WORKSPACES_DIR"):
        env[f"JUPYTERLAB_{variable}"] = str(folder / variable.lower())
    env |= {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        "QP_OUTGOING_LOG": str(folder / "outgoing.log"),
    }
    return env


def outgoing_of_kernels(folder: Path) -> list[str]:
    """Return what kernels of `isolated_environment(folder)` tried to reach outside this machine."""
    log = folder / "outgoing.log"
    return log.read_text().splitlines() if log.exists() else []


class LabServer:
    """JupyterLab from this Python, serving `root`, with its state below `state`. Use as a context manager."""

    def __init__(self, root: Path, state: Path, start_timeout_s: float = 90):
        self.root, self.state, self.start_timeout_s = Path(root), Path(state), start_timeout_s
        self.token = secrets.token_hex(16)
        self.url = ""
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "LabServer":
        env = isolated_environment(self.state)
        for name, values in SETTINGS.items():
            self.write_settings(name, values)
        # Port 0: the server picks a free one and tells it in its runtime file, so nobody can take it in between.
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--ServerApp.port=0"),
            *(f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={self.token}"),
            *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
            *("--LabApp.extension_manager=readonly", "--LabApp.expose_app_in_browser=True"),
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--allow-root")
        self.log = self.state / "jupyterlab.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=env, cwd=self.root, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # JupyterLab ends its kernels before itself
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(15)

    def _wait_until_up(self) -> None:
        info = self.state / "runtime_dir" / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            if info.exists() and info.stat().st_size:
                self.url = json.loads(info.read_text())["url"]
                with suppress(urllib.error.URLError):  # the file is written a moment before the port is open
                    self.request("GET", "api/status")
                    return
            time.sleep(0.1)
        state = "is not up" if self.process.poll() is None else f"ended with {self.process.returncode}"
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"JupyterLab {state} after {self.start_timeout_s:.0f} s. Its log ends:\n{tail}")

    def request(self, method: str, path: str):
        """Call the server's REST interface and return the decoded answer (None when empty)."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def shut_down_kernels(self) -> None:
        for session in self.request("GET", "api/sessions"):
            self.request("DELETE", f"api/sessions/{session['id']}")

    def outgoing(self) -> list[str]:
        return outgoing_of_kernels(self.state)

    def use_theme(self, theme: str) -> None:
        """Choose "light" or "dark" for pages opened from now on."""
        self.write_settings("apputils-extension/themes", {"theme": THEMES[theme], "adaptive-theme": False})

    def write_settings(self, name: str, values: dict) -> None:
        path = self.state / "settings_dir" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
