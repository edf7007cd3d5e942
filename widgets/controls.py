"""Sliders whose `.value` is the quantity itself: a grid to slide on, and a box for the exact number.

A slider over k in 1 … 262,144 or over p near 1 is useless on a linear scale, and a logarithmic one cannot hold an exact
number. `GridSlider` slides over a list of values (an arrow key is one step) and has a box beside it for any other.
"""

from __future__ import annotations

import math

import ipywidgets as w
import numpy as np
import traitlets

LABEL_WIDTH = "110px"


def k_grid(vocab: int, off: bool = True) -> list[int]:
    """0 (off), then about 24 whole numbers per decade from 1 to `vocab`."""
    steps = max(2, round(24 * math.log10(max(vocab, 2))) + 1)
    grid = sorted({int(round(x)) for x in np.geomspace(1, max(vocab, 2), steps)} & set(range(1, vocab + 1)) | {vocab})
    return ([0] if off else []) + grid


def p_grid(decades: int = 5, per_decade: int = 20) -> list[float]:
    """p on −log₁₀(1 − p): 0, …, .9, …, .99, …, 1 − 10^−decades, then 1 (off)."""
    steps = np.arange(decades * per_decade + 1) / per_decade
    return [float(f"{1 - 10.0**-s:.9g}") for s in steps] + [1.0]


def linear_grid(low: float, high: float, step: float) -> list[float]:
    return [round(low + i * step, 10) for i in range(round((high - low) / step) + 1)]


def close_widget(widget: w.Widget) -> None:
    """Close a widget with its layout and style, which ipywidgets keeps alive."""
    for part in (getattr(widget, "layout", None), getattr(widget, "style", None), widget):
        if isinstance(part, w.Widget):
            w.Widget.close(part)


class _Quantity(traitlets.TraitType):
    """A value that the control itself checks; None is none."""

    default_value = 0

    def validate(self, obj, value):
        return obj.check(value)


class GridSlider(w.HBox):
    """A labelled slider over `grid` with a box for the exact value; `.value` is the quantity.

    Args:
        symbol: What formulas call it; also the prefix of error messages ("k").
        label: Text beside the slider: symbol and meaning.
        grid: Increasing values the slider visits.
        value: Start value, any number from the first of the grid to `limit`.
        limit: Largest value that may be set; default the last of the grid.
        off: Value that means "off", said in the tooltip.
    Raises:
        ValueError: at construction and on assignment, when a value is out of range or not a number.
    """

    value = _Quantity(allow_none=False)
    error = traitlets.Unicode("")  # the last refused entry, in words; "" when the last entry was taken

    def __init__(self, symbol: str, label: str, grid: list, value, *, limit=None, off=None, tooltip: str = ""):
        self.symbol, self.grid, self._limit = symbol, list(grid), limit
        self._whole = all(isinstance(x, int) for x in grid)
        hint = tooltip + (f" ({off:g} = off)" if off is not None else "")
        self._label, self._tooltip = label, f"{label}: {hint}" if hint else label
        self._slider = self._make_slider(0)
        box = w.IntText if self._whole else w.FloatText
        layout = w.Layout(width="96px", flex="0 0 auto")
        self._box = box(continuous_update=False, tooltip=f"exact {symbol}", layout=layout)
        super().__init__([self._slider, self._box], layout=w.Layout(align_items="center"))
        self.value = value
        self._slider.value = self._nearest(self.value)  # also for 0, which is no change of the trait
        self._box.observe(self._from_box, "value")

    def _make_slider(self, index: int) -> w.IntSlider:
        slider = w.IntSlider(
            index,
            description=self._label,
            style={"description_width": LABEL_WIDTH},
            min=0,
            max=len(self.grid) - 1,
            readout=False,
            tooltip=self._tooltip,
            layout=w.Layout(flex="1 1 0", min_width="190px", width="auto"),
        )
        slider.observe(self._from_slider, "value")
        return slider

    @property
    def limit(self):
        return self.grid[-1] if self._limit is None else self._limit

    def check(self, value):
        """The value as int or float; ValueError when it is not one of this control."""
        kind = "a whole number" if self._whole else "a number"
        text = f"{self.symbol} must be {kind} from {self.grid[0]:g} to {self.limit:,}, got {value!r}"
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ValueError(text)
        if not self.grid[0] <= value <= self.limit or (self._whole and int(value) != value):
            raise ValueError(text)
        return int(value) if self._whole else float(value)

    def set_grid(self, grid: list) -> None:
        """Change the bounds (another vocabulary, another context); the value is clipped into them."""
        if list(grid) == self.grid:
            return
        self.grid, old = list(grid), self._slider
        clipped = min(max(self.value, self.grid[0]), self.limit)
        # A new slider: the browser's keeps the End key of the bounds that it was made with.
        self._slider = self._make_slider(self._nearest(clipped))
        self.children = [self._slider, self._box]
        close_widget(old)
        self.value = clipped

    def _nearest(self, value) -> int:
        return int(np.abs(np.asarray(self.grid, dtype=np.float64) - value).argmin())

    @traitlets.observe("value")
    def _show(self, change):
        self.error = ""
        self._box.value = change["new"]
        self._slider.value = self._nearest(change["new"])

    def _from_slider(self, change):
        # What `_show` wrote here is already the place of the value; only a hand moves it elsewhere.
        if change["new"] != self._nearest(self.value):
            self.value = self.grid[change["new"]]

    def _from_box(self, change):
        if change["new"] == self.value:
            return
        try:
            self.value = self.check(change["new"])
        except ValueError as refused:
            self._box.value = self.value
            self.error = ""  # so that the same mistake twice is told twice
            self.error = str(refused)


