"""Small notebooks with known behaviour, to prove that the harness sees what it claims to see."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PANEL = """
import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

x = np.arange(32, dtype=np.float64)
fig = go.FigureWidget()
fig._config = {"responsive": True, "displaylogo": False}
fig.add_bar(x=x, y=np.ones(32), name="kept", marker_color="#009E73")
fig.add_scatter(x=x, y=np.linspace(1, 2, 32).astype(np.float32), name="normal", line_color="#0072B2")
fig.update_layout(
    autosize=False, height=320, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
    xaxis_title="rank", yaxis_title="logit [nat]", yaxis_type="log", title="harness figure",
    modebar_remove=["sendChartToCloud"],
)
k = w.IntSlider(value=10, min=0, max=32, description="k [tokens]")
exact = w.BoundedIntText(value=10, min=0, max=32, layout=w.Layout(width="6em"))
p = w.FloatSlider(value=0.9, min=0, max=1, step=0.05, description="p")
text = w.Text(value="hello", description="text", continuous_update=False)
button = w.Button(description="Sample")
overlay = w.Checkbox(description="min-p")
mode = w.Dropdown(options=["float32", "model"], description="logits")
status = w.Label()
w.jslink((k, "value"), (exact, "value"))
style = w.HTML("<style>.js-plotly-plot svg text { fill: var(--jp-ui-font-color1) !important; }</style>")

def draw(change):
    fig.data[0].y = np.where(np.arange(32) < change["new"], 2.0, 1.0)

k.observe(draw, "value")
text.observe(lambda change: setattr(status, "value", f"got {change['new']}"), "value")
button.on_click(lambda _: setattr(status, "value", "sampled"))
overlay.observe(lambda change: setattr(status, "value", f"overlay {change['new']}"), "value")
mode.observe(lambda change: setattr(status, "value", f"mode {change['new']}"), "value")
panel = w.VBox([style, w.HBox([k, exact]), p, text, button, overlay, mode, status, fig])
"""

SHOW = "panel"
RESIZE = "fig.layout.autosize = True"
GONE_WIDGET = """
from IPython.display import display

view = {"model_id": "gone", "version_major": 2, "version_minor": 0}
display({"application/vnd.jupyter.widget-view+json": view, "text/plain": "a widget"}, raw=True)
"""


def write(folder: Path) -> None:
    """Put two notebooks into `folder`: a working panel, and one with a lost widget and a cell that fails."""
    notebooks = {
        "selftest_panel": [PANEL, SHOW, RESIZE],
        "selftest_error": [GONE_WIDGET, "raise ValueError('planted failure')", "print('never reached')"],
    }
    for name, sources in notebooks.items():
        cells = [new_markdown_cell(f"# {name}"), *(new_code_cell(source.strip()) for source in sources)]
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(new_notebook(cells=cells, metadata=metadata), folder / f"{name}.ipynb")
