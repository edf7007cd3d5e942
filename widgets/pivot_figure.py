"""The figure of `PivotExplorer` as pure functions: lines over g and c, systems, score tail, members, keys."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from widgets import key_bars, theme
from widgets.painting import Properties
from widgets.pivot_view import NAMES, PivotView
from widgets.ranked_windows import WINDOW
from widgets.text import DECADES, rough

TAIL_POINTS = 240
LEFT, MIDDLE, RIGHT = (0.0, 0.25), (0.32, 0.57), (0.7, 1.0)  # the upper parts, across
TAIL, MEMBERS = (0.0, 0.57), (0.65, 1.0)  # the middle ones
TOP, CENTRE, LOW = (0.68, 1.0), (0.27, 0.53), (0.0, 0.12)  # up and down
PER_CENT = {"tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1], "range": [0, 1.04]}
SIZES = [1, 2, 4, 8, 16, 32, 64]
_PARTS = {"g": "", "c": 2, "systems": 3, "tail": 4, "members": 5, "keys": 6}
_COLOURS = {"dense": theme.GREY, "refine": theme.BLUE, "reuse": theme.ORANGE}
_PATTERNS = {"dense": "", "refine": "", "reuse": "\\"}
_FOUND = "{}, {} = %{{x:,}}: %{{y:.1%}} {}<extra></extra>"


def pivot_figure() -> go.Figure:
    """The empty figure."""
    part = {name: {"xaxis": f"x{i}", "yaxis": f"y{i}"} for name, i in _PARTS.items()}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    both = {**line, "mode": "lines+markers", "hoverinfo": "all"}
    refine = {"line": {"color": theme.BLUE, "width": 2.5}, "marker": {"size": 5}}
    reuse = {"line": {"color": theme.ORANGE, "width": 2.5, "dash": "dash"}, "marker": {"size": 6, "symbol": "square"}}
    refine_mass = {"line": {"color": theme.BLUE, "width": 1.2, "dash": "dot"}}
    reuse_mass = {"line": {"color": theme.ORANGE, "width": 1.2, "dash": "dot"}}
    grey = {"line": {"color": theme.GREY, "width": 1.2, "dash": "dot"}, "mode": "lines"}
    ring = {"symbol": "circle-open", "size": 13, "color": theme.VERMILLION, "line": {"width": 2.5}}
    now = {"type": "scatter", "mode": "markers+text", "cliponaxis": False, "hoverinfo": "skip", "marker": ring}
    cut = {**line, "mode": "lines+text", "cliponaxis": False, "textposition": "middle right"}
    bar = {**key_bars.BAR, **part["keys"]}
    hatch = {"fillmode": "overlay", "fgcolor": "#ffffff", "size": 5, "solidity": 0.2}
    traces = [
        {**line, **grey, "name": "attention_g", **part["g"]},
        {
            **line,
            **refine_mass,
            "name": "refine_mass_g",
            "hoverinfo": "all",
            **_hover("Refine", "g", "mass"),
            **part["g"],
        },
        {**line, **reuse_mass, "name": "reuse_mass_g", "hoverinfo": "all", **_hover("Reuse", "g", "mass"), **part["g"]},
        {**both, **reuse, "name": "reuse_g", **_hover("Reuse", "g"), **part["g"]},
        {**both, **refine, "name": "refine_g", **_hover("Refine", "g"), **part["g"]},
        {**now, "name": "now_g", **part["g"]},
        {**line, **grey, "name": "attention_c", **part["c"]},
        {
            **line,
            **refine_mass,
            "name": "refine_mass_c",
            "hoverinfo": "all",
            **_hover("Refine", "c", "mass"),
            **part["c"],
        },
        {**line, **reuse, "name": "reuse_c", **part["c"]},
        {**both, **refine, "name": "refine_c", **_hover("Refine", "c"), **part["c"]},
        {**now, "name": "now_c", "textposition": "bottom right", **part["c"]},
        {**_SYSTEMS, "name": "systems", **part["systems"]},
        {**_ATTENTION, "name": "systems_mass", **part["systems"]},
        {**_BESIDE, "name": "systems_text", **part["systems"]},
        {
            **line,
            "name": "attention_so_far",
            "line": {"color": theme.GREEN, "width": 1.5, "dash": "dot"},
            **part["tail"],
        },
        {
            **line,
            "name": "scores",
            "line": {"color": theme.GREY, "width": 2},
            "fill": "tozeroy",
            **_TAIL,
            **part["tail"],
        },
        {**line, "name": "so_far", "line": {"color": theme.BLUE, "width": 2.5}, **_SO_FAR, **part["tail"]},
        {**cut, "name": "k_cut", "line": {"color": theme.VERMILLION, "width": 2}, **part["tail"]},
        {**cut, "name": "c_cut", "line": {"color": theme.VERMILLION, "width": 1.5, "dash": "dash"}, **part["tail"]},
        {**_MEMBERS, "name": "members", "marker": {"color": theme.VERMILLION, "pattern": {"shape": "/", **hatch}}},
        {
            **both,
            "name": "regret",
            "line": {"color": theme.PURPLE, "width": 2, "dash": "dash"},
            **_REGRET,
            **part["members"],
        },
        {
            **now,
            "name": "group",
            "mode": "markers",
            "marker": {**ring, "color": theme.BLUE, "size": 10},
            **_GROUP,
            **part["members"],
        },
        {**bar, "name": "kept", "marker": {"color": theme.GREEN}},
        {**bar, "name": "lost", "marker": {"color": theme.VERMILLION, "pattern": {"shape": "/", **hatch}}},
        {**bar, "name": "gained", "marker": {"color": theme.ORANGE, "pattern": {"shape": ".", **hatch}}},
        {**line, "name": "own", "line": {"color": theme.GREY, "width": 1.5, "dash": "dash"}, **part["keys"]},
    ]
    make = {"bar": go.Bar, "scatter": go.Scatter}
    figure = go.Figure(layout=_layout())
    figure.add_traces([make[trace["type"]](trace) for trace in traces])
    return figure


def _hover(name: str, axis: str, what: str = "keys") -> dict:
    words = "of a query's own keys" if what == "keys" else "of the attention"
    return {"hovertemplate": _FOUND.format(name, axis, words)}


_SYSTEMS = {"type": "bar", "orientation": "h", "hovertemplate": "%{customdata}<extra></extra>", "width": 0.62}
_SYSTEMS |= {"marker": {"pattern": {"fillmode": "overlay", "fgcolor": "#ffffff", "size": 6, "solidity": 0.2}}}
_BESIDE = {"type": "scatter", "mode": "text", "hoverinfo": "skip", "cliponaxis": False, "textposition": "middle right"}
_ATTENTION = {"type": "scatter", "mode": "markers", "hoverinfo": "skip", "cliponaxis": False}
_ATTENTION |= {"marker": {"symbol": "diamond-open", "size": 9, "color": theme.GREEN, "line": {"width": 2}}}
_TAIL = {"hoverinfo": "all", "hovertemplate": "rank %{x:,}: %{y:.1%} of the best score<extra></extra>"}
_TAIL |= {"fillcolor": "rgba(140, 140, 140, 0.2)"}
_SO_FAR = {"hoverinfo": "all", "hovertemplate": "the best %{x:,} hold %{y:.1%} of all score<extra></extra>"}
_MEMBERS = {"type": "bar", "xaxis": "x5", "yaxis": "y5", "width": 0.7}
_MEMBERS |= {"hovertemplate": "member %{x}: loses %{y:.1%} of its keys, in the mean of the groups<extra></extra>"}
_REGRET = {"hovertemplate": "member %{x}: loses %{y:.1%} of their score<extra></extra>", "marker": {"size": 5}}
_GROUP = {"hoverinfo": "all", "hovertemplate": "member %{x} of the open query's group: %{y:.1%}<extra></extra>"}


def _layout() -> dict:
    def heading(x: float, y: float) -> dict:
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "x": x, "y": y}
        return {"text": "", "showarrow": False, "font": {"size": 13}, **place}

    axis = theme.axis
    of_g = {"type": "log", "tickvals": SIZES, "range": [-0.06, np.log10(WINDOW * 1.15)]}
    decades = {"type": "log", "tickvals": list(DECADES), "ticktext": list(DECADES.values())}
    axes = {
        "xaxis": axis("g queries a group", domain=LEFT, **of_g),
        "yaxis": axis("", domain=TOP, **PER_CENT),
        "xaxis2": axis("c candidates a group", domain=MIDDLE, anchor="y2", type="log"),
        "yaxis2": axis("", domain=TOP, anchor="x2", **PER_CENT),
        "xaxis3": axis("share of a query's own keys", domain=RIGHT, anchor="y3", **PER_CENT | {"range": [0, 1.9]}),
        "yaxis3": axis("", domain=TOP, anchor="x3", showgrid=False, ticks=""),
        "xaxis4": axis("rank of the key in the query's own order", domain=TAIL, anchor="y4", **decades),
        "yaxis4": axis("", domain=CENTRE, anchor="x4", **PER_CENT),
        "xaxis5": axis("member of the group", domain=MEMBERS, anchor="y5", showgrid=False),
        "yaxis5": axis("", domain=CENTRE, anchor="x5", tickformat=".0%", nticks=4),
        "xaxis6": axis("key [position]", domain=[0, 1], anchor="y6", showgrid=False),
        "yaxis6": axis("", domain=LOW, anchor="x6", tickformat=".0%", nticks=3),
    }
    corners = [(LEFT, TOP), (MIDDLE, TOP), (RIGHT, TOP), (TAIL, CENTRE), (MEMBERS, CENTRE), ((0,), LOW)]
    return {
        **theme.layout(660),
        "barmode": "stack",
        "bargap": 0,
        "margin": {"l": 58, "r": 20, "t": 30, "b": 44},
        **axes,
        "annotations": [heading(x[0] if x is not RIGHT else 0.6, y[1]) for x, y in corners],
    }


def pivot_properties(view: PivotView) -> Properties:
    """Everything a view sets: properties by trace name, and layout settings by path."""
    traces = {**g_traces(view), **c_traces(view), **system_traces(view), **tail_traces(view)}
    traces |= {**member_traces(view), **key_traces(view)}
    layout = {f"annotations[{i}].text": text for i, text in enumerate(headings(view))}
    return traces, layout | axes(view, traces)


def g_traces(view: PivotView) -> dict[str, dict]:
    """Shares over g at the open c, the open g marked; the attention of the own keys as a line."""
    curves, g = view.curves, view.at.g
    refine, reuse = view.share("refine"), view.share("reuse")
    y, text = [refine, reuse], [f" {rough(refine)}", rough(reuse) if g > 1 else ""]
    own = [] if view.mass is None else [view.mass[0]] * 2
    return {
        "refine_g": {"x": curves.g, "y": _gaps(curves.refine)},
        "reuse_g": {"x": curves.g, "y": _gaps(curves.reuse)},
        "refine_mass_g": {"x": curves.g, "y": _gaps(curves.refine_mass)},
        "reuse_mass_g": {"x": curves.g, "y": _gaps(curves.reuse_mass)},
        "attention_g": {"x": [1, WINDOW] if own else [], "y": own},
        "now_g": {"x": [g, g], "y": _gaps(y), "text": text, "textposition": _beside_ring(g)},
    }


def _beside_ring(g: int) -> list[str]:
    """Where the shares stand beside the rings: Refine's above its falling line, Reuse's below."""
    return ["top right" if g < 24 else "top center", "bottom left"]


def c_traces(view: PivotView) -> dict[str, dict]:
    """The same over c at the open g; Reuse has no candidates, and is one line."""
    curves, c = view.curves, view.rule.budget
    ends = [curves.c[0], curves.c[-1]]
    refine, reuse = view.share("refine"), view.share("reuse")
    return {
        "refine_c": {"x": curves.c, "y": _gaps(curves.over_c)},
        "refine_mass_c": {"x": curves.c, "y": _gaps(curves.over_c_mass)},
        "reuse_c": {"x": ends, "y": _gaps([reuse] * 2)},
        "attention_c": {"x": [] if view.mass is None else ends, "y": [] if view.mass is None else [view.mass[0]] * 2},
        "now_c": {"x": [c], "y": _gaps([refine]), "text": [f" c = {c:,}" if c < ends[1] / 4 else ""]},
    }


def system_traces(view: PivotView) -> dict[str, dict]:
    """A bar for each system, with what it saves beside it, and a diamond for its attention."""
    names = list(view.systems)
    shares = [view.share(name) for name in names]
    mass = [] if view.mass is None else [view.attention(name) for name in names]
    place = list(range(len(names)))
    return {
        "systems": {
            "x": _gaps(shares),
            "y": place,
            "customdata": [_system_hover(view, name) for name in names],
            "marker.color": [_COLOURS.get(name, theme.PURPLE) for name in names],
            "marker.pattern.shape": [_PATTERNS.get(name, "x") for name in names],
        },
        "systems_mass": {"x": _gaps(mass), "y": place[: len(mass)]},
        "systems_text": {"x": [1.0] * len(names), "y": place, "text": [_beside(view, name) for name in names]},
    }


def _beside(view: PivotView, name: str) -> str:
    if np.isnan(view.share(name)):
        return ""
    less = view.less(name)
    if name == "dense":
        return f" {rough(view.share(name))}"
    saved = (
        "no search" if view.systems[name].used else f"{less:.1f} × less work" if less >= 1 else f"{1 / less:.1f} × more"
    )
    return f" {rough(view.share(name))} · {saved}"


def _system_hover(view: PivotView, name: str) -> str:
    one = view.systems[name]
    mass = "" if view.mass is None else f"<br>{view.attention(name):.1%} of the attention"
    work = f"{one.used} searches" if one.used else f"{one.cost.operations / 1e6:,.1f} M multiply-adds"
    return f"<b>{NAMES[name]}</b><br>{view.share(name):.1%} of a query's own keys{mass}<br>{work}"


def tail_traces(view: PivotView) -> dict[str, dict]:
    """The open query's scores in order, how much of all score is so far, and where k and c stand."""
    tail = view.tail
    count = len(tail["score"])
    ranks = np.unique(np.geomspace(1, max(count, 1), TAIL_POINTS).round().astype(np.int64))[: max(count, 0)]
    k, c = view.at.k, view.rule.budget
    attention, heights = tail.get("attention"), [0, 1.04, 0.3]
    words = " c = 2k" if c == 2 * k else " c" if c >= 1.5 * k else " k, c"
    return {
        "scores": {"x": ranks, "y": tail["score"][ranks - 1].clip(min=0)},
        "so_far": {"x": ranks, "y": tail["so_far"][ranks - 1]},
        "attention_so_far": {
            "x": ranks if attention is not None else [],
            "y": attention[ranks - 1] if attention is not None else [],
        },
        "k_cut": {"x": [k] * 3 if k <= count else [], "y": heights, "text": ["", "", "" if c < 1.5 * k else " k"]},
        "c_cut": {"x": [c] * 3 if c <= count else [], "y": heights, "text": ["", "", words]},
    }


