"""The controls of `LogitExplorer` and where they stand. What they do is in `logits.py`."""

from __future__ import annotations

import ipywidgets as w

from activations.texts import openers
from widgets.controls import GridSlider, button, choice, k_grid, linear_grid, p_grid, switch
from widgets.strip import TokenStrip

HIDDEN, SHOWN = "none", ""


class LogitControls:
    """Every control under the name that the panel gives it.

    Args:
        vocab: V, which bounds k. n_layers: Of a live model, else 0.
    """

    def __init__(self, vocab: int, n_layers: int):
        self.k = GridSlider("k", "k tokens kept", k_grid(vocab), 0, off=0, tooltip="top-k")
        self.p = GridSlider("p", "p mass kept", p_grid(), 1.0, off=1, tooltip="the nucleus")
        heats = linear_grid(0, 3, 0.05)
        self.temperature = GridSlider("T", "T temperature", heats, 1.0, limit=100, tooltip="0 is greedy")
        self.position = GridSlider("position", "position", [0], 0, tooltip="token whose successor is predicted")
        self.margin = GridSlider("margin", "margin of t", linear_grid(0, 1, 0.05), 0.2, tooltip="of the truncation")
        self.min_p = GridSlider("min-p", "min-p", linear_grid(0, 1, 0.01), 0.0, off=0, tooltip="p ≥ min-p · largest p")
        self.n_sigma = GridSlider(
            "top-nσ", "top-nσ  n", linear_grid(0, 8, 0.1), 0.0, off=0, tooltip="logit ≥ max − n·σ"
        )
        self.order = choice(
            "k and p", [("k, then p of those", "k_then_p"), ("joint: the shorter", "joint")], "k_then_p"
        )
        self.logits_dtype = choice("logits", [("float32", "float32"), ("the model's own type", "model")], "float32")
        self.layer = _layer_choice(n_layers)
        self.scale = choice("axis", [("linear", "linear"), ("logarithmic", "log")], "linear", "of the probabilities")
        self.backend = choice("back-end", ["auto", "torch", "triton"], "auto")
        self.skip_unused = switch(
            "leave <unused…> tokens out of μ, σ and QQ", tooltip="t is set by all tokens, as ever"
        )
        self.sample_button = button("Sample", "draw one token from the kept set", "random")
        self.append_button = button("Append", "add the drawn token (or a fresh draw) to the text", "plus")
        self.run_button = button("Run", "read the text again", "play")
        self.strip = TokenStrip()
        self.text = w.Text(
            description="text",
            continuous_update=False,
            placeholder="type a sentence and press Enter",
            style={"description_width": "40px"},
            layout=w.Layout(flex="1 1 auto", width="auto"),
        )

    def start(self, *, k, p, temperature, backend: str, text: str | None) -> None:
        """Set the start values, as `LogitExplorer` takes them; None is off. Raises ValueError for one out of range."""
        vocab = self.k.grid[-1]
        self.k.value = min(k, vocab) if isinstance(k, int) else 0 if k is None else k  # k >= V is off, and keeps all
        self.p.value = 1.0 if p is None else p
        self.temperature.value = temperature
        self.backend.value = backend
        self.text.value = openers[0][0] if text is None else text

    @property
    def redrawing(self) -> list[w.Widget]:
        """The controls whose change is a new picture of the same text."""
        sliders = [self.k, self.p, self.temperature, self.position, self.min_p, self.n_sigma, self.margin]
        return [*sliders, self.order, self.logits_dtype, self.scale, self.backend, self.skip_unused]

    def arrange(self, live: bool, has_capture: bool, with_notes: bool) -> list[w.Widget]:
        """Boxes from top to bottom; what plain tensors or recorded rows can't do is hidden.

        Args:
            with_notes: Whether the notes on the openers hold, which were made with the default model.
        """
        for control in (self.append_button, self.layer):
            control.layout.display = SHOWN if live else HIDDEN
        for control in (self.logits_dtype, self.skip_unused):
            control.layout.display = SHOWN if has_capture else HIDDEN
        line = w.HBox(
            [self.text, self.run_button, self._openers(with_notes)] if live else [], layout=w.Layout(width="100%")
        )
        columns = w.Layout(grid_template_columns="repeat(auto-fit, minmax(min(100%, 400px), 1fr))", grid_gap="0 18px")
        main = w.VBox([self.position, self.k, self.p, self.temperature])
        rules = w.VBox([self.margin, self.min_p, self.n_sigma])
        wrap = w.Layout(flex_flow="row wrap", width="100%")
        choices = w.HBox([self.order, self.logits_dtype, self.layer, self.scale, self.backend], layout=wrap)
        buttons = w.HBox([self.sample_button, self.append_button, self.skip_unused], layout=wrap)
        return [line, self.strip, w.GridBox([main, rules], layout=columns), choices, buttons]

    def _openers(self, with_notes: bool) -> w.Dropdown:
        """A list of sentences to start from; choosing one types it."""
        named = [(f"{opener}  ({note})" if with_notes else opener, opener) for opener, note in openers]
        chooser = w.Dropdown(
            options=[("openers …", ""), *named], tooltip="to start from", layout=w.Layout(width="130px")
        )

        def type_it(change):
            if change["new"]:
                self.text.value, chooser.value = change["new"], ""

        chooser.observe(type_it, "value")
        return chooser


def _layer_choice(n_layers: int) -> w.Dropdown:
    final = f"{n_layers} of {n_layers} (final)"
    names = [(final, n_layers)] + [(f"{i} of {n_layers}", i) for i in range(n_layers - 1, 0, -1)]
    return choice("layer", names, n_layers, "an earlier layer, read through the final norm and head")
