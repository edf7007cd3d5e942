"""Commands of the script as a user meets them, the search for a browser, the doctor, and the writing of pins."""

import json
import os
import shutil
import subprocess
import sys
import types

import browsers
import commands
import doctor
import environment
import freeze
import pytest
import steps
import yaml

from activations import cache

posix = pytest.mark.skipif(os.name == "nt", reason="the fakes are shell scripts")


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with an empty PATH and no browser."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("QP_BROWSER", raising=False)
    monkeypatch.setattr(browsers, "PLACES", {})
    monkeypatch.setattr(browsers, "playwrights_own", lambda python: None)
    return tmp_path


@posix
def test_the_browser_that_is_named_wins(bare, monkeypatch):
    script(bare, "chromium", "exit 0")
    mine = script(bare, "my-chrome", "exit 0")
    monkeypatch.setenv("QP_BROWSER", mine)
    assert browsers.installed() == (mine, "$QP_BROWSER")
    monkeypatch.setenv("QP_BROWSER", str(bare / "absent"))
    with pytest.raises(steps.SetupError, match="does not run"):
        browsers.find(environment.Venv(bare))


@posix
def test_a_browser_stub_that_fails_is_passed_over(bare):
    script(bare, "chromium-browser", "echo 'requires the chromium snap' >&2; exit 1")
    chrome = script(bare, "google-chrome", "echo Chrome 1")
    assert browsers.installed() == (chrome, "system")


@posix
def test_browsers_are_fetched_in_order(bare, monkeypatch):
    """playwright's own is asked for first, then Debian's as root, then the one command is named."""
    asked = []

    def run(command, log, env=None, timeout_s=None):
        asked.append(command[-1] if "playwright" in command else " ".join(command[-3:]))
        if "install" in command and "apt-get" in command and debian_has_it:
            script(bare, "chromium", "exit 0")
        return 0 if "apt-get" in command else 1

    monkeypatch.setattr(browsers, "logged", run)
    monkeypatch.setattr(browsers, "is_debian_root", lambda: True)
    debian_has_it = True
    assert browsers.find(environment.Venv(bare)) == (str(bare / "chromium"), "Debian's chromium")
    assert asked[0] == "chromium" and asked[1].endswith("update") and "chromium" in asked[2]
    (bare / "chromium").unlink()
    monkeypatch.setattr(browsers, "is_debian_root", lambda: False)
    with pytest.raises(steps.SetupError, match="-m playwright install --with-deps chromium"):
        browsers.find(environment.Venv(bare))


@posix
def test_a_busy_apt_is_asked_again(bare, monkeypatch):
    answers = iter([100, 100, 0, 0])
    monkeypatch.setattr(browsers, "logged", lambda *args: next(answers))
    monkeypatch.setattr(browsers.time, "sleep", lambda seconds: None)
    assert browsers._apt_install(bare / "log") is True


@pytest.fixture
def copied_tools(root, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(root / "tools", clone / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, clone)
    return clone


def run_dev(clone, *arguments, **changes):
    return subprocess.run(
        [sys.executable, clone / "tools" / "dev.py", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **changes},
    )


def test_doctor_without_an_environment(copied_tools):
    done = run_dev(copied_tools, "doctor")
    assert done.returncode == 0 and done.stderr == ""
    assert "no ./.venv yet: make env" in done.stdout and "GB free" in done.stdout


def test_doctor_with_a_broken_environment_and_no_programs(copied_tools, tmp_path):
    python = environment.Venv(copied_tools).python
    python.parent.mkdir(parents=True)
    python.write_text("not a program")
    environment.Venv(copied_tools).stamp.write_text("not json")
    done = run_dev(copied_tools, "doctor", PATH=str(tmp_path), QP_BROWSER=str(tmp_path / "absent"))
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr
    assert "broken or half-made: make env" in done.stdout and "does not run" in done.stdout


def test_doctor_here_finds_torch_and_jupyterlab(capsys, monkeypatch):
    monkeypatch.setattr(browsers, "installed", lambda: ("/a/browser", "system"))
    assert doctor.main() == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("ok ")]
    assert {"python", "torch", "jupyterlab", "browser", "disk"} <= {line[1] for line in lines}


def test_help_and_wrong_commands(copied_tools):
    done = run_dev(copied_tools, "help")
    assert done.returncode == 0 and all(name in done.stdout for name in ("lab", "test", "doctor", "freeze"))
    done = run_dev(copied_tools, "lint", "--nonsense")
    assert done.returncode == 2 and "takes no --nonsense" in done.stderr
    done = run_dev(copied_tools, "env", "--python", "no-such-python")
    assert done.returncode == 1 and done.stdout.endswith("error: PYTHON=no-such-python does not run.\n")


