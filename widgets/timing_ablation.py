"""The ablation of the paper as a figure: what each run takes here, on Gaussian and live rows, beside its own times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from qp_kernels import results
from qp_kernels.qrita.ablation import RUN_NAMES
from widgets import theme
from widgets.recorded_results import recorded_or_none, short
from widgets.text import escape
from widgets.timing_marks import nice, ticks
from widgets.timing_view import duration

RUNS = (*RUN_NAMES, "ours")
PAPER_CARD = "H100"
# Kind of rows -> its words, colour and symbol; the kinds of one run stand one below the other.
KINDS = {"gauss": ("normal rows", theme.VERMILLION, "circle"), "live": ("a model's rows", theme.GREEN, "square")}
SIGNS = {"gauss": "●", "live": "■"}
APART, ROW_PX, LEFT = 0.13, 40, 190


def ablation_figure(source: results.Results | str = "ablation", folder: str | Path | None = None) -> go.Figure:
    """Dots for the median of every run and kind of rows, diamonds for the paper, in the order of the paper.

    Args:
        source: Results, or their name in data/results or in `folder`. Without a file of the default name, the figure
            says so.
    Raises:
        ValueError: results that hold no ablation.
    """
    figure = go.Figure(
        layout={**theme.layout(ROW_PX * (len(RUNS) + 2)), "margin": {"l": LEFT, "r": 24, "t": 74, "b": 44}}
    )
    if source == "ablation" and folder is None and (source := recorded_or_none("ablation")) is None:
        return _not_recorded(figure)
    found = results.read(source, folder=folder) if isinstance(source, str) else source
    needed = {"run", "rows", "batch", "vocab", "k", "p", "median_us", "p20_us", "p80_us", "paper_ms"}
    missing = needed - set(found.records[0])
    if missing:
        raise ValueError(f"the results {found.name!r} hold no ablation: they lack {', '.join(sorted(missing))}")
    records = {(record["run"], record["rows"]): record for record in found.records}
    _draw(figure, records)
    _axes(figure, records)
    _words(figure, found, records)
    return figure


def _draw(figure: go.Figure, records: dict) -> None:
    paper = {run: one["paper_ms"] for (run, _), one in records.items() if one["paper_ms"] is not None}
    line = {"mode": "lines", "hoverinfo": "skip"}
    x = [x for (run, _), one in records.items() if run in paper for x in (one["median_us"], 1e3 * paper[run], np.nan)]
    y = [y for run, kind in records if run in paper for y in (_row(run, kind), _row(run), np.nan)]
    figure.add_scatter(x=np.array(x), y=np.array(y), name="between", line={"color": theme.GREY, "width": 1}, **line)
    x = [x for one in records.values() for x in (one["p20_us"], one["p80_us"], np.nan)]
    y = [y for key in records for y in (_row(*key), _row(*key), np.nan)]
    figure.add_scatter(
        x=np.array(x), y=np.array(y), name="spread", line={"color": theme.GREY, "width": 6}, opacity=0.6, **line
    )
    for kind, (words, colour, symbol) in KINDS.items():
        of_kind = {run: one for (run, of), one in records.items() if of == kind}
        figure.add_scatter(
            x=[one["median_us"] for one in of_kind.values()],
            y=[_row(run, kind) for run in of_kind],
            name=kind,
            mode="markers",
            marker={
                "color": colour,
                "size": 11,
                "symbol": [symbol if one.get("exact", True) else f"{symbol}-open" for one in of_kind.values()],
            },
            customdata=[_hover(run, words, one) for run, one in of_kind.items()],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.add_scatter(
        x=[1e3 * ms for ms in paper.values()],
        y=[_row(run) for run in paper],
        name="paper",
        mode="markers",
        marker={"color": theme.BLUE, "symbol": "diamond-open", "size": 12, "line": {"width": 2}},
        customdata=[f"run {run}, the paper on an {PAPER_CARD}: {duration(1e3 * ms)}" for run, ms in paper.items()],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _row(run: str, kind: str | None = None) -> float:
    """Where a run stands, from above."""
    shift = {"gauss": -APART, "live": APART}.get(kind, 0.0)
    return RUNS.index(run) + shift


def _hover(run: str, words: str, one: dict) -> str:
    parts = [
        f"<b>{_name(run)}</b>, {words}: {duration(one['median_us'])}",
        f"p20 {duration(one['p20_us'])}, p80 {duration(one['p80_us'])}",
        *([f"{one['times_floor']:.3g} × the floor"] if one.get("times_floor") is not None else []),
        *([] if one.get("exact", True) else ["rows are not exact"]),
    ]
    return "<br>".join(parts)


def _name(run: str) -> str:
    return "top_k_top_p" if run == "ours" else f"{run} {RUN_NAMES[run]}"


def _axes(figure: go.Figure, records: dict) -> None:
    times = [one[name] for one in records.values() for name in ("p20_us", "p80_us")]
    times += [1e3 * one["paper_ms"] for one in records.values() if one["paper_ms"] is not None]
    low, high = nice(min(times) / 1.15, up=False), nice(max(times) * 4, up=True)  # room for the words on the right
    figure.update_layout(
        xaxis=theme.axis("time per call", type="log", range=[np.log10(low), np.log10(high)]),
        yaxis=theme.axis(
            "", range=[len(RUNS) - 0.4, -0.6], tickvals=list(range(len(RUNS))), ticktext=[_name(run) for run in RUNS]
        ),
    )
    for path, value in ticks("xaxis", low, high, duration).items():
        figure.layout[path] = value


def _words(figure: go.Figure, found: results.Results, records: dict) -> None:
    """The numbers beside the dots, and what the signs mean."""
    x, y, text = [], [], []
    for run in RUNS:
        here = {kind: records[run, kind] for kind in KINDS if (run, kind) in records}
        if here:
            paper = next((one["paper_ms"] for one in here.values() if one["paper_ms"] is not None), None)
            x.append(max([one["p80_us"] for one in here.values()] + ([1e3 * paper] if paper is not None else [])))
            y.append(RUNS.index(run))
            times = " and ".join(duration(one["median_us"]) for one in here.values())
            text.append(f"   <b>{times}</b>" + (f", paper {duration(1e3 * paper)}" if paper is not None else ""))
    figure.add_scatter(
        x=x, y=y, text=text, name="label", mode="text", textposition="middle right", hoverinfo="skip", cliponaxis=False
    )
    one = found.records[0]
    kinds = [kind for kind in KINDS if any(of == kind for _, of in records)]
    signs = " ".join(f"<span style='color:{KINDS[kind][1]}'>{SIGNS[kind]}</span> {KINDS[kind][0]}" for kind in kinds)
    size = ", ".join(f"{letter} = {one[key]:,}" for letter, key in (("B", "batch"), ("V", "vocab"), ("k", "k")))
    lines = [
        f"<b>{size}, p = {one['p']:g}</b>: median, p20 to p80",
        f"{signs} on {escape(short(found.device), 40)}   <span style='color:{theme.BLUE}'>◇</span> the paper's on an "
        f"{PAPER_CARD}: another card, so compare order and ratios",
        escape(found.caption, 160),
    ]
    place = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "align": "left"}
    figure.add_annotation(text="<br>".join(lines), xshift=10 - LEFT, showarrow=False, **place)


def _not_recorded(figure: go.Figure) -> go.Figure:
    words = "The ablation was not recorded here: there is no <b>data/results/ablation.json</b>."
    centre = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    figure.update_layout(height=160, xaxis={"visible": False}, yaxis={"visible": False})
    return figure.add_annotation(text=words, **centre)
