"""What a view of `PivotExplorer` sets in its figure, as pure functions; the figure itself is in `pivot_parts.py`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from widgets import key_bars, theme
from widgets.painting import Properties
from widgets.pivot_view import NAMES, PivotView
from widgets.ranked_windows import WINDOW
from widgets.text import rough

TAIL_POINTS = 240
COLOURS = {"dense": theme.GREY, "refine": theme.BLUE, "reuse": theme.ORANGE}  # rivals are purple
PATTERNS = {"dense": "", "refine": "", "reuse": "\\"}


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
    own = [] if view.mass is None else _gaps([view.mass[0]] * 2)
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
        "attention_c": {
            "x": [] if view.mass is None else ends,
            "y": [] if view.mass is None else _gaps([view.mass[0]] * 2),
        },
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
            "marker.color": [COLOURS.get(name, theme.PURPLE) for name in names],
            "marker.pattern.shape": [PATTERNS.get(name, "x") for name in names],
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
    ranks = _tail_ranks(count)
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


@lru_cache(16)
def _tail_ranks(count: int) -> np.ndarray:
    """Ranks from 1 to count at about equal ratios."""
    return np.unique(np.geomspace(1, max(count, 1), TAIL_POINTS).round().astype(np.int32))[: max(count, 0)]


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
    so_far = f": best {k:,} hold {rough(view.tail['so_far'][k - 1])}" if k else ""
    mass = f", {rough(view.tail['attention'][k - 1])} of attention ┄" if k and "attention" in view.tail else ""
    diamonds = "" if view.mass is None else f", {box(theme.GREEN, '◇')} attention"
    return [
        f"<b>Keys found</b> by {box(theme.BLUE, '●')} Refine {box(theme.ORANGE)} Reuse",
        f"<b>With g = {at.g}</b>{with_mass}",
        f"<b>Systems</b> at c = {view.rule.budget:,}: keys found{diamonds}",
        f"<b>Scores of query {view.query}</b>, {box(theme.GREY)} each, {box(theme.BLUE, '━')} so far{so_far}{mass}",
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
        "yaxis5.range": key_bars.ends(most),
        "xaxis6.range": [-0.5, n - 0.5],
        "yaxis6.range": key_bars.ends(key_bars.highest(n, *view.keys)),
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
