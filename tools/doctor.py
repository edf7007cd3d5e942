"""Say what works on this machine, what does not, and the command that mends it. Never raises, changes nothing."""

import json
import platform
import shutil
from pathlib import Path

import browsers
import environment
import pythons
from steps import SetupError, cache_folder, quiet, say

OK, MISSING, NOTE = "ok", "missing", "note"
CURES = {
    "rooms": "make env",
    "backend": "see torch above",
    "jupyterlab": "make env",
    "model": "make model (or do without it: make lab MODEL=none)",
}


def main():
    venv = environment.Venv()
    lines = [*_python(venv), *_inside(venv), _browser(venv), *_disk(venv)]
    for state, what, text in lines:
        say(f"{state:8} {what:12} {text}")
    bad = sum(state == MISSING for state, _, _ in lines)
    say(
        "\nEverything is ready."
        if not bad
        else "\n`make lab` makes what is missing, but for a line that names its own cure."
    )
    return 0


def _python(venv):
    found, message = pythons.choose()
    yield (
        (OK, "python", f"{'.'.join(map(str, found.version))}, {found.path}") if found else (MISSING, "python", message)
    )
    if not venv.path.exists():
        yield MISSING, "environment", "no ./.venv yet: make env"
        return
    version = venv.version()
    stamp = environment.read_stamp(venv)
    if version is None or venv.busy.exists():
        yield MISSING, "environment", "./.venv is broken or half-made: make env"
    elif stamp.get("for") != environment.fingerprint(venv, version):
        yield NOTE, "environment", f"./.venv (Python {version.split()[0]}) is older than its lists: make env"
    else:
        yield OK, "environment", f"./.venv, Python {version.split()[0]}, extras: {', '.join(stamp['extras']) or 'none'}"


def _inside(venv):
    """What the environment itself can do, and the card."""
    card = environment.has_card()
    code, out = quiet([venv.python, Path(__file__).with_name("probe.py")], 240)
    try:
        answers = json.loads(out.splitlines()[-1]) if code == 0 else {}
    except (ValueError, IndexError):
        answers = {}
    if not answers:
        yield _driver(card)
        yield MISSING, "model", "unknown without ./.venv"
        return
    works, torch = answers["torch"]
    yield (OK, "torch", _torch_text(torch)) if works else (MISSING, "torch", f"{torch}; make env")
    if platform.system() == "Linux":
        works, triton = answers["triton"]
        yield (OK, "triton", triton) if works else (MISSING, "triton", f"{triton}; make env")
    else:
        yield NOTE, "triton", f"has no build for {platform.system()}; the torch back-end is used"
    yield _driver(card)
    if card:
        works, gpu = answers["gpu"]
        yield (OK, "gpu", gpu) if works else (MISSING, "gpu", f"{gpu}; see the driver, or TORCH_ARGS for another build")
    for name, cure in CURES.items():
        works, text = answers[name]
        yield (OK, name, text) if works else (MISSING, name, f"{text}; {cure}")


def _torch_text(torch):
    return f"{torch['version']}, " + (f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU only")


def _driver(card):
    if card:
        code, out = quiet(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
        return OK, "driver", "; ".join(out.split("\n")).strip("; ") if code == 0 else "nvidia-smi -L works"
    if shutil.which("nvidia-smi"):
        return (
            MISSING,
            "driver",
            "nvidia-smi is there but finds no card: is the driver loaded? (everything runs on the CPU)",
        )
    return NOTE, "driver", "no NVIDIA card here: everything runs on the CPU, kernels on the torch back-end"


def _browser(venv):
    try:
        found = browsers.installed()
    except SetupError as error:
        return MISSING, "browser", str(error)
    if not found and (path := browsers.playwrights_own(venv.python)):
        found = path, "playwright's own"
    if found:
        return OK, "browser", f"{found[0]} ({found[1]}); only `make test` needs one"
    return NOTE, "browser", "no Chromium or Chrome; only `make test` needs one, and tries to fetch it"


def _disk(venv):
    for what, folder in (("disk", venv.root), ("cache", cache_folder())):
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free
        yield (OK if free > 2 << 30 else MISSING), what, f"{free / 1e9:.1f} GB free at {folder}"