class Boxes(w.HBox):
    """A box to tick for each of some names; `.value` is the tuple of those that are ticked, in order.

    Args:
        what: What they are called in an error. every: The names. words: Name -> what its box says, where not itself.
    """

    value = traitlets.Tuple()

    def __init__(self, what: str, every: tuple[str, ...], words: dict[str, str]):
        self.what, self.every, self._showing = what, every, False
        self._boxes = {
            name: w.Checkbox(
                description=words.get(name, name), indent=False, layout=w.Layout(width="auto", margin="2px 8px 2px 2px")
            )
            for name in every
        }
        super().__init__(list(self._boxes.values()), layout=w.Layout(flex_flow="row wrap", width="100%"))
        for box in self._boxes.values():
            box.observe(self._from_boxes, "value")

    @traitlets.validate("value")
    def _check(self, proposal):
        names = tuple(proposal["value"])
        if unknown := [name for name in names if name not in self.every]:
            raise ValueError(f"{self.what} must be of {', '.join(map(repr, self.every))}, got {unknown[0]!r}")
        return tuple(name for name in self.every if name in names)

    @traitlets.observe("value")
    def _show(self, change):
        self._showing = True  # the boxes change one after another
        for name, box in self._boxes.items():
            box.value = name in change["new"]
        self._showing = False

    def _from_boxes(self, _):
        if not self._showing:
            self.value = tuple(name for name, box in self._boxes.items() if box.value)

    def offer(self, names: list[str]) -> None:
        """Show the boxes of these names alone."""
        for name, box in self._boxes.items():
            box.layout.display = "" if name in names else "none"


class Choice(w.Dropdown):
    """A drop-down list that says what it accepts; a text may also be given as what it is written from (layer 11)."""

    value = _Quantity()

    def check(self, given):
        """The option that is meant; ValueError when there is none."""
        for value in self._options_values:
            if self.equals(value, given):
                return value
        known = ", ".join(map(repr, self._options_values))
        raise ValueError(f"{self.description} must be one of {known}, got {given!r}")

    def offer(self, options: list[tuple[str, object]]) -> None:
        """Change what can be chosen; a value that has gone is replaced by the nearest number, else by the first."""
        if tuple(options) == tuple(self.options):
            return
        values, kept = [value for _, value in options], self.value
        if kept not in values:
            numbers = [value for value in values if isinstance(value, int) and isinstance(kept, int)]
            kept = min(numbers, key=lambda value: abs(value - kept), default=values[0])
        self.options = options
        self.value = kept


def _is_meant(value, given) -> bool:
    """Whether an option is what was given; True is not 1."""
    if isinstance(value, str):
        return value == str(given)
    return isinstance(value, bool) == isinstance(given, bool) and bool(value == given)


def choice(label: str, options: list, value, tooltip: str = "") -> Choice:
    """A drop-down list. `options` are values or (text, value) pairs."""
    return Choice(
        equals=_is_meant,
        description=label,
        options=options,
        value=value,
        tooltip=tooltip or label,
        style={"description_width": "initial"},
        layout=w.Layout(width="auto", margin="2px 12px 2px 2px"),
    )


def switch(label: str, value: bool = False, tooltip: str = "") -> w.Checkbox:
    return w.Checkbox(
        description=label, value=value, indent=False, tooltip=tooltip or label, layout=w.Layout(width="auto")
    )


def button(label: str, tooltip: str, icon: str = "") -> w.Button:
    return w.Button(description=label, tooltip=tooltip, icon=icon, layout=w.Layout(width="auto"))
