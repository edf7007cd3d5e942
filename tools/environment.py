"""Make ./.venv: create it, choose the build of torch for this machine, install the project, note that it is done."""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pythons
from steps import ROOT, SetupError, environ, logged, quiet, say, step, tail

CUDA_FREE_BYTES = 10 << 30  # download, libraries and room to unpack
CPU_FREE_BYTES = 4 << 30


class Torch(NamedTuple):
    version: str  # with its local part, such as "2.13.0+cpu"
    cuda: str | None


class Venv:
    """The files of an environment. `stamp` is written last, `busy` exists while pip changes something."""

    def __init__(self, root=ROOT):
        self.root = Path(root)
        self.path = self.root / ".venv"
        self.python = self.path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp = self.path / "qp-explorer.json"
        self.busy = self.path / "installing"
        self.log = self.path / "setup.log"

    def version(self):
        """Its Python's version text, or None when it does not run."""
        code, out = quiet([self.python, "-c", "import sys, pip; print(sys.version)"])
        return out.strip() if code == 0 else None

    def torch(self):
        """The torch that imports here, or None."""
        code, out = quiet([self.python, "-c", "import torch; print(torch.__version__, torch.version.cuda)"], 180)
        if code != 0:
            return None
        version, cuda = out.split()[-2:]
        return Torch(version, None if cuda == "None" else cuda)

    def pip_install(self, *args):
        """Run pip install; True when it succeeded. A kill in between leaves `busy` behind."""
        self.busy.touch()
        code = logged([self.python, "-m", "pip", "install", "--progress-bar", "off", *args], self.log, environ())
        self.busy.unlink(missing_ok=True)
        return code == 0


def ensure(extras, wanted_python=None, venv=None, torch_args=None):
    """Make `./.venv` fit pyproject.toml, constraints.txt and `extras`; at once when nothing has changed.

    Args:
        extras: Names of extras; those installed before stay.
        wanted_python: Interpreter the user asked for.
        torch_args: What the user wants pip to be given for torch; default: $TORCH_ARGS.
    Raises:
        SetupError: with what to do.
    """
    venv = venv or Venv()
    torch_args = os.environ.get("TORCH_ARGS", "") if torch_args is None else torch_args
    done, card, version = read_stamp(venv), has_card(), venv.version()
    if is_fresh(done, venv, version, extras, card, torch_args):
        return venv
    version = _create(venv, version, wanted_python)
    extras = sorted({*extras, *done.get("extras", [])})
    venv.stamp.unlink(missing_ok=True)
    torch = install_torch(venv, card, torch_args)
    with step(f"installing the project with {', '.join(extras) or 'no extras'} (a few minutes the first time)"):
        target = f".[{','.join(extras)}]" if extras else "."
        if not venv.pip_install("-c", constraints_for(venv, torch), "-e", target):
            raise SetupError(f"pip could not install the project:\n{tail(venv.log)}\n  full log: {venv.log}")
    write_stamp(venv, version, extras, card, torch_args)
    return venv


def has_card():
    """True when a working `nvidia-smi -L` names a GPU."""
    code, out = quiet(["nvidia-smi", "-L"], 30)
    return code == 0 and "GPU " in out


def fingerprint(venv, version):
    """What an environment was made for: our lists, its Python and the place of the clone."""
    project = tomllib.loads((venv.root / "pyproject.toml").read_text("utf-8"))
    asked = [project["project"], project["build-system"], project["tool"]["hatch"]]
    pins = (venv.root / "constraints.txt").read_text("utf-8")
    return hashlib.sha256(json.dumps([asked, pins, version, str(venv.root)]).encode()).hexdigest()


def read_stamp(venv):
    try:
        return json.loads(venv.stamp.read_text())
    except (OSError, ValueError):
        return {}


def write_stamp(venv, version, extras, card, torch_args):
    content = {"for": fingerprint(venv, version), "extras": extras, "card": card, "torch_args": torch_args}
    venv.stamp.write_text(json.dumps(content))


def is_fresh(stamp, venv, version, extras, card, torch_args):
    """True when nothing needs to be installed."""
    return (
        version is not None
        and not venv.busy.exists()
        and stamp.get("for") == fingerprint(venv, version)
        and set(extras) <= set(stamp.get("extras", []))
        and (stamp.get("card") or not card)
        and torch_args in ("", stamp.get("torch_args"))
    )


