"""The runner itself: what it is meant to notice is planted once and must be noticed."""

import nbformat
import pytest
from execute import run_all, same_python
from nbformat.v4 import new_code_cell, new_notebook

TELLS = """
import os, socket, sys
import plotly.graph_objects as go
from IPython.display import display
print(os.path.basename(os.getcwd()), os.environ["QP_PLANTED"])
print("planted warning", file=sys.stderr)
figures = [go.FigureWidget(), go.FigureWidget()]
display({"application/vnd.plotly.v1+json": {"data": [], "layout": {}}, "text/plain": "figure"}, raw=True)
try: socket.create_connection(("qp.invalid", 80), timeout=1)
except OSError: pass
"""


def write(folder, *sources):
    path = folder / "planted.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source.strip()) for source in sources]), path)
    return path


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "lessons").mkdir()
    return tmp_path / "state"


def test_what_a_reader_meets_is_told(tmp_path, state):
    run = run_all(write(tmp_path / "lessons", TELLS), state, QP_PLANTED="yes")
    assert run.error == ""
    assert run.first_output.startswith("lessons yes\n")
    assert run.stderr == ["planted warning\n"]
    assert run.live_figures == 3
    assert run.panel_errors == []
    assert run.outgoing == ["socket.getaddrinfo qp.invalid"]
    assert same_python(run.python)
    assert 0 < run.wall_s < 60


def test_a_panel_whose_worker_failed_is_told(tmp_path, state):
    panel = (
        "import ipywidgets\nclass Panel(ipywidgets.VBox):\n    def wait(self, timeout_s): raise ValueError('planted')"
    )
    run = run_all(write(tmp_path / "lessons", panel, "panel = Panel()"), state)
    assert run.error == ""
    assert run.panel_errors == ["Panel: ValueError('planted')"]


def test_a_failing_cell_is_told_and_ends_the_run(tmp_path, state):
    run = run_all(write(tmp_path / "lessons", "1 / 0", "print('never', file=__import__('sys').stderr)"), state)
    assert "ZeroDivisionError" in run.error
    assert run.stderr == []


def test_a_slow_cell_is_told(tmp_path, state):
    run = run_all(write(tmp_path / "lessons", "import time; time.sleep(60)"), state, cell_timeout_s=1)
    assert "CellTimeoutError" in run.error
    assert run.wall_s < 30
