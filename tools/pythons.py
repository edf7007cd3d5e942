"""Find a Python that works, by running candidates: a shim can exist and fail. Runs on old Pythons too."""

import json
import os
import subprocess
import sys
from collections import namedtuple

NEEDED = (3, 11)
# 3.11 first: where a light CPU build of torch is at hand, it is most often for 3.11. Newer ones are tried last.
PREFERRED = ((3, 11), (3, 12), (3, 13), (3, 14))

PROBE = """
import json, sys
try:
    import ensurepip, venv
    has_venv = True
except ImportError:
    has_venv = False
print(json.dumps([list(sys.version_info[:3]), getattr(sys, "_base_executable", None) or sys.executable, has_venv]))
"""

Python = namedtuple("Python", "version path has_venv")  # version: (3, 11, 7); path: the real interpreter, never a shim


def probe(command):
    """Run `command` (a list); return its Python, or None when it does not run."""
    try:
        done = subprocess.run(
            command + ["-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False
        )
        version, path, has_venv = json.loads(done.stdout.decode())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Python(tuple(version), path, has_venv)


def candidates():
    """Commands worth trying, best first."""
    minors = [f"{major}.{minor}" for major, minor in PREFERRED]
    launcher = [["py", f"-{minor}"] for minor in minors] if os.name == "nt" else []
    return launcher + [[f"python{minor}"] for minor in minors] + [[sys.executable], ["python3"], ["python"]]


def choose(wanted=None, probe=probe, commands=None):
    """Choose the interpreter of ./.venv.

    Args:
        wanted: A command or path the user asked for; no other is tried then.
        commands: Candidates to try instead of the usual ones.
    Returns:
        (Python, "") or (None, a message that says what to install).
    """
    if wanted:
        found = probe([wanted])
        return _judge([found]) if found else (None, f"PYTHON={wanted} does not run.")
    found = [probe(command) for command in commands or candidates()]
    return _judge([python for python in found if python is not None])


def _judge(found):
    new_enough = [python for python in found if python.version >= NEEDED]
    usable = [python for python in new_enough if python.has_venv]
    if usable:
        return min(usable, key=_rank), ""
    if new_enough:
        best = min(new_enough, key=_rank)
        package = f"python{best.version[0]}.{best.version[1]}-venv"
        return None, f"{best.path} lacks venv or ensurepip. On Debian or Ubuntu: apt-get install -y {package}"
    seen = ", ".join(sorted({".".join(map(str, python.version)) for python in found})) or "none that runs"
    return None, (
        f"Python 3.11 or newer is needed; found: {seen}. Install one (python.org, `brew install python@3.12`, "
        "`apt-get install -y python3 python3-venv`) or name one: make lab PYTHON=/path/to/python3.12"
    )


def _rank(python):
    minor = tuple(python.version[:2])
    return PREFERRED.index(minor) if minor in PREFERRED else len(PREFERRED)
