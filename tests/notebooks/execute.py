"""Run a notebook as Run All does, in a kernel of this Python, and tell what a reader would have met."""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from lab_server import isolated_environment, outgoing_of_kernels
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

# Appended after the last cell: which Python ran it, how many figures a browser would have to draw, and what panels have
# to say. A panel's worker fails without an output of any cell; `wait` raises its error again.
PROBE = """
def _probe():
    import json, sys
    import plotly.graph_objects as go
    from ipywidgets.widgets.widget import _instances
    widgets = list(_instances.values())
    errors = []
    for panel in widgets:
        if callable(getattr(panel, "wait", None)):
            try:
                panel.wait(60)
            except Exception as error:
                errors.append(f"{type(panel).__name__}: {error!r}")
    live = sum(isinstance(widget, go.FigureWidget) for widget in widgets)
    print(json.dumps({"python": sys.executable, "live_figures": live, "panel_errors": errors}))
_probe()
"""
PLOTLY = "application/vnd.plotly.v1+json"


@dataclass
class Run:
    """What one Run All gave: `error` of the cell that failed or "", texts on stderr, panel errors, figures, time."""

    error: str = ""
    stderr: list[str] = field(default_factory=list)
    first_output: str = ""
    panel_errors: list[str] = field(default_factory=list)
    live_figures: int = 0
    python: str = ""
    outgoing: list[str] = field(default_factory=list)
    wall_s: float = 0.0


def run_all(path: Path, state: Path, cell_timeout_s: int = 60, **environment: str) -> Run:
    """Execute the notebook with its folder as working directory; the file is not changed.

    Args:
        state: Empty folder for the kernel's own files. environment: Further variables of the kernel.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE))
    client = NotebookClient(
        notebook,
        timeout=cell_timeout_s,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    run = Run()
    start = time.perf_counter()
    try:
        client.execute(env={**isolated_environment(state), **environment}, cwd=str(path.parent))
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as failed:
        run.error = f"{type(failed).__name__}: {failed}"
    run.wall_s = time.perf_counter() - start
    run.outgoing = outgoing_of_kernels(state)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    run.stderr = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    run.first_output = text_of(cells[0])
    if not run.error:
        probe = json.loads(text_of(cells[-1]))
        static = sum(PLOTLY in output.get("data", {}) for output in outputs)
        run.python, run.live_figures = probe["python"], probe["live_figures"] + static
        run.panel_errors = probe["panel_errors"]
    return run


def text_of(cell) -> str:
    """Return all text that a code cell shows, streams and plain-text results."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(parts)


def same_python(path: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(sys.executable)
