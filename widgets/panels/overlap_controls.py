"""The controls of `OverlapExplorer` and where they stand. What they do is in `overlap.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import GridSlider, button, choice, k_grid
from widgets.index_source import Layer
from widgets.overlap_measures import WINDOW
from widgets.panels.row_controls import HIDDEN, SHOWN, columns, line
from widgets.strip import TokenStrip


def usual_k(n_keys: int) -> int:
    """2,048 keys a query from 32,768 keys on, as DeepSeek-V3.2 takes; of fewer the same share."""
    return max(1, min(2048, n_keys // 16))


class OverlapControls:
    """Every control under the name that the panel gives it."""

    def __init__(self, layers: list[Layer]):
        most = max(len(layer.capture.k) for layer in layers)
        self.k = GridSlider("k", "k keys a query", k_grid(most, off=False), usual_k(most), tooltip="selected keys")
        sizes = list(range(1, WINDOW + 1))
        self.g = GridSlider("g", "g a group", sizes, 4, tooltip="neighbouring queries that would share a scan")
        self.query = GridSlider("query", "query", [0], 0, tooltip="whose keys are shown; a click on the map chooses it")
        self.place = GridSlider("text at", "text at key", [0], 0, tooltip="a click on the lowest figure goes there")
        self.layer = choice("layer", [layer.name for layer in layers], layers[0].name)
        self.backend = choice("back-end", ["auto", "torch", "triton"], "auto", "what computes the scores")
        self.scan_button = button("Read the other layers", "go on with the layers that were not read", "play")
        self.scan_button.layout.display = HIDDEN
        self.strip = TokenStrip()
        self.legend = w.HTML(layout=w.Layout(margin="0"))

    @property
    def redrawing(self) -> list[w.Widget]:
        """The controls whose change is a new picture."""
        return [self.k, self.g, self.query, self.place, self.layer, self.backend]

    def arrange(self, several: bool) -> list[w.Widget]:
        """Boxes above the figure from top to bottom; what a single layer cannot do is hidden."""
        self.layer.layout.display = SHOWN if several else HIDDEN
        choices = line(self.layer, self.backend, self.scan_button)
        return [columns([self.k, self.g], [self.query, choices])]

    def below(self, with_text: bool) -> list[w.Widget]:
        """What stands below the figure: the text, where tokens are known."""
        for control in (self.place, self.legend):
            control.layout.display = SHOWN if with_text else HIDDEN
        return [self.legend, self.strip, self.place]