def _create(venv, version, wanted_python):
    """Create the environment unless it is there and whole; return its Python's version text."""
    if venv.busy.exists():
        say("! an earlier set-up was cut off: making ./.venv anew")
        version = None
    elif version and wanted_python:
        found = pythons.probe([wanted_python])
        if found and sys_version(version) != found.version[:2]:
            say(f"! ./.venv has another Python ({version.split()[0]}): making it anew")
            version = None
    elif version and sys_version(version) < pythons.NEEDED:
        version = None
    if version:
        return version
    found, message = pythons.choose(wanted_python)
    if found is None:
        raise SetupError(message)
    with step(f"making ./.venv with Python {'.'.join(map(str, found.version))} ({found.path})"):
        if logged([found.path, "-m", "venv", "--clear", venv.path], venv.root / ".venv.log", environ()) != 0:
            raise SetupError(f"could not make {venv.path}:\n{tail(venv.root / '.venv.log')}")
        (venv.root / ".venv.log").replace(venv.log)
    return venv.version()


def sys_version(text):
    return tuple(int(part) for part in text.split()[0].split(".")[:2])


def release(version):
    """(2, 13, 0) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def torch_pin(root):
    """The tested torch, from constraints.txt."""
    return re.search(r"^torch==(\S+)", (root / "constraints.txt").read_text(), re.MULTILINE)[1]


def torch_minimum(root):
    """The oldest torch pyproject.toml admits."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return next(found[1] for item in project["dependencies"] if (found := re.match(r"torch>=([\d.]+)", item)))


def torch_plan(installed, card, pin, minimum, torch_args=""):
    """What to try with pip install for torch, in this order; [] keeps what is there.

    With a card the build must have CUDA: `===` skips a local build such as +cpu, which `==` would take. Without one the
    CPU build is tried first; it fails at once where there is none.
    """
    if torch_args:
        wanted = shlex.split(torch_args)
        names_torch = any(re.match(r"torch($|[=<>!~\s@])|.*\btorch-[^/]*\.whl$", part) for part in wanted)
        return [wanted if names_torch else [*wanted, f"torch=={pin}"]]
    if installed and release(installed.version) >= release(minimum) and (installed.cuda or not card):
        return []
    if card:
        return [[f"torch==={pin}"]]
    return [[f"torch=={pin}+cpu"], [f"torch=={pin}"]]


def install_torch(venv, card, torch_args):
    """Install the torch for this machine; return it. Raises SetupError."""
    plan = torch_plan(venv.torch(), card, torch_pin(venv.root), torch_minimum(venv.root), torch_args)
    for number, args in enumerate(plan):
        big = platform.system() == "Linux" and (card or number > 0)
        _check_disk(venv.root, CUDA_FREE_BYTES if big else CPU_FREE_BYTES)
        if big and not torch_args:
            say("! this torch comes with its CUDA libraries: about 3 GB to fetch (TORCH_ARGS chooses another build)")
        with step(f"pip install {' '.join(args)}"):
            if venv.pip_install(*args):
                break
            if number + 1 < len(plan):
                say("  there is none for this machine")
                continue
        raise SetupError(f"pip could not install torch:\n{tail(venv.log)}\n{_torch_advice()}  full log: {venv.log}")
    torch = venv.torch()
    if torch is None:
        raise SetupError(f"torch is installed but does not import: {venv.python} -c 'import torch' tells why.")
    if card and not torch.cuda and not torch_args:
        raise SetupError(
            f"torch {torch.version} has no CUDA although nvidia-smi finds a card; name a build: TORCH_ARGS"
        )
    return torch


def _check_disk(folder, needed_bytes):
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise SetupError(f"{needed_bytes / 1e9:.0f} GB of disk are needed at {folder}, {free / 1e9:.1f} GB are free.")


def _torch_advice():
    if platform.system() == "Darwin" and platform.machine() == "x86_64":
        return "  torch has no build for Intel Macs since 2.3; use Linux, Windows or a Mac with Apple silicon.\n"
    if sys.version_info[:2] > pythons.PREFERRED[-1]:
        return "  this Python may be too new for torch: try make lab PYTHON=python3.12\n"
    return ""


def constraints_for(venv, torch):
    """The constraints file to use: ours, or a copy that keeps another torch a user chose."""
    ours = venv.root / "constraints.txt"
    if release(torch.version) == release(torch_pin(venv.root)):
        return ours
    lines = [line for line in ours.read_text().splitlines() if not re.match(r"(torch|triton)==", line)]
    adapted = venv.path / "constraints.txt"
    adapted.write_text("\n".join([*lines, f"torch=={torch.version}", ""]))
    return adapted