@posix
def test_every_make_target_is_a_command(root):
    if shutil.which("make") is None:
        pytest.skip("no make here")
    targets = "lab test test-gpu fuzz-gpu sanitize-gpu doctor env model bench tune indexers".split()
    targets += "lint format strip freeze clean".split()
    done = subprocess.run(["make", "-n", *targets, "MODEL=none", "ARGS=--x"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0
    for target in targets:
        assert f"tools/dev.py {target}" in done.stdout
    assert 'dev.py lab  --model "none" --x' in done.stdout


@pytest.fixture
def on_a_card(monkeypatch):
    """What the commands for a card would run there: each call as strings."""
    calls = []
    venv = types.SimpleNamespace(python="python", torch=lambda: types.SimpleNamespace(cuda="13"))
    monkeypatch.setattr(environment, "ensure", lambda extras, python: venv)
    monkeypatch.setattr(environment, "has_card", lambda: True)
    monkeypatch.setattr(commands.subprocess, "call", lambda command, **options: calls.append(command) or len(calls) % 2)
    monkeypatch.setattr(commands.shutil, "which", lambda name, path=None: name)
    return calls


def test_fuzz_gpu_passes_arguments_on_and_what_they_say_counts(on_a_card, root):
    assert commands.main(["fuzz-gpu", "--rows", "5", "--backend", "torch"]) == 1
    (command,) = on_a_card
    assert command[1] == str(root / "tests" / "qp_kernels" / "fuzz.py") and (root / command[1]).exists()
    assert command[2:] == ["--device", "cuda", "--backend", "triton", "--rows", "5", "--backend", "torch"]


def test_fuzz_gpu_of_index_selection(on_a_card, root):
    assert commands.main(["fuzz-gpu", "--what", "index", "--rows", "5"]) == 1
    (command,) = on_a_card
    assert command[1] == str(root / "tests" / "qp_kernels" / "fuzz_index.py") and (root / command[1]).exists()
    assert command[2:] == ["--device", "cuda", "--backend", "triton", "--rows", "5"]


def test_sanitize_gpu_runs_both_tools_whatever_the_first_says(on_a_card, root, capsys):
    assert commands.main(["sanitize-gpu"]) == 1
    assert [command[2] for command in on_a_card] == ["memcheck", "racecheck"]
    assert all((root / command[-1]).exists() and "--error-exitcode" in command for command in on_a_card)
    assert capsys.readouterr().out.endswith("memcheck found something\n")


def test_indexers_prepares_the_default_model_alone_and_passes_arguments_on(on_a_card, monkeypatch):
    prepared = []
    monkeypatch.setattr(commands, "prepare", lambda venv: prepared.append(venv.python))
    assert commands.main(["indexers", "--steps", "5"]) == 1 and prepared == ["python"]
    assert commands.main(["indexers", "--model", "some/model"]) == 0 and prepared == ["python"]
    module = ["python", "-m", "activations.record", "indexers"]
    assert on_a_card == [[*module, "--steps", "5"], [*module, "--model", "some/model"]]


@pytest.mark.parametrize("command", ["test-gpu", "fuzz-gpu", "sanitize-gpu"])
def test_without_a_card_the_commands_for_one_say_so(on_a_card, monkeypatch, capsys, command):
    monkeypatch.setattr(environment, "has_card", lambda: False)
    assert commands.main([command]) == 1
    assert "no usable CUDA device here" in capsys.readouterr().out and not on_a_card


def test_lab_flags(monkeypatch):
    monkeypatch.setattr(commands, "is_headless", lambda: True)
    monkeypatch.setattr(commands.os, "geteuid", lambda: 0, raising=False)
    flags = commands.lab_flags()
    assert {"--allow-root", "--no-browser", "--LabApp.news_url=None"} <= set(flags)
    assert not any(".token" in flag or ".password" in flag for flag in flags), "JupyterLab keeps its token"
    monkeypatch.setattr(commands, "is_headless", lambda: False)
    monkeypatch.setattr(commands.os, "geteuid", lambda: 1000, raising=False)
    assert not {"--allow-root", "--no-browser"} & set(commands.lab_flags())


@pytest.fixture
def prepared(monkeypatch):
    """What `prepared` asks for: the model the options then name, the extras, and what is prepared."""
    monkeypatch.delenv("QP_MODEL", raising=False)
    done = []
    monkeypatch.setattr(environment, "ensure", lambda extras, python: done.append(("env", extras)) or "venv")
    monkeypatch.setattr(commands, "prepare", lambda venv, name: done.append(("prepare", name)))

    def run(*arguments):
        done.clear()
        options = commands.parser().parse_args(["lab", *arguments])
        commands.prepared(options)
        return options.model, *done

    return run


def test_the_model_is_prepared_before_lab_and_none_needs_none(prepared):
    assert prepared() == ("", ("env", ["model"]), ("prepare", ""))
    assert prepared("--model", "some/model") == ("some/model", ("env", []), ("prepare", "some/model"))
    for spelling in ("none", "None", "NONE"):
        assert prepared("--model", spelling) == ("none", ("env", []))


def test_without_model_the_one_of_the_environment_is_prepared(prepared, monkeypatch, tmp_path):
    monkeypatch.setenv("QP_MODEL", "some/model")
    assert prepared() == ("some/model", ("env", []), ("prepare", "some/model"))
    assert prepared("--model", "none") == ("none", ("env", []))
    monkeypatch.setenv("QP_MODEL", "NONE")
    assert prepared() == ("none", ("env", []))
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QP_MODEL", "mine")
    folder = str(tmp_path.resolve() / "mine")
    assert prepared() == (folder, ("env", []), ("prepare", folder))


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"QP_CACHE": ""},
        {"QP_CACHE": "a/place"},
        {"QP_CACHE": "~/a place"},
        {"QP_CACHE": "/a/place"},
        {"XDG_CACHE_HOME": "/a/cache", "LOCALAPPDATA": "/an/app"},
        {"XDG_CACHE_HOME": "", "LOCALAPPDATA": ""},
    ],
    ids=str,
)
def test_the_cache_is_where_activations_has_it(monkeypatch, tmp_path, platform, variables):
    for name in ("QP_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", platform)
    assert steps.cache_folder() == cache.cache_folder()
    asked = {name: value for name, value in steps.environ().items() if name == "QP_CACHE" and value}
    assert asked == ({"QP_CACHE": str(cache.cache_folder())} if variables.get("QP_CACHE") else {})


