"""The set-up script: which Python, which torch, when nothing is to be done, and what an interrupted install leaves."""

import os
import shutil
import sys

import environment
import pytest
import pythons
import steps
from environment import Torch, torch_plan

posix = pytest.mark.skipif(os.name == "nt", reason="the fakes are shell scripts")
PIN, MINIMUM = "2.13.0", "2.11"


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class FakeVenv(environment.Venv):
    """Records what pip would install; `available` are the requirements pip can find."""

    def __init__(self, root, torch=None, available=(), becomes=None):
        super().__init__(root)
        self.path.mkdir(exist_ok=True)
        self.installed, self.available, self.becomes, self.asked = torch, available, becomes or {}, []

    def version(self):
        return "3.11.7 (main)"

    def torch(self):
        return self.installed

    def pip_install(self, *args):
        self.asked.append(args)
        if args[0].startswith("torch"):
            self.installed = self.becomes.get(args[0], self.installed)
            return args[0] in self.available
        return True


@pytest.fixture
def clone(root, tmp_path):
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    return tmp_path


@posix
def test_a_shim_that_fails_is_passed_over(tmp_path):
    shim = script(tmp_path, "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    liar = script(tmp_path, "python3.12", "echo hello")
    good = script(tmp_path, "python3", f'exec "{sys.executable}" "$@"')
    found, message = pythons.choose(commands=[[shim], [liar], [str(tmp_path / "absent")], [good]])
    assert message == "" and found.version == sys.version_info[:3]
    assert os.path.realpath(found.path) == os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def known(*versions, has_venv=True):
    pythons_ = {str(version): pythons.Python(version, f"/usr/bin/python{version[1]}", has_venv) for version in versions}
    return {"commands": [[name] for name in pythons_], "probe": lambda command: pythons_.get(command[0])}


def test_the_light_choice_comes_first_and_the_newest_last():
    found, _ = pythons.choose(**known((3, 15, 0), (3, 13, 1), (3, 12, 1), (3, 11, 2), (3, 9, 0)))
    assert found.version == (3, 11, 2)
    found, _ = pythons.choose(**known((3, 15, 0), (3, 14, 1), (3, 10, 0)))
    assert found.version == (3, 14, 1)
    found, _ = pythons.choose(**known((3, 15, 0)))
    assert found.version == (3, 15, 0)


def test_what_to_install_is_said():
    found, message = pythons.choose(**known((3, 9, 2), (3, 10, 1)))
    assert found is None and "3.11 or newer" in message and "3.10.1, 3.9.2" in message
    found, message = pythons.choose(**known((3, 11, 2), has_venv=False))
    assert found is None and message.endswith("apt-get install -y python3.11-venv")
    found, message = pythons.choose("no-such-python")
    assert found is None and "no-such-python does not run" in message


@pytest.mark.parametrize(
    "installed, card, args, plan",
    [
        (None, False, "", [["torch==2.13.0+cpu"], ["torch==2.13.0"]]),
        (None, True, "", [["torch===2.13.0"]]),
        (Torch("2.13.0+cpu", None), False, "", []),
        (Torch("2.11.0", None), False, "", []),
        (Torch("2.10.1", None), False, "", [["torch==2.13.0+cpu"], ["torch==2.13.0"]]),
        (Torch("2.13.0+cpu", None), True, "", [["torch===2.13.0"]]),
        (Torch("2.13.0+cu130", "13.0"), True, "", []),
        (Torch("2.13.0+cu130", "13.0"), False, "", []),
        (Torch("2.13.0+cpu", None), False, "torch==2.12.0", [["torch==2.12.0"]]),
        (
            None,
            True,
            "--index-url https://example.org/cu128",
            [["--index-url", "https://example.org/cu128", "torch==2.13.0"]],
        ),
        (None, True, "/tmp/torch-2.13.0-cp311-linux_x86_64.whl", [["/tmp/torch-2.13.0-cp311-linux_x86_64.whl"]]),
    ],
)
def test_which_torch_is_tried(installed, card, args, plan):
    assert torch_plan(installed, card, PIN, MINIMUM, args) == plan


def test_the_cpu_build_is_tried_first_then_the_size_is_said(clone, capsys, monkeypatch):
    monkeypatch.setattr("environment.platform.system", lambda: "Linux")
    monkeypatch.setattr("environment.CUDA_FREE_BYTES", 1)
    cuda = Torch("2.13.0+cu130", "13.0")
    venv = FakeVenv(clone, available=["torch==2.13.0"], becomes={"torch==2.13.0": cuda})
    assert environment.install_torch(venv, False, "") == cuda
    assert venv.asked == [("torch==2.13.0+cpu",), ("torch==2.13.0",)]
    assert "about 3 GB" in capsys.readouterr().out


def test_with_a_card_a_torch_without_cuda_is_an_error(clone, monkeypatch):
    monkeypatch.setattr("environment.CUDA_FREE_BYTES", 1)
    cpu = Torch("2.13.0+cpu", None)
    venv = FakeVenv(clone, available=["torch===2.13.0"], becomes={"torch===2.13.0": cpu})
    with pytest.raises(steps.SetupError, match="has no CUDA although nvidia-smi finds a card"):
        environment.install_torch(venv, True, "")
    venv = FakeVenv(clone, available=["torch==2.13.0"], becomes={"torch==2.13.0": cpu})
    assert environment.install_torch(venv, True, "torch==2.13.0") == cpu


def test_too_little_disk_is_said_before_anything_is_fetched(clone, monkeypatch):
    monkeypatch.setattr("environment.CPU_FREE_BYTES", 1 << 60)
    venv = FakeVenv(clone)
    with pytest.raises(steps.SetupError, match="of disk are needed"):
        environment.install_torch(venv, False, "")
    assert venv.asked == []


@posix
@pytest.mark.parametrize(
    "text, card",
    [("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True), ("echo 'No devices were found'", False), ("exit 9", False)],
)
def test_a_card_counts_when_nvidia_smi_works(tmp_path, monkeypatch, text, card):
    script(tmp_path, "nvidia-smi", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment.has_card() is card


def test_another_torch_is_kept_through_the_install(clone):
    venv = FakeVenv(clone)
    assert environment.constraints_for(venv, Torch("2.13.0+cpu", None)) == clone / "constraints.txt"
    lines = environment.constraints_for(venv, Torch("2.11.0+cu128", "12.8")).read_text().splitlines()
    assert "torch==2.11.0+cu128" in lines and not any(line.startswith("triton==") for line in lines)
    assert any(line.startswith("numpy==") for line in lines)


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr("environment.has_card", lambda: False)
    monkeypatch.delenv("TORCH_ARGS", raising=False)


def test_the_second_time_nothing_is_done(clone, no_card):
    torch = Torch("2.13.0+cpu", None)
    first = environment.ensure(["model"], venv=FakeVenv(clone, torch))
    assert first.asked == [("-c", clone / "constraints.txt", "-e", ".[model]")]
    assert environment.ensure(["model"], venv=FakeVenv(clone, torch)).asked == []
    assert environment.ensure([], venv=FakeVenv(clone, torch)).asked == []
    more = environment.ensure(["dev"], venv=FakeVenv(clone, torch))
    assert more.asked[-1][-1] == ".[dev,model]", "extras installed before stay"
    assert environment.ensure(["model", "dev"], venv=FakeVenv(clone, torch)).asked == []


@pytest.mark.parametrize(
    "name, old, new, installs",
    [
        ("pyproject.toml", '"numpy>=2.0"', '"numpy>=2.1"', True),
        ("pyproject.toml", "line-length = 120", "line-length = 100", False),
        ("constraints.txt", "numpy==2.", "numpy==3.", True),
    ],
)
def test_a_changed_list_is_installed(clone, no_card, name, old, new, installs):
    torch = Torch("2.13.0+cpu", None)
    environment.ensure([], venv=FakeVenv(clone, torch))
    text = (clone / name).read_text()
    assert old in text
    (clone / name).write_text(text.replace(old, new))
    assert bool(environment.ensure([], venv=FakeVenv(clone, torch)).asked) is installs


def test_new_torch_args_are_passed_on_once(clone, no_card):
    torch = Torch("2.13.0+cpu", None)
    environment.ensure([], venv=FakeVenv(clone, torch))
    asked = environment.ensure([], venv=FakeVenv(clone, torch, ["torch==2.12.0"]), torch_args="torch==2.12.0").asked
    assert asked[0] == ("torch==2.12.0",)
    assert environment.ensure([], venv=FakeVenv(clone, torch), torch_args="torch==2.12.0").asked == []
    assert environment.ensure([], venv=FakeVenv(clone, torch)).asked == []


def test_a_new_card_gets_a_torch_with_cuda(clone, no_card, monkeypatch):
    environment.ensure([], venv=FakeVenv(clone, Torch("2.13.0+cpu", None)))
    monkeypatch.setattr("environment.has_card", lambda: True)
    monkeypatch.setattr("environment.CUDA_FREE_BYTES", 1)
    becomes = {"torch===2.13.0": Torch("2.13.0+cu130", "13.0")}
    venv = FakeVenv(clone, Torch("2.13.0+cpu", None), ["torch===2.13.0"], becomes)
    assert environment.ensure([], venv=venv).asked[0] == ("torch===2.13.0",)


def test_a_failed_install_is_not_remembered(clone, no_card):
    venv = FakeVenv(clone, Torch("2.13.0+cpu", None))
    environment.ensure([], venv=venv)
    venv.log.write_text("ERROR: the network is away")
    venv.pip_install = lambda *args: False
    with pytest.raises(steps.SetupError, match="the network is away"):
        environment.ensure(["dev"], venv=venv)
    assert not venv.stamp.exists()


def test_an_interrupted_install_is_noticed(clone, no_card, monkeypatch, capsys):
    venv = environment.Venv(clone)
    venv.path.mkdir()

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("environment.logged", killed)
    with pytest.raises(KeyboardInterrupt):
        venv.pip_install("torch")
    made = []
    monkeypatch.setattr("environment.logged", lambda command, *rest: made.append(command) or 1)
    with pytest.raises(steps.SetupError, match="could not make"):
        environment.ensure([], venv=FakeVenv(clone, Torch("2.13.0+cpu", None)))
    assert "cut off" in capsys.readouterr().out
    assert made[0][1:4] == ["-m", "venv", "--clear"]


@posix
def test_long_commands_show_that_they_move_and_end_in_time(tmp_path, capsys):
    log = tmp_path / "log"
    lines = (
        "Downloading torch-2.13.0-cp311.whl (532.1 MB)",
        "Downloading six-1.0.whl (9 kB)",
        "Installing collected packages: a, b",
    )
    assert steps.logged(["printf", "%s\\n", *lines], log) == 0
    shown = capsys.readouterr().out
    assert "downloading torch, 532.1 MB" in shown and "installing 2 packages" in shown and "six" not in shown
    assert "six-1.0.whl" in log.read_text()
    assert steps.logged(["sleep", "30"], log, timeout_s=0.5) == -1
    assert steps.tail(log, 1).endswith("$ sleep 30")
