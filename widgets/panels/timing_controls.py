"""The controls of `TimingExplorer` and where they stand. What they do is in `timing.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import Boxes, Choice, GridSlider, button, choice
from widgets.panels.row_controls import columns, k_slider, line, p_slider
from widgets.timing_records import FIELDS, Spot
from widgets.timing_view import NAMES

CLOCKS = {"GPU time": "gpu", "wall clock": "wall"}
ROWS = {"gauss": "normal, σ 2.5", "live": "of a model", "miss": "uniform: t misses", "lie": "sample unlike the rest"}
OPERATIONS = {"mask": "mask", "select": "select", "sample": "sample"}
SWEEPS = {"one case": "off", "a line over B": "batch", "… over V": "vocab", "… over k": "k", "… over p": "p"}


class TimingControls:
    """Every control under the name that the panel gives it.

    Args:
        every: Ways. origins: (text, value) of where numbers can come from.
    """

    def __init__(self, every: tuple[str, ...], origins: list[tuple[str, str]]):
        self.batch = GridSlider("B", "B rows", [1], 1, tooltip="sequences that are cut at once")
        self.vocab = GridSlider("V", "V entries", [1], 1, tooltip="logits of a row")
        self.k, self.p = k_slider(262_144), p_slider()
        self.rows = choice("rows", [(text, value) for value, text in ROWS.items()], "gauss", "what the logits are like")
        self.dtype = choice("dtype", ["float32", "bfloat16", "float16"], "float32")
        self.operation = choice(
            "operation",
            [(text, value) for value, text in OPERATIONS.items()],
            "mask",
            "mask the rest, list what is kept, or draw one",
        )
        self.clock = choice("clock", list(CLOCKS.items()), "gpu", "what is timed")
        self.sweep = choice("picture", list(SWEEPS.items()), "off", "one case, or a line over a quantity")
        self.source = choice("numbers", origins, origins[0][1], "where they come from")
        self.repetitions = choice("repetitions", [5, 10, 30, 100], 30, "calls that are timed")
        self.providers = Boxes("providers", every, NAMES)
        self.run_button = button("Run", "measure what is chosen, again if need be", "play")

    @property
    def of_spot(self) -> dict[str, w.Widget]:
        """The controls that name a spot, by its fields."""
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def redrawing(self) -> list[w.Widget]:
        return [*self.of_spot.values(), self.sweep, self.source, self.providers]

    def arrange(self) -> list[w.Widget]:
        return [
            columns([self.batch, self.vocab], [self.k, self.p]),
            line(self.sweep, self.rows, self.dtype, self.operation, self.clock),
            line(self.source, self.repetitions, self.run_button),
            self.providers,
        ]

    def offer(self, choices: dict[str, list]) -> None:
        """Give each control of a spot the values that can be chosen; one that has gone is replaced by the nearest."""
        for name, control in self.of_spot.items():
            values = choices[name]
            if isinstance(control, GridSlider):
                control.set_grid(values)
            else:
                control.offer(_named(control, values))

    def allow_measuring(self, allowed: bool) -> None:
        """Show or hide what only a measurement needs."""
        for control in (self.repetitions, self.run_button):
            control.layout.display = "" if allowed else "none"

    def show(self, spot: Spot, but: Spot | None = None) -> None:
        """Set the controls to a spot, `but` those that agree with another one: somebody may move them meanwhile."""
        for name, control in self.of_spot.items():
            if but is None or getattr(spot, name) != getattr(but, name):
                control.value = to_control(name, getattr(spot, name))

    @property
    def wanted(self) -> Spot:
        return Spot(**{name: from_control(name, control.value) for name, control in self.of_spot.items()})


def to_control(name: str, value):
    """A field of a spot as its control holds it: 0 and 1 are off."""
    return {"k": 0, "p": 1.0}.get(name) if value is None else value


def from_control(name: str, value):
    return None if (name, value) in (("k", 0), ("p", 1.0)) else value


def _named(control: Choice, values: list) -> list[tuple[str, object]]:
    texts = {"rows": ROWS, "operation": OPERATIONS, "clock": {value: text for text, value in CLOCKS.items()}}
    names = texts.get(control.description, {})
    return [(names.get(value, value), value) for value in values]
