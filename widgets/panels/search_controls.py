"""The controls of `SearchExplorer` and where they stand. What they do is in `search.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import GridSlider, button, choice
from widgets.panels.row_controls import RowControls, columns, line


class SearchControls(RowControls):
    """Every control under the name that the panel gives it.

    Args:
        vocab: V, which bounds k. n_layers: Of a live model, else 0.
    """

    def __init__(self, vocab: int, n_layers: int):
        super().__init__(vocab, n_layers)
        self.step = GridSlider("step", "step", [1], 1, tooltip="of the search; the arrow keys go through it")
        searches = [("quaternary: three pivots", "quaternary"), ("binary: one pivot", "binary")]
        self.search = choice("search", searches, "quaternary", "the one whose steps are seen")
        spaces = [("between values, as the paper", "value"), ("between bits, as a kernel", "bits")]
        self.space = choice("pivots", spaces, "value", "what the pivots divide evenly")
        self.back_button = button("Back", "one step back", "step-backward")
        self.next_button = button("Next", "one step on", "step-forward")

    def start(self, *, k, p, search, space, logits_dtype, backend: str, text: str | None) -> None:
        super().start(k=k, p=p, backend=backend, text=text)
        self.search.value, self.space.value, self.logits_dtype.value = search, space, logits_dtype

    @property
    def redrawing(self) -> list[w.Widget]:
        return [*super().redrawing, self.k, self.p, self.step, self.search, self.space]

    def arrange(self, live: bool, has_capture: bool, with_notes: bool) -> list[w.Widget]:
        steps = w.VBox([self.step, line(self.back_button, self.next_button)])
        choices = line(self.search, self.space, self.logits_dtype, self.layer)
        above = super().arrange(live, has_capture, with_notes)
        return [*above, columns([self.position, self.k, self.p], [steps]), choices]
