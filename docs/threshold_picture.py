"""The picture of the Gaussian threshold: one live row with its thresholds, and hits and candidates over temperature.

Everything is in the repository: the row in data/captures, the rates in data/results/threshold_rules.json.
"""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from activations import recorded
from qp_kernels import results
from qp_kernels.qrita import select, truncation
from widgets import theme

WIDTH, HEIGHT = 940, 690
K, P = 50, 0.9
BIN = 0.4
TITLE = {"standoff": 4, "font": {"size": 14}}
# Colour, dash and width of a line by its name in the results.
RULES = {
    "closed": (theme.VERMILLION, "dash", 2.5),
    "bounded": (theme.BLUE, "solid", 3.5),
    "paper": (theme.ORANGE, "dot", 3),
}
# Page, text and a blue that reads on it.
PAGE = {"light": ("#ffffff", "#24292f", theme.BLUE), "dark": ("#0d1117", "#d6dde4", "#56B4E9")}


def figure(page: str) -> go.Figure:
    """The picture for a light or a dark page."""
    background, ink, blue = PAGE[page]
    drawn = go.Figure()
    row_with_thresholds(drawn, ink, blue)
    over_temperature(drawn, ink, blue)
    axis = {"gridcolor": theme.GRID, "zeroline": False, "linecolor": theme.TEXT, "ticks": "outside", "showline": True}
    drawn.update_xaxes(**axis)
    drawn.update_yaxes(**axis)
    drawn.update_layout(
        template="none",
        width=WIDTH,
        height=HEIGHT,
        paper_bgcolor=background,
        plot_bgcolor=background,
        font={"color": ink, "size": 14, "family": "Liberation Sans, Arial, sans-serif"},
        margin={"l": 68, "r": 20, "t": 40, "b": 56},
        showlegend=False,
        bargap=0.06,
    )
    return drawn


def row_with_thresholds(drawn: go.Figure, ink: str, blue: str) -> None:
    """Above: the histogram of a row, the normal curve, t for k and for p, and the cuts."""
    row = recorded("openers").logits(slice(0, 1), "float32")[0]
    by_k, by_p = truncation(row, k=K), truncation(row, p=P)
    mean, std, vocab = float(by_k.mean), float(by_k.std), row.numel()
    edges = np.arange(math.floor(float(row.min())), float(row.max()) + BIN, BIN)
    counts, _ = np.histogram(row.numpy(), edges)
    middles = (edges[:-1] + edges[1:]) / 2
    drawn.add_bar(x=middles, y=np.where(counts > 0, counts, np.nan), width=BIN * 0.94, marker_color=theme.GREY)
    x = np.linspace(edges[0] - 2, edges[-1] + 1, 300)
    curve = vocab * BIN * np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    drawn.add_scatter(x=x, y=curve, mode="lines", line={"color": blue, "width": 2.5})

    nucleus = select(row, p=P)
    marks = (  # (x, height of the label, text, colour, dash, side of the label)
        (by_p.threshold, 4.25, f"t for p = {P}: {int(by_p.kept):,} candidates", theme.PURPLE, "dash", "right"),
        (by_k.threshold, 4.7, f"t for k = {K}: {int(by_k.kept):,} candidates", theme.PURPLE, "dash", "right"),
        (nucleus.logits[-1], 3.7, f"cut of p: {int(nucleus.count):,} kept", theme.GREEN, "solid", "left"),
        (select(row, k=K).logits[-1], 3.1, f"cut of k: {K} kept", theme.GREEN, "solid", "left"),
    )
    for place, height, text, colour, dash, side in marks:
        line = {"color": colour, "width": 2.5, "dash": dash}
        drawn.add_scatter(x=[float(place)] * 2, y=[0.5, 10 ** (height + 0.12)], mode="lines", line=line)
        label(drawn, text, float(place), height, "x", "y", ink, xanchor=side, xshift=-6 if side == "right" else 6)
    text = f"normal curve: μ {mean:.2f}, σ {std:.2f}".replace("-", "−")
    label(drawn, text, -18.3, 4.15, "x", "y", blue, xanchor="left")
    heading(drawn, f"<b>A live row</b>: the {vocab:,} logits after “The capital of France is”", 0.0, 1.0)
    drawn.update_layout(
        xaxis={"domain": [0, 1], "anchor": "y", "range": [-25, 21], "title": {"text": "logit", **TITLE}},
        yaxis={
            "domain": [0.58, 1],
            "type": "log",
            "range": [math.log10(0.6), 5],
            "title": {"text": f"tokens per {BIN}", **TITLE},
            "tickvals": [1, 10, 100, 1000, 10_000, 100_000],
            "ticktext": ["1", "10", "100", "1,000", "10,000", "100,000"],
        },
    )