def test_the_hook_of_a_commit_installs_nothing(root, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ensure", lambda *args, **kwargs: pytest.fail("the hook set something up"))
    hooks = yaml.safe_load((root / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    (entry,) = [hook["entry"] for repo in hooks for hook in repo["hooks"]]
    program, *arguments = entry.split()[1:]
    assert program == "tools/dev.py"
    called = []
    monkeypatch.setattr(commands, "ruff", lambda venv, *what: called.append(what[0]) or 0)
    monkeypatch.setattr(commands.strip_notebooks, "strip", lambda: called.append("strip"))
    monkeypatch.setattr(commands, "quiet", lambda command: (0, "ruff 1"))
    assert commands.main(arguments) == 0 and called == ["check", "format", "strip"]
    monkeypatch.setattr(commands, "quiet", lambda command: (1, ""))
    assert commands.main(arguments) == 1 and called == ["check", "format", "strip"]


def test_a_model_that_cannot_be_prepared_stops_before_lab(monkeypatch):
    monkeypatch.setattr(commands.subprocess, "call", lambda *args, **kwargs: 1)
    with pytest.raises(steps.SetupError, match="MODEL=none"):
        commands.prepare(environment.Venv(), "some/model")


def test_freeze_takes_what_is_needed_and_no_local_version(tmp_path, monkeypatch):
    inventory = [
        ["qp-explorer", "0.1.0", ["torch>=2.11", "Jupyter_Lab", "big ; extra == 'model'", "tool; extra == 'dev'"]],
        ["torch", "2.13.0+cpu", ["filelock"]],
        ["filelock", "3.0", ["qp-explorer"]],
        ["jupyter-lab", "4.6", ["x[a]"]],
        ["x", "1", ["y; extra == 'a'", "z; extra == 'b'", "w; sys_platform == 'win32'"]],
        *(["y", "2", []], ["z", "3", []], ["big", "1.0", []], ["tool", "5", []], ["stranger", "9", []]),
    ]
    monkeypatch.setattr(freeze, "quiet", lambda command: (0, json.dumps(inventory)))
    (tmp_path / "constraints.txt").write_text('old==1\nw==7; sys_platform == "win32"\n')
    assert freeze.write(environment.Venv(tmp_path)) == 7
    lines = [line for line in (tmp_path / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines[:-1] == ["big==1.0", "filelock==3.0", "jupyter-lab==4.6", "tool==5", "torch==2.13.0", "x==1", "y==2"]
    assert lines[-1] == 'w==7; sys_platform == "win32"'
