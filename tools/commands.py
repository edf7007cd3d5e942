"""The commands of dev.py."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import browsers
import doctor
import environment
import freeze
import strip_notebooks
from steps import ROOT, SetupError, cache_folder, environ, quiet, say, step

DEFAULT_MODEL = "gemma-3-270m"
NO_MODEL = "none"
KERNEL_TESTS = "tests/qp_kernels"
START = "notebooks/00_tokens_and_cuts.ipynb"
FUZZERS = {"qrita": "tests/qp_kernels/fuzz.py", "index": "tests/qp_kernels/fuzz_index.py"}
# Of tests; each may hold a model.
MOST_PROCESSES = 4
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
SANITIZED = "tests/qp_kernels/sanitize.py"
TERMS = "The default model is Gemma 3 270M; by using it you accept the Gemma Terms of Use: ai.google.dev/gemma/terms"


def main(arguments):
    """Run one command; return the exit status."""
    options, extra = parser().parse_known_args(arguments)
    if extra and not options.passes_on:
        parser().error(f"{options.command} takes no {' '.join(extra)}")
    options.extra = [part for part in extra if part != "--"]
    try:
        return options.run(options) or 0
    except SetupError as error:
        say(f"\nerror: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nstopped")
        return 130


def parser():
    top = argparse.ArgumentParser(prog="dev.py", description="Set up, run and test the project.", allow_abbrev=False)
    top.set_defaults(run=lambda options: top.print_help(), passes_on=False)
    commands = top.add_subparsers(dest="command", metavar="command")

    def add(name, run, text, python=False, model=False, passes_on=False):
        one = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        one.set_defaults(run=run, passes_on=passes_on)
        if python:
            one.add_argument("--python", metavar="COMMAND", help="the interpreter to make ./.venv with")
        if model:
            one.add_argument(
                "--model",
                default="",
                help="none, a folder or a Hugging Face id; default: $QP_MODEL or gemma-3-270m",
            )
        return one

    add("lab", lab, "open the start lesson in JupyterLab; other arguments go to it", True, True, True)
    add("test", test, "all checks and tests; other arguments go to pytest", True, passes_on=True)
    add("test-gpu", test_gpu, "the tests that need a CUDA device; other arguments go to pytest", True, passes_on=True)
    text = "random rows against the oracle on a CUDA device; other arguments go to it"
    fuzz = add("fuzz-gpu", fuzz_gpu, text, True, passes_on=True)
    fuzz.add_argument("--what", choices=list(FUZZERS), default="qrita", help="top-k / top-p (default), index selection")
    add(
        "sanitize-gpu",
        sanitize_gpu,
        "small shapes under compute-sanitizer: memcheck and racecheck",
        True,
        passes_on=True,
    )
    add("doctor", lambda options: doctor.main(), "say what works here, what does not and why")
    add("env", env, "make or update ./.venv", True).add_argument("--extras", default="model,dev")
    add("model", model, "fetch and convert the model", True, True)
    add(
        "bench",
        bench,
        "time the kernels here, beside others; NAME [its arguments]: a script of benchmarks/",
        passes_on=True,
    )
    text = "distil the indexers of data/indexers again, on a GPU within minutes; other arguments go to it"
    add("indexers", indexers, text, True, passes_on=True)
    add("tune", tune, "measure the launch table on this machine's GPU; other arguments go to it", passes_on=True)
    add("lint", lint, "ruff's checks and formatting, and that notebooks are stripped")
    form = add("format", format_code, "let ruff format and mend what it can, and strip the notebooks")
    form.add_argument("--as-is", action="store_true", help="use ./.venv as it is, install nothing")
    add("strip", strip, "strip notebooks of outputs").add_argument("--check", action="store_true", help="only look")
    add("freeze", freeze_versions, "write constraints.txt from ./.venv")
    add("clean", clean, "remove ./.venv and caches in the clone; the model cache stays")
    add("help", lambda options: top.print_help(), "this list")
    return top


def lab(options):
    venv = prepared(options)
    silence_news(venv)
    command = [str(venv.python), "-m", "jupyterlab", *lab_flags(), *options.extra]
    env = environ(**({"QP_MODEL": options.model} if options.model else {}))
    say(f"→ starting JupyterLab; it opens {START} (Ctrl-C twice ends it)")
    if os.name == "nt":
        return subprocess.call(command, cwd=ROOT, env=env)
    os.chdir(ROOT)
    os.execve(command[0], command, env)


def silence_news(venv):
    """Set the default of ./.venv so that JupyterLab does not ask whether it may fetch news: that box covers the lesson.

    What a user has chosen in JupyterLab's settings still counts.
    """
    folder = venv.path / "share" / "jupyter" / "lab" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    quiet_news = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    (folder / "overrides.json").write_text(json.dumps(quiet_news), "utf-8")


def lab_flags():
    """JupyterLab on our lesson: its token stays, its news pop-up and update check do not."""
    flags = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url=/lab/tree/{START}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--allow-root")
    if is_headless():
        say("! no display here: open the address that JupyterLab prints (from afar: ssh -L PORT:localhost:PORT <host>)")
        flags.append("--no-browser")
    return flags


def is_headless():
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("win32", "darwin")
    return bool(os.environ.get("CI")) or not has_display


def model(options):
    prepared(options)


def prepared(options):
    """The environment with the model that `options` name in the cache (`none`: with no model)."""
    options.model = chosen_model(options.model)
    default = options.model in ("", DEFAULT_MODEL)
    if default:
        say(TERMS)
    venv = environment.ensure(["model"] if default else [], options.python)
    if options.model != NO_MODEL:
        prepare(venv, options.model)
    return venv


def chosen_model(asked):
    """What $QP_MODEL shall be: `none` in any case as "none", a folder by its full path, any other name as it is.

    Args:
        asked: What --model says. "": the $QP_MODEL of the caller, if any; else "", the default model.
    """
    name = asked or os.environ.get("QP_MODEL", "")
    if name.lower() == NO_MODEL:
        return NO_MODEL
    return str(Path(name).resolve()) if name and Path(name).is_dir() else name


def prepare(venv, name=""):
    """Fetch and convert the model into the cache. Raises SetupError."""
    name = name or DEFAULT_MODEL
    command = [venv.python, "-m", "activations.prepare", name]
    with step(f"preparing the model {name} (about a minute the first time)"):
        if subprocess.call(list(map(str, command)), cwd=ROOT, env=environ()) != 0:
            raise SetupError(
                "the model could not be prepared (see above). MODEL=none opens the recorded captures without it."
            )


def test(options):
    """Everything, from nothing: environment, model, browser, pytest three times, ruff included; the last line tells."""
    say(TERMS)
    venv = environment.ensure(["model", "dev"], options.python)
    prepare(venv)
    browser, how = browsers.find(venv)
    say(f"browser: {browser} ({how})")
    whole = {"QP_BROWSER": browser, "QP_TEST_ALL": "1"}
    if options.extra:
        return run_pytest(venv, options.extra, **whole)
    runs = {
        "the kernels in Triton's interpreter": ([*spread("worksteal"), KERNEL_TESTS], INTERPRETED),
        "what needs no browser": ([*spread("loadfile"), "-m", "not browser"], whole),
        "what has a browser, one at a time since it is timed": (["-m", "browser"], whole),
    }
    failed = []
    for name, (arguments, variables) in runs.items():
        if variables is INTERPRETED and not has_triton(venv):
            continue
        say(name)
        if run_pytest(venv, arguments, **variables):
            failed.append(name)
    say("everything passed" if not failed else f"FAILED: {'; '.join(failed)}")
    return int(bool(failed))


def spread(how):
    """Arguments for several processes: "worksteal", or "loadfile" where tests of a file share what takes long."""
    return ["-n", str(min(MOST_PROCESSES, os.cpu_count() or 1)), "--dist", how]


def has_triton(venv):
    """Triton has wheels for Linux only."""
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec('triton') is None)"
    return subprocess.call([str(venv.python), "-c", script]) == 0


def test_gpu(options):
    venv = with_card(options, ["model", "dev"])
    return run_pytest(venv, ["-m", "gpu", *options.extra], QP_TEST_ALL="1")


def fuzz_gpu(options):
    """At least two million rows, or one million of index selection, unless the arguments say otherwise."""
    venv = with_card(options, ["dev"])
    command = [venv.python, ROOT / FUZZERS[options.what], "--device", "cuda", "--backend", "triton", *options.extra]
    return subprocess.call(list(map(str, command)), cwd=ROOT, env=environ())


def sanitize_gpu(options):
    """Both tools, also when the first finds something; the last line says which did."""
    venv = with_card(options, ["dev"])
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        raise SetupError("there is no compute-sanitizer: it comes with NVIDIA's CUDA toolkit.")
    failed = []
    for tool in ("memcheck", "racecheck"):
        say(f"→ compute-sanitizer {tool}")
        command = [program, "--tool", tool, "--error-exitcode", "1", venv.python, ROOT / SANITIZED, *options.extra]
        if subprocess.call(list(map(str, command)), cwd=ROOT, env=environ()) != 0:
            failed.append(tool)
    say(f"{' and '.join(failed)} found something" if failed else "memcheck and racecheck are clean")
    return int(bool(failed))


def with_card(options, extras):
    """The environment, on a machine with a card that its torch can use."""
    venv = environment.ensure(extras, options.python)
    torch = venv.torch()
    if not environment.has_card() or not torch or not torch.cuda:
        raise SetupError("no usable CUDA device here; `make doctor` says why.")
    return venv


def bench(options):
    """Time the kernels beside others (`python -m qp_kernels.bench`); a name runs that script of benchmarks/ instead."""
    scripts = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py")) if not path.stem.startswith("_")}
    name = options.extra[0] if options.extra else ""
    if name in scripts:
        venv, command = environment.ensure(["model", "dev"]), [str(scripts[name]), *options.extra[1:]]
    elif not name or name.startswith("-"):
        venv, command = environment.ensure([]), ["-m", "qp_kernels.bench", *options.extra]
    else:
        raise SetupError(f"no benchmark is named {name}; there are: {', '.join(scripts)}. Without a name: the kernels.")
    return subprocess.call([str(venv.python), *command], cwd=ROOT, env=environ())


def indexers(options):
    """Distil the default model's indexers, or with `--model` those of another."""
    default = not any(part.startswith("--model") for part in options.extra)
    venv = environment.ensure(["model"] if default else [], options.python)
    if default:
        say(TERMS)
        prepare(venv)
    command = [str(venv.python), "-m", "activations.record", "indexers", *options.extra]
    return subprocess.call(command, cwd=ROOT, env=environ())


