"""The controls of `TruncationExplorer` and where they stand. What they do is in `truncation.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import GridSlider, button, choice, linear_grid
from widgets.panels.row_controls import HIDDEN, RowControls, columns, line

SHIFTS = linear_grid(-400, 400, 10)


class TruncationControls(RowControls):
    """Every control under the name that the panel gives it.

    Args:
        vocab: V, which bounds k. n_layers: Of a live model, else 0.
    """

    def __init__(self, vocab: int, n_layers: int):
        super().__init__(vocab, n_layers)
        heats = linear_grid(0.05, 3, 0.05)
        self.temperature = GridSlider("T", "T temperature", heats, 1.0, limit=100, tooltip="before the threshold")
        self.margin = GridSlider("margin", "margin of t", linear_grid(0, 1, 0.05), 0.2, tooltip="how far t is lowered")
        self.shift = GridSlider(
            "shift", "shift of logits", SHIFTS, 0.0, off=0, tooltip="added to every logit: softmax does not see it"
        )
        rules = [("σ: a share of δσ", "sigma"), ("the paper's: a share of |t|", "paper")]
        self.rule = choice("margin rule", rules, "sigma", "what the margin is a share of")
        self.over = choice("map over", [("k", "k"), ("p", "p")], "k", "which of k and p sets the threshold")
        self.scan_button = button("Read the rest", "go on with the positions that were not read", "play")
        self.scan_button.layout.display = HIDDEN

    def start(self, *, k, p, temperature, margin, rule, over, backend: str, text: str | None) -> None:
        super().start(k=k, p=p, backend=backend, text=text)
        self.temperature.value, self.margin.value = temperature, margin
        self.rule.value, self.over.value = rule, over

    @property
    def redrawing(self) -> list[w.Widget]:
        sliders = [self.k, self.p, self.temperature, self.margin, self.shift]
        return [*super().redrawing, *sliders, self.rule, self.over]

    def arrange(self, live: bool, has_capture: bool, with_notes: bool) -> list[w.Widget]:
        main = [self.position, self.k, self.p]
        rules = [self.margin, self.temperature, self.shift]
        choices = line(self.over, self.rule, self.logits_dtype, self.layer, self.backend, self.scan_button)
        return [*super().arrange(live, has_capture, with_notes), columns(main, rules), choices]