def member_traces(view: PivotView) -> dict[str, dict]:
    """What each member loses: the mean of the window's groups as bars, the open query's group as rings."""
    members, rows = view.members, view.group
    place = np.arange(1, len(members["lost"]) + 1)
    lost = 1 - view.open.kept.recall[rows.start : rows.stop].numpy()
    return {
        "members": {"x": place, "y": members["lost"]},
        "regret": {"x": place, "y": members["regret"]},
        "group": {"x": np.arange(1, len(rows) + 1), "y": lost},
    }


def key_traces(view: PivotView) -> dict[str, dict]:
    """Where on the position axis the open query's keys are that stay, go, and come instead."""
    kept, lost, gained = view.keys
    bars = key_bars.binned(view.n_keys, kept=kept, lost=lost, gained=gained)
    return {**bars, "own": {"x": [view.position] * 2, "y": [0, 1]}}


def headings(view: PivotView) -> list[str]:
    """What each part says above it."""

    def box(colour: str, mark: str = "■") -> str:
        return f"<span style='color:{colour}'>{mark}</span>"

    at, (kept, lost, gained), score = view.at, view.keys, view.tail["score"]
    with_mass = "" if view.mass is None else " (┄ attention)"
    k = min(at.k, len(score))
    so_far = f": best {k:,} hold {rough(view.tail['so_far'][k - 1])} of all score" if k else ""
    mass = f", {rough(view.tail['attention'][k - 1])} of attention ┄" if k and "attention" in view.tail else ""
    diamonds = "" if view.mass is None else f", {box(theme.GREEN, '◇')} attention"
    return [
        f"<b>Keys found</b> by {box(theme.BLUE, '●')} Refine {box(theme.ORANGE)} Reuse",
        f"<b>With g = {at.g}</b>{with_mass}",
        f"<b>Systems</b> at c = {view.rule.budget:,}: keys found{diamonds}",
        f"<b>Scores of query {view.query}</b>{so_far}{mass}",
        f"<b>{NAMES[at.mode]} loses</b> {box(theme.VERMILLION)} keys {box(theme.PURPLE, '╌')} score, "
        f"{box(theme.BLUE, '○')} here",
        f"<b>Keys of query {view.query}</b>{view.token}: {box(theme.GREEN)} {len(kept):,} kept "
        f"{box(theme.VERMILLION)} {len(lost):,} lost {box(theme.ORANGE)} {len(gained):,} taken instead",
    ]


