"""How long a reader waits for a panel, measured in a real browser on a real JupyterLab.

    python benchmarks/panel_latency.py                 # the recorded rows of the default model, V = 262,144
    python benchmarks/panel_latency.py --panels indexer overlap pivot   # 64 made-up queries, 8,192 keys, attention
    python benchmarks/panel_latency.py --source live   # the default model from the cache; fresh rows as well
    python benchmarks/panel_latency.py --check         # exit status 1 when a target is missed

Painted: from the key event to the end of the frame that shows the changed trace, by the page's clock. Computed: the
same step as the panel's worker timed it (`panel.computed_ms`: kernels, traces, messages; not the browser). Each step
is one key press on a slider, the next one comes when the panel rests. First figure: from Run All of the start lesson in
a fresh kernel to its first figure on the screen, imports and model included.
"""

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tools")]

import chromium  # noqa: E402
from lab import Lab, write_notebook  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

START_LESSON = "00_tokens_and_cuts.ipynb"
FIRST_FIGURE_TARGET_S = 20
PAINTED_TARGET_MS, COMPUTED_TARGET_MS, FRESH_ROW_TARGET_MS = 150, 25, 100

SOURCES = {
    "recorded": "from activations import recorded\nsource, text = recorded('openers'), None",
    "live": "from activations import load, texts\nsource, text = load(), texts.builtin_text('pydoc')[:600]",
}
PANEL = """
from widgets import LogitExplorer
panel = LogitExplorer(source, text=text)
panel
"""
LAYERS = """
from dataclasses import replace
from activations import synthetic

layers = {}
for n, smoothness in {5: 0.8, 11: 0.93, 17: 0.97}.items():
    one = synthetic.index(64, 8192, 8, 64, seed=n, topics=8, smoothness=smoothness)
    mass = (one.q.mean(1) @ one.k.T).softmax(1)
    layers[n] = replace(one, mass=mass)
"""
# Of a panel on an indexer: its class, and (control, trace that a step changes).
INDEX_PANELS = {
    "indexer": ("IndexerExplorer", [("k", "cut"), ("query", "dropped")]),
    "overlap": ("OverlapExplorer", [("k", "overlap"), ("g", "union_now")]),
    "pivot": ("PivotExplorer", [("k", "refine_c"), ("g", "members"), ("c", "now_c")]),
}


def widest_position(lab) -> int:
    """Return the row whose nucleus of 0.9 is widest, of 16 rows: there every step of k or p moves the cut."""
    lab.kernel("panel.wait(60); panel.k.value, panel.p.value = 0, 0.9", 90)
    code = "panel.position.value = {}; panel.wait(60); print(len(panel.to_frame(limit=10**6)))"
    last = int(lab.kernel("print(panel.position.grid[-1])"))
    rows = sorted({round(i * last / 15) for i in range(16)})
    return max(rows, key=lambda row: int(lab.kernel(code.format(row), 90)))


def steps(lab, actions) -> tuple[list[float], list[float]]:
    """Do each action once the panel rests; return painted and computed milliseconds of every step."""
    painted, computed = [], []
    for act in actions:
        painted.append(act()["painted_ms"])
        computed.append(float(lab.kernel("panel.wait(60); print(panel.computed_ms[-1])", 90)))
        lab.page.wait_for_timeout(300)
    return painted, computed


def row(name, values, target, unit="ms"):
    median, p95 = np.percentile(values, [50, 95])
    verdict = "ok" if p95 <= target else "OVER"
    return f"{name:<34}{len(values):>5}{median:>11.1f}{p95:>11.1f}{target:>9g} {unit}  {verdict}", p95 <= target