def tune(options):
    venv = environment.ensure([])
    return subprocess.call([str(venv.python), "-m", "qp_kernels.tune", *options.extra], cwd=ROOT, env=environ())


def run_pytest(venv, arguments, **variables):
    say("→ pytest")
    command = [venv.python, "-m", "pytest", "--durations=10", *arguments]
    return subprocess.call(list(map(str, command)), cwd=ROOT, env=environ(**variables))


def ruff(venv, *arguments):
    """Run ruff on everything; 0 or its exit status."""
    say(f"→ ruff {' '.join(arguments)}")
    return subprocess.call([str(venv.python), "-m", "ruff", *arguments, "."], cwd=ROOT)


def lint(options):
    venv = environment.ensure(["dev"])
    failed = ruff(venv, "check") + ruff(venv, "format", "--check")
    return _report_unstripped() or int(failed > 0)


def format_code(options):
    venv = environment.Venv() if options.as_is else environment.ensure(["dev"])
    if options.as_is and quiet([venv.python, "-m", "ruff", "--version"])[0] != 0:
        raise SetupError("there is no ruff in ./.venv: make format")
    failed = ruff(venv, "check", "--fix") + ruff(venv, "format")
    strip_notebooks.strip()
    return int(failed > 0)


def env(options):
    venv = environment.ensure([extra for extra in options.extras.split(",") if extra], options.python)
    say(f"ready: {venv.path}")


def strip(options):
    if options.check:
        return _report_unstripped()
    for path in strip_notebooks.strip():
        say(f"stripped {path.relative_to(ROOT)}")


def _report_unstripped():
    dirty = strip_notebooks.unstripped()
    for path in dirty:
        say(f"{path.relative_to(ROOT)} has outputs or metadata: python tools/dev.py strip")
    return int(bool(dirty))


def freeze_versions(options):
    venv = environment.Venv()
    count = freeze.write(venv)
    say(f"constraints.txt: {count} pins; run make test before you commit it")


def clean(options):
    caches = [path for name in (".pytest_cache", ".ruff_cache", ".hypothesis") if (path := ROOT / name).exists()]
    rooms = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name not in (".venv", ".git")]
    caches += [path for room in rooms for path in Path(room).rglob("__pycache__")]
    for path in [*caches, ROOT / ".venv"]:
        shutil.rmtree(path, ignore_errors=True)
    say(f"removed ./.venv and caches; the model stays in {cache_folder()}")
