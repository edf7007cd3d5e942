"""The controls of every panel on rows of logits: which text, layer, dtype, position and back-end."""

from __future__ import annotations

import ipywidgets as w

from activations.texts import openers
from widgets.controls import GridSlider, button, choice, k_grid, p_grid
from widgets.strip import TokenStrip

HIDDEN, SHOWN = "none", ""
WRAP = {"flex_flow": "row wrap", "width": "100%"}


class RowControls:
    """Controls under the names that the panel gives them; subclasses add their own.

    Args:
        vocab: V, which bounds k. n_layers: Of a live model, else 0.
    """

    def __init__(self, vocab: int, n_layers: int):
        self.k = k_slider(vocab)
        self.p = p_slider()
        self.position = GridSlider("position", "position", [0], 0, tooltip="token whose successor is predicted")
        self.logits_dtype = choice("logits", [("float32", "float32"), ("the model's own type", "model")], "float32")
        self.layer = _layer_choice(n_layers)
        self.backend = choice("back-end", ["auto", "torch", "triton"], "auto")
        self.run_button = button("Run", "read the text again", "play")
        self.strip = TokenStrip()
        self.text = sentence_input()

    def start(self, *, k, p, backend: str, text: str | None) -> None:
        """Set the start values; None is off. Subclasses extend it. Raises ValueError for one out of range."""
        self.k.value = as_k(k, self.k.grid[-1])
        self.p.value = 1.0 if p is None else p
        self.backend.value = backend
        self.text.value = openers[0][0] if text is None else text

    @property
    def redrawing(self) -> list[w.Widget]:
        """The controls whose change is a new picture of the same text. Subclasses extend it."""
        return [self.position, self.logits_dtype, self.backend]

    def arrange(self, live: bool, has_capture: bool, with_notes: bool) -> list[w.Widget]:
        """Boxes from top to bottom; what plain tensors or recorded rows can't do is hidden. Subclasses extend it.

        Args:
            with_notes: Whether the notes on the openers hold, which were made with the default model.
        """
        self.layer.layout.display = SHOWN if live else HIDDEN
        self.logits_dtype.layout.display = SHOWN if has_capture else HIDDEN
        parts = [self.text, self.run_button, self._openers(with_notes)] if live else []
        return [w.HBox(parts, layout=w.Layout(width="100%")), self.strip]

    def _openers(self, with_notes: bool) -> w.Dropdown:
        """A list of sentences to start from; choosing one types it."""
        named = [(f"{opener}  ({note})" if with_notes else opener, opener) for opener, note in openers]
        return text_list("openers …", named, self.text)


def sentence_input() -> w.Text:
    """Where a sentence for a live model is typed; it is read at Enter."""
    return w.Text(
        description="text",
        continuous_update=False,
        placeholder="type a sentence and press Enter",
        style={"description_width": "40px"},
        layout=w.Layout(flex="1 1 auto", width="auto"),
    )


def text_list(label: str, named: list[tuple[str, str]], text: w.Text | w.Textarea) -> w.Dropdown:
    """A list of (name, text); choosing one types it into a box."""
    layout = w.Layout(width="130px", flex="0 0 auto")
    chooser = w.Dropdown(options=[(label, ""), *named], tooltip="to start from", layout=layout)

    def type_it(change):
        if change["new"]:
            text.value, chooser.value = change["new"], ""

    chooser.observe(type_it, "value")
    return chooser


def columns(*parts: list[w.Widget]) -> w.GridBox:
    """Columns of controls, one below the other where the panel is narrow."""
    layout = w.Layout(grid_template_columns="repeat(auto-fit, minmax(min(100%, 400px), 1fr))", grid_gap="0 18px")
    return w.GridBox([w.VBox(part) for part in parts], layout=layout)


def line(*controls: w.Widget) -> w.HBox:
    """Controls side by side, wrapped where the panel is narrow."""
    return w.HBox(controls, layout=w.Layout(**WRAP))


def k_slider(vocab: int) -> GridSlider:
    return GridSlider("k", "k tokens kept", k_grid(vocab), 0, off=0, tooltip="top-k")


def p_slider() -> GridSlider:
    return GridSlider("p", "p mass kept", p_grid(), 1.0, off=1, tooltip="the nucleus")


def as_k(k, vocab: int):
    """A start value of k for its slider: None is off, and k >= V is off and keeps all."""
    return min(k, vocab) if isinstance(k, int) else 0 if k is None else k


def _layer_choice(n_layers: int) -> w.Dropdown:
    final = f"{n_layers} of {n_layers} (final)"
    names = [(final, n_layers)] + [(f"{i} of {n_layers}", i) for i in range(n_layers - 1, 0, -1)]
    return choice("layer", names, n_layers, "an earlier layer, read through the final norm and head")
