"""The controls of `LogitExplorer` and where they stand. What they do is in `logits.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import GridSlider, button, choice, linear_grid, switch
from widgets.panels.row_controls import HIDDEN, SHOWN, RowControls, columns, line


class LogitControls(RowControls):
    """Every control under the name that the panel gives it.

    Args:
        vocab: V, which bounds k. n_layers: Of a live model, else 0.
    """

    def __init__(self, vocab: int, n_layers: int):
        super().__init__(vocab, n_layers)
        heats = linear_grid(0, 3, 0.05)
        self.temperature = GridSlider("T", "T temperature", heats, 1.0, limit=100, tooltip="0 is greedy")
        self.margin = GridSlider("margin", "margin of t", linear_grid(0, 1, 0.05), 0.2, tooltip="of the truncation")
        self.min_p = GridSlider("min-p", "min-p", linear_grid(0, 1, 0.01), 0.0, off=0, tooltip="p ≥ min-p · largest p")
        self.n_sigma = GridSlider(
            "top-nσ", "top-nσ  n", linear_grid(0, 8, 0.1), 0.0, off=0, tooltip="logit ≥ max − n·σ"
        )
        self.order = choice(
            "k and p", [("k, then p of those", "k_then_p"), ("joint: the shorter", "joint")], "k_then_p"
        )
        self.scale = choice("axis", [("linear", "linear"), ("logarithmic", "log")], "linear", "of the probabilities")
        self.skip_unused = switch(
            "leave <unused…> tokens out of μ, σ and QQ", tooltip="t is set by all tokens, as ever"
        )
        self.sample_button = button("Sample", "draw one token from the kept set", "random")
        self.append_button = button("Append", "add the drawn token (or a fresh draw) to the text", "plus")

    def start(self, *, k, p, temperature, backend: str, text: str | None) -> None:
        """Set the start values, as `LogitExplorer` takes them; None is off. Raises ValueError for one out of range."""
        super().start(k=k, p=p, backend=backend, text=text)
        self.temperature.value = temperature

    @property
    def redrawing(self) -> list[w.Widget]:
        sliders = [self.k, self.p, self.temperature, self.min_p, self.n_sigma, self.margin]
        return [*super().redrawing, *sliders, self.order, self.scale, self.skip_unused]

    def arrange(self, live: bool, has_capture: bool, with_notes: bool) -> list[w.Widget]:
        self.append_button.layout.display = SHOWN if live else HIDDEN
        self.skip_unused.layout.display = SHOWN if has_capture else HIDDEN
        main = [self.position, self.k, self.p, self.temperature]
        rules = [self.margin, self.min_p, self.n_sigma]
        choices = line(self.order, self.logits_dtype, self.layer, self.scale, self.backend)
        buttons = line(self.sample_button, self.append_button, self.skip_unused)
        return [*super().arrange(live, has_capture, with_notes), columns(main, rules), choices, buttons]