def axes(view: PivotView, traces: dict) -> dict:
    """Axis settings that follow the window, the group and the selection, by path."""
    n, names, g = view.n_keys, list(view.systems), view.at.g
    losses = [traces[name]["y"] for name in ("members", "regret", "group")]
    most = max(float(np.max(y, initial=0)) for y in losses)
    return {
        "xaxis2.range": _budget_range(view.curves.c, n),
        "xaxis2.tickvals": _budget_ticks(view.curves.c),
        "xaxis2.ticktext": [f"{c:,}" for c in _budget_ticks(view.curves.c)],
        "yaxis3.range": [len(names) - 0.45, -0.55],
        "yaxis3.tickvals": list(range(len(names))),
        "yaxis3.ticktext": [NAMES[name] for name in names],
        "xaxis4.range": [-0.02, np.log10(max(n, 2)) + 0.02],
        "xaxis5.range": [0.4, g + 0.6],
        "xaxis5.dtick": max(1, g // 8),
        "xaxis5.title.text": "member of the group" + _own_token(view),
        "yaxis5.range": key_bars.ends(np.array([most])),
        "xaxis6.range": [-0.5, n - 0.5],
        "yaxis6.range": key_bars.ends(sum(traces[name]["y"] for name in ("kept", "lost", "gained"))),
    }


def _own_token(view: PivotView) -> str:
    own = view.own_kept[view.queries.some.numpy()]
    return f", own token kept: {rough(float(own.mean()))}" if len(own) else ""


def _budget_range(budgets: list[int], n_keys: int) -> list[float]:
    """The axis of c from a power of four, so that it rests while k moves a little."""
    first = 4 ** int(np.log2(budgets[0]) // 2)
    return [np.log10(first) - 0.03, np.log10(max(n_keys, budgets[-1], 2 * first)) + 0.03]


def _budget_ticks(budgets: list[int]) -> list[int]:
    """Powers of four, of two or of sixteen, so that there are about four."""
    exponents = range(int(np.log2(budgets[0])), int(np.log2(max(budgets[-1], 2))) + 1)
    return [2**n for n in exponents if n % max(1, round(len(exponents) / 4)) == 0]


def _gaps(values: list[float]) -> list[float | None]:
    """A list for plotly, which draws None as a gap."""
    return [None if np.isnan(value) else value for value in values]
