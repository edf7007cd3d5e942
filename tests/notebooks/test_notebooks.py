"""Every lesson: it has the shape of a lesson, and Run All passes offline in under a minute, quietly."""

from importlib.metadata import version
from pathlib import Path

import lesson_rules
import nbformat
import pytest
import strip_notebooks
from execute import run_all, same_python

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = strip_notebooks.tracked()
MAX_WALL_S = 60
# Without a model at hand a lesson runs on recorded captures; `model_or_recorded` makes that choice, by QP_MODEL.
RECORDED = {"QP_MODEL": "none"}


def lesson_runs():
    for path in LESSONS:
        yield pytest.param(path, RECORDED, id=f"{path.stem}-recorded")
        if "model_or_recorded" in path.read_text(encoding="utf-8"):
            yield pytest.param(path, {}, id=f"{path.stem}-live", marks=pytest.mark.model)


def test_there_are_lessons():
    assert LESSONS, f"no notebook in {FOLDER}"


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_shape(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [problem for rule in lesson_rules.RULES for problem in rule(notebook)] == []
    assert strip_notebooks.unstripped([path]) == [], "python tools/dev.py strip"


@pytest.mark.parametrize("path, environment", list(lesson_runs()))
def test_run_all(path, environment, tmp_path):
    before = sorted(FOLDER.rglob("*"))
    run = run_all(path, tmp_path, cell_timeout_s=MAX_WALL_S, **environment)
    if run.error:
        pytest.fail(run.error, pytrace=False)
    assert same_python(run.python)
    assert run.wall_s < MAX_WALL_S
    assert run.stderr == []
    assert run.panel_errors == []
    assert run.outgoing == []
    assert run.live_figures <= lesson_rules.MAX_LIVE_FIGURES
    assert sorted(FOLDER.rglob("*")) == before, "the lesson left files behind"
    reported = run.first_output.lower()
    missing = [word for word in (version("torch").split("+")[0], "cpu", "gpu", "back-end") if word not in reported]
    assert not missing, f"the first cell does not report {missing}: {run.first_output}"
