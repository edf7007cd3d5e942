"""The controls of `PivotExplorer` and where they stand. What they do is in `pivot.py`."""

from __future__ import annotations

import ipywidgets as w

from qp_kernels.pivot.api import MODES, PHASES
from qp_kernels.pivot.groups import PROXIES
from widgets.controls import Boxes, GridSlider, button, choice
from widgets.panels.index_controls import IndexControls
from widgets.panels.row_controls import HIDDEN, SHOWN, columns, line
from widgets.pivot_view import NAMES, OF_LAYERS, RIVALS
from widgets.ranked_windows import GROUPS

WINDOWS = [0, *GROUPS, 96, 128, 192, 256, 384, 512, 768, 1024]
PRICES = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]


class PivotControls(IndexControls):
    """Every control under the name that the panel gives it."""

    group_tooltip = "neighbouring queries that search once; the slider stops at the sizes of the line over g"
    query_tooltip = "whose scores and keys are shown; a click in the text chooses it"

    def __init__(self, names: list[str]):
        super().__init__(names, sizes=list(GROUPS))
        self.scan_button.description = "Go on"
        self.scan_button.tooltip = "fill in what was cancelled"
        self.c = GridSlider("c", "c candidates", [1], 1, tooltip="keys of a group that Refine re-scores")
        words = "window: the nearest keys, which are always candidates; at least g"
        self.window = GridSlider("W", "W (0 is g)", WINDOWS, 0, tooltip=words)
        self.r = GridSlider("r", "r price of a key", PRICES, 3.0, tooltip="re-scored over scanned, in the cost model")
        self.mode = choice("mode", [(NAMES[name], name) for name in MODES], "refine", "what is shown key by key")
        self.proxy = choice("proxy", list(PROXIES), "mean", "who searches for a group")
        self.phase = choice("phase", list(PHASES), "prefill", "in decode the window comes besides the c candidates")
        self.guard = choice(
            "guard", [("on", True), ("off", False)], True, "short prefixes are searched by every member"
        )
        self.rivals = Boxes("rivals", RIVALS, NAMES)
        self.pattern = w.Text(
            description="layers",
            continuous_update=False,
            tooltip="IndexCache: F searches, S takes the keys of the last F before it",
            style={"description_width": "initial"},
            layout=w.Layout(width="150px"),
        )
        self.time_button = button("Measure", "time every system on this GPU", "clock-o")
        self.table = w.HTML(layout=w.Layout(margin="4px 0 0 0", overflow="auto"))
        self.costs = w.HTML(layout=w.Layout(margin="0 0 4px 0"))

    @property
    def redrawing(self) -> list[w.Widget]:
        more = [self.c, self.window, self.r, self.mode, self.proxy, self.phase, self.guard, self.rivals]
        return [*super().redrawing, *more]

    def arrange(self, several: bool) -> list[w.Widget]:
        self.layer.layout.display = SHOWN if several else HIDDEN
        self.show_pattern()
        self.rivals.offer([name for name in RIVALS if several or name not in OF_LAYERS])
        # The boxes share a line with the pattern that belongs to the last two.
        self.rivals.layout.width, self.rivals.layout.flex = "auto", "0 1 auto"
        choices = line(self.mode, self.proxy, self.phase, self.guard, self.layer, self.backend, self.scan_button)
        rivals = line(w.Label("beside:"), self.rivals, self.pattern, self.time_button)
        return [columns([self.k, self.g, self.c], [self.query, self.window, self.r]), choices, rivals]

    def show_pattern(self) -> None:
        """The pattern stands beside the rivals that follow it."""
        self.pattern.layout.display = SHOWN if set(self.rivals.value) & set(OF_LAYERS) else HIDDEN

    def below(self, with_text: bool) -> list[w.Widget]:
        return [self.table, self.costs, *super().below(with_text)]
