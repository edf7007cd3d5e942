"""The controls that every panel on an indexer has, and where they stand. What they do is in `index_panel.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import GridSlider, button, choice
from widgets.index_live import example_texts
from widgets.panels.row_controls import HIDDEN, SHOWN, columns, line, text_list
from widgets.ranked_windows import WINDOW
from widgets.strip import TokenStrip


def usual_k(n_keys: int) -> int:
    """2,048 keys a query from 32,768 keys on, as DeepSeek-V3.2 takes; of fewer the same share."""
    return max(1, min(2048, n_keys // 16))


class IndexControls:
    """Every control under the name that the panel gives it; subclasses add their own.

    Args:
        names: Of the layers. sizes: Group sizes that the slider of g stops at, from 1 to `WINDOW`.
    """

    def __init__(self, names: list[str], sizes: list[int] | None = None):
        self.k = GridSlider("k", "k keys a query", [1], 1, tooltip="selected keys")
        self.g = GridSlider("g", "g a group", sizes or list(range(1, WINDOW + 1)), 4, tooltip=self.group_tooltip)
        self.query = GridSlider("query", "query", [0], 0, tooltip=self.query_tooltip)
        self.place = GridSlider("text at", "text at key", [0], 0, tooltip="a click on the lowest figure goes there")
        self.layer = choice("layer", names, names[0])
        self.backend = choice("back-end", ["auto", "torch", "triton"], "auto", "what computes the scores")
        self.scan_button = button("Read the other layers", "go on with the layers that were not read", "play")
        self.scan_button.layout.display = HIDDEN
        self.text = self.text_input()
        self.run_button = button("Run", "read the text", "play")
        self.texts = text_list("texts …", self.examples(), self.text)
        self.strip = TokenStrip()
        self.legend = w.HTML(layout=w.Layout(margin="0"))

    @staticmethod
    def text_input() -> w.Textarea | w.Text:
        """Where a text for a live model is typed."""
        return w.Textarea(
            description="text",
            continuous_update=False,
            placeholder="type or paste a text, then Run",
            style={"description_width": "40px"},
            layout=w.Layout(flex="1 1 auto", width="auto", height="64px"),
        )

    @staticmethod
    def examples() -> list[tuple[str, str]]:
        """(name, text) to start from, the first of which opens."""
        return example_texts()

    group_tooltip = "neighbouring queries that would share a scan"
    query_tooltip = "whose keys are shown; a click on the map chooses it"

    @property
    def redrawing(self) -> list[w.Widget]:
        """The controls whose change is a new picture. Subclasses extend it."""
        return [self.k, self.g, self.query, self.place, self.layer, self.backend]

    def text_box(self) -> w.HBox:
        """Where a live model gets its text."""
        return w.HBox([self.text, w.VBox([self.run_button, self.texts])], layout=w.Layout(width="100%"))

    def arrange(self, several: bool) -> list[w.Widget]:
        """Boxes above the figure from top to bottom; what a single layer cannot do is hidden."""
        self.layer.layout.display = SHOWN if several else HIDDEN
        choices = line(self.layer, self.backend, self.scan_button)
        return [columns([self.k, self.g], [self.query, choices])]

    def below(self, with_text: bool) -> list[w.Widget]:
        """What stands below the figure: the text, where tokens are known. Subclasses may put more before it."""
        for control in (self.place, self.legend):
            control.layout.display = SHOWN if with_text else HIDDEN
        return [self.legend, self.strip, self.place]