def over_temperature(drawn: go.Figure, ink: str, blue: str) -> None:
    """Below: how many of the live rows hit, and the median of their candidates, by rule."""
    found = results.read("threshold_rules")
    found_for_p = [r for r in found.records if r["p"] == P and r["margin"] == 0.2]
    temperatures = sorted({r["temperature"] for r in found_for_p})
    by = {(r["rule"], r["temperature"]): r for r in found_for_p}
    frozen = by["bounded", 1.0]["std_median"] / math.sqrt(2 * math.log(recorded("openers").vocab_size))
    buffer = found.about["candidate_buffer"]
    for rule, (colour, dash, width) in RULES.items():
        style = {"color": blue if colour == theme.BLUE else colour, "dash": dash, "width": width}
        records = [by[rule, t] for t in temperatures]
        rates = [100 * r["hit_rate"] for r in records]
        medians = [max(r["candidates_median"], 0.5) for r in records]
        shared = {"x": temperatures, "mode": "lines", "line": style, "cliponaxis": False}
        drawn.add_scatter(y=rates, xaxis="x2", yaxis="y2", **shared)
        drawn.add_scatter(y=medians, xaxis="x3", yaxis="y3", **shared)
    for axis, low, high in (("2", 0, 104), ("3", 0.5, 100_000)):
        line = {"color": theme.TEXT, "width": 1.5, "dash": "dash"}
        drawn.add_scatter(x=[frozen] * 2, y=[low, high], mode="lines", line=line, xaxis=f"x{axis}", yaxis=f"y{axis}")
    line = {"color": theme.GREY, "width": 1.5}
    drawn.add_scatter(x=[0.28, 1.52], y=[buffer] * 2, mode="lines", line=line, xaxis="x3", yaxis="y3")

    label(drawn, "closed form", 0.52, 56, "x2", "y2", ink, xanchor="right")
    label(drawn, "with the minimum,<br>either margin", 0.93, 86, "x2", "y2", ink, xanchor="left")
    label(drawn, "σ/T = √(2 ln V)", frozen, 10, "x2", "y2", ink, xanchor="left", xshift=5)
    label(drawn, f"buffer: {buffer:,}", 0.3, math.log10(buffer), "x3", "y3", ink, xanchor="left", yshift=10)
    label(drawn, "closed form", 0.58, 1.2, "x3", "y3", ink, xanchor="right")
    label(drawn, "with the minimum", 0.3, 3.72, "x3", "y3", ink, xanchor="left")
    label(drawn, "the paper's margin", 0.3, 2.8, "x3", "y3", ink, xanchor="left")
    heading(drawn, f"<b>Rows that hit</b>, p = {P}, of {found.about['rows']:,} [%]", 0.0, 0.4)
    heading(drawn, "<b>Candidates</b>, their median", 0.56, 0.4)
    ticks = {"tickvals": [0.4, 0.6, 0.8, 1.0, 1.2, 1.4], "range": [0.28, 1.52]}
    title = {"text": "temperature T", **TITLE}
    drawn.update_layout(
        xaxis2={"domain": [0, 0.46], "anchor": "y2", "title": title, **ticks},
        yaxis2={"domain": [0, 0.4], "anchor": "x2", "range": [0, 104], "tickvals": [0, 25, 50, 75, 100]},
        xaxis3={"domain": [0.56, 1], "anchor": "y3", "title": title, **ticks},
        yaxis3={
            "domain": [0, 0.4],
            "anchor": "x3",
            "type": "log",
            "range": [math.log10(0.5), 5],
            "tickvals": [0.5, 10, 100, 1000, 10_000, 100_000],
            "ticktext": ["none", "10", "100", "1,000", "10,000", "100,000"],
        },
    )


def heading(drawn: go.Figure, text: str, x: float, y: float) -> None:
    shared = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    drawn.add_annotation(text=text, x=x, y=y, yshift=6, font={"size": 15}, **shared)


def label(drawn: go.Figure, text: str, x: float, y: float, xref: str, yref: str, ink: str, **more) -> None:
    """Words at a place of a plot; y is its logarithm on a logarithmic axis."""
    drawn.add_annotation(
        text=text, x=x, y=y, xref=xref, yref=yref, showarrow=False, align="left", font={"color": ink}, **more
    )
