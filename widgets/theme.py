"""Colours, fonts and the style sheet that lets a figure follow JupyterLab's light or dark theme.

Plotly draws its own colours and knows nothing of the page. So the figures have transparent backgrounds and greys that
read on both themes, and `STYLE` lets their text take JupyterLab's own colours where it defines them.
"""

# Okabe-Ito without black and yellow; never the only carrier of a meaning.
BLUE = "#0072B2"  # reference: the normal curve, the distribution before the cut
VERMILLION = "#D55E00"  # the cut, the kernel
GREEN = "#009E73"  # kept, hit
PURPLE = "#CC79A7"  # the threshold t of the truncation
ORANGE = "#E69F00"  # rivals
GREY = "#8C8C8C"  # dropped
TEXT = "#777777"
GRID = "rgba(128, 128, 128, 0.22)"

# `window.resize` makes a plotly figure fit its box; the strip widget sends it when the panel's own width changes.
FIGURE_CONFIG = {"responsive": True, "displaylogo": False}

STYLE = """<style>
.qp-panel .js-plotly-plot text { fill: var(--jp-ui-font-color1, #777777) !important; }
.qp-wide .js-plotly-plot { min-width: 840px; }
.qp-panel .js-plotly-plot .hovertext text { fill: #ffffff !important; }
.qp-panel .js-plotly-plot .hovertext path { fill: #333333 !important; stroke: #777777 !important; }
.qp-panel .widget-label, .qp-panel .widget-html-content { color: var(--jp-ui-font-color1, inherit); }
.qp-panel .qp-summary { font-size: 15px; line-height: 1.45; font-variant-numeric: tabular-nums; }
.qp-panel .qp-caption { font-size: 12px; line-height: 1.4; color: var(--jp-ui-font-color1, #777777); }
.qp-panel .qp-error { color: var(--jp-ui-font-color0, #222222); border-left: 4px solid #D55E00; padding: 2px 8px; }
.qp-panel .qp-busy { color: var(--jp-ui-font-color1, #777777); border-left: 4px solid #0072B2; padding: 2px 8px; }
.qp-panel .qp-tokens { display: flex; flex-wrap: wrap; gap: 2px; max-height: 96px; overflow-y: auto;
  font-family: var(--jp-code-font-family, monospace); font-size: 13px; line-height: 1.5; }
.qp-panel .qp-token { border: 1px solid transparent; border-bottom-color: rgba(128, 128, 128, 0.6);
  background: transparent; border-radius: 3px; padding: 0 3px; white-space: pre; cursor: pointer;
  color: var(--jp-ui-font-color1, inherit); font: inherit; }
.qp-panel .qp-token:hover, .qp-panel .qp-token:focus-visible { border-color: #0072B2; outline: none; }
.qp-panel .qp-token[aria-current="true"] { border-color: #D55E00; border-width: 1px 1px 3px 1px; font-weight: 600; }
.qp-panel .qp-token.qp-unread { cursor: default; opacity: 0.75; border-bottom-style: dotted; }
.qp-panel .qp-token.qp-kept, .qp-panel .qp-legend.qp-kept { background: rgba(0, 158, 115, 0.25);
  border-bottom: 3px solid #009E73; opacity: 1; }
.qp-panel .qp-token.qp-new, .qp-panel .qp-legend.qp-new { background: rgba(213, 94, 0, 0.2);
  border-bottom: 3px dashed #D55E00; opacity: 1; }
.qp-panel .qp-token.qp-gained, .qp-panel .qp-legend.qp-gained { background: rgba(230, 159, 0, 0.2);
  border-bottom: 3px dotted #E69F00; opacity: 1; }
.qp-panel .qp-numbers { border-collapse: collapse; font-size: 13px; line-height: 1.5;
  font-variant-numeric: tabular-nums; color: var(--jp-ui-font-color1, inherit); }
.qp-panel .qp-numbers th, .qp-panel .qp-numbers td { padding: 0 10px; text-align: right; font-weight: normal;
  border-bottom: 1px solid rgba(128, 128, 128, 0.35); background: transparent; white-space: nowrap; }
.qp-panel .qp-numbers th:first-child, .qp-panel .qp-numbers td:first-child { text-align: left; }
.qp-panel .qp-legend { padding: 0 4px; border-radius: 3px; margin-right: 6px; }
</style>"""


def layout(height: int) -> dict:
    """Layout shared by every figure: transparent, responsive width, no control that would upload the figure."""
    return {
        "template": "none",
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": TEXT, "size": 12},
        "margin": {"l": 56, "r": 16, "t": 30, "b": 44},
        "hoverlabel": {"align": "left"},
        "modebar": {"remove": ["sendChartToCloud", "select2d", "lasso2d"], "bgcolor": "rgba(0,0,0,0)", "color": TEXT},
        "showlegend": False,
    }


def axis(title: str, **more) -> dict:
    """An axis with the shared grid. `title` is quantity and [unit]."""
    return {
        "title": {"text": title, "font": {"size": 12}},  # no standoff: it has plotly measure every tick label
        "ticklabeloverflow": "allow",  # so does hiding what overflows
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": GRID,
        "ticks": "outside",
        "tickcolor": GRID,
        **more,
    }