def measure_panel(lab, count):
    """Yield (table line, within target) for each control."""
    lab.open_notebook("panel_latency.ipynb")
    lab.run_all(timeout_s=180)
    lab.wait_for("() => qp.figures().length > 0 && qp.summary() !== ''", 60)
    widest = widest_position(lab)
    up, down = (partial(lab.key_to_painted_ms, key=key) for key in ("ArrowRight", "ArrowLeft"))
    k_steps = [partial(up, "k", "kept")] * count
    p_steps = [partial(up, "p", "kept")] * count
    position_steps = [partial(down, "position", "dropped"), partial(up, "position", "dropped")] * (count // 2)
    runs = [
        ("k", "panel.p.value, panel.k.value = 1.0, 100", k_steps),
        # At T = 2 no single token holds half of the mass, so every step of p moves the cut.
        ("p", "panel.k.value, panel.p.value, panel.temperature.value = 0, 0.5, 2", p_steps),
        ("position, row at hand", "panel.k.value, panel.temperature.value = 50, 1", position_steps),
    ]
    for name, prepare, actions in runs:
        lab.kernel(f"panel.position.value = {max(widest, 1)}; {prepare}; panel.wait(60)", 90)
        lab.page.wait_for_timeout(1_000)
        painted, computed = steps(lab, actions)
        yield row(f"{name}: painted", painted, PAINTED_TARGET_MS)
        yield row(f"{name}: computed", computed, COMPUTED_TARGET_MS)
    last = int(lab.kernel("print(panel.position.grid[-1])"))
    if last >= 100:  # the ends of a long text are not neighbours of each other, so they are never at hand together
        ends = [partial(lab.entry_to_painted_ms, "position", "dropped", row) for row in (0, last)]
        painted, computed = steps(lab, ends * (count // 4))
        yield row("position, fresh row: painted", painted, PAINTED_TARGET_MS)
        yield row("position, fresh row: computed", computed, FRESH_ROW_TARGET_MS)


def measure_index_panel(lab, name, count):
    """Yield (table line, within target) for each control of a panel on an indexer."""
    lab.open_notebook(f"{name}_latency.ipynb")
    lab.run_all(timeout_s=180)
    lab.wait_drawn()
    lab.kernel("panel.wait(60)", 90)
    for control, trace in INDEX_PANELS[name][1]:
        lab.kernel("panel.k.value, panel.g.value, panel.query.value = 400, 2, 20; panel.wait(60)", 90)
        lab.page.wait_for_timeout(1_000)
        # There and back: a group has few sizes.
        up, down = (partial(lab.key_to_painted_ms, control, trace, key=key) for key in ("ArrowRight", "ArrowLeft"))
        half = min(count // 2, 8)
        painted, computed = steps(lab, [up] * half + [down] * half)
        yield row(f"{name} {control}: painted", painted, PAINTED_TARGET_MS)
        yield row(f"{name} {control}: computed", computed, COMPUTED_TARGET_MS)


def measure_first_figure(lab, repeats=2):
    times = []
    for _ in range(repeats):
        lab.open_notebook(START_LESSON)
        lab.run_all(timeout_s=300)
        lab.wait_for("() => qp.firstFigure_ms !== null", 120)
        times.append(lab.first_figure_s)
    return row("first figure after Run All", times, FIRST_FIGURE_TARGET_S, "s")


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def write_notebooks(folder: Path, source: str) -> None:
    notebooks = {"panel": (SOURCES[source], PANEL)}
    for name, (panel, _) in INDEX_PANELS.items():
        notebooks[name] = (LAYERS, f"from widgets import {panel}\npanel = {panel}(layers, layer=11)\npanel")
    for name, codes in notebooks.items():
        write_notebook(folder / f"{name}_latency.ipynb", *codes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=SOURCES, default="recorded")
    parser.add_argument("--panels", nargs="+", choices=["logits", *INDEX_PANELS], default=["logits"])
    parser.add_argument("--steps", type=int, default=24, help="key presses per control, at most 40")
    parser.add_argument("--no-lesson", action="store_true", help="leave out the time to the first figure")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a target is missed")
    options = parser.parse_args()
    within = []

    def tell(line_and_verdict):
        line, ok = line_and_verdict
        within.append(ok)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        served, state = Path(temporary) / "served", Path(temporary) / "state"
        shutil.copytree(ROOT / "notebooks", served)
        state.mkdir()
        write_notebooks(served, options.source)
        with chromium.launch(playwright) as browser, LabServer(served, state) as server:
            lab = Lab(server, browser)
            print(f"source {options.source}, {os.cpu_count()} cores, load average at start {load_average()}")
            print(f"{'':<34}{'n':>5}{'median':>11}{'p95':>11}{'target':>9}", flush=True)
            if not options.no_lesson:
                tell(measure_first_figure(lab))
            for panel in options.panels:
                count = min(options.steps, 40)
                measured = measure_panel(lab, count) if panel == "logits" else measure_index_panel(lab, panel, count)
                for result in measured:
                    tell(result)
            lab.close()
    return int(options.check and not all(within))


if __name__ == "__main__":
    sys.exit(main())
