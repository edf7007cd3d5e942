"""What the figure of `QualityExplorer` draws of each point: colour and symbol, interval, hover; ranges of its axes."""

from __future__ import annotations

from activations.quality_records import Estimate, base_of
from widgets import theme
from widgets.quality_paper import SCALES
from widgets.quality_view import Point, QualityView
from widgets.quality_words import NAMES, interval, level, name_of, split, told

STYLES = {
    "full": (theme.GREEN, "circle"),
    "dense": (theme.GREY, "diamond"),
    "reuse": (theme.ORANGE, "square"),
    "refine": (theme.BLUE, "circle"),
    "rivals": (theme.PURPLE, "triangle-up"),
}


def turned(along: list[float], values: list[float], upright: bool) -> dict:
    return {"x": values, "y": along} if upright else {"x": along, "y": values}


def error_bars(points: list[Point], view, axis: str = "") -> dict:
    """Error bars along one axis, none along the other."""
    out = {}
    for other in "xy":
        shown = other == axis and bool(points)
        ends = [_ends(p.level, view) for p in points] if shown else []
        out |= {f"error_{other}.visible": shown, f"error_{other}.array": [up for _, up in ends]}
        out |= {f"error_{other}.arrayminus": [down for down, _ in ends]}
    return out


def _ends(estimate: Estimate, view: QualityView) -> tuple[float, float]:
    scale = scale_of(view)
    return scale * (estimate.value - estimate.low), scale * (estimate.high - estimate.value)


def hovers(view: QualityView, points: list[Point]) -> dict:
    """Hover texts, and the symbols: open where no difference from dense selection is shown."""
    symbols = [STYLES[p.series][1] + ("-open" if _is_open(p, view.setting.measure) else "") for p in points]
    return {"customdata": [hover(view, p) for p in points], **({"marker.symbol": symbols} if symbols else {})}


def _is_open(point: Point, measure: str) -> bool:
    if point.series in ("full", "dense"):
        return False
    # Where kinds contradict each other a difference is shown, whatever their mean says.
    shown = point.against is not None and point.against.verdict in ("more", "less")
    return not shown and not split(point.parts, measure)


def hover(view: QualityView, point: Point) -> str:
    measure, given = view.setting.measure, point.against
    lines = [f"<b>{name_of(point, view.setting.question)}</b> {level(point.level, measure)}"]
    lines.append(f"95 % interval {interval(point.level, measure)}, {point.level.samples:,} samples")
    if given is not None:
        base = NAMES[base_of(point.system)]
        unit = "points" if measure == "task" else "nats"
        lines.append(f"from {base} {interval(given, measure)} {unit}: {told(given, point.parts, measure)}")
    if view.setting.question == "length" and point.x is not None:
        lines.append(f"{point.x:,.0f} tokens: {', '.join(dict.fromkeys(one.name for one in view.asked[point.x]))}")
    return "<br>".join([*lines, point.label])


def scale_of(view: QualityView) -> float:
    return 100.0 if view.setting.measure == "task" else 1.0


def scaled(point: Point, view: QualityView) -> float:
    return scale_of(view) * point.level.value


def value_of(point: Point, view: QualityView) -> str:
    return f"{scaled(point, view):.1f}" if view.setting.measure == "task" else f"{point.level.value:+.4f}"


def range_of(view: QualityView) -> list[float]:
    """The range of the measure: whole tens of a percent, or a little more than the intervals."""
    scale = scale_of(view)
    low = scale * min(p.level.low for p in view.points)
    high = scale * max(p.level.high for p in view.points)
    if view.setting.measure == "task":
        return [min(90.0, 10 * (low // 10)) - 1, 101.5]
    room = 0.12 * (max(high, 0) - min(low, 0)) or 0.01
    return [min(low, 0) - room, max(high, 0) + room]


def range_of_paper(values: list[float]) -> list[float]:
    """A range around the paper's numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(0.22 * (high - low), 1.0)
    return [low - room, high + room]


def unit_of(view: QualityView) -> str:
    return "answered right [%]" if view.setting.measure == "task" else "lost to full attention [nats a token]"


def scale_name(view: QualityView) -> str:
    return f"{SCALES.get(view.setting.question, '')} [%]"
