"""The controls of `NeedleExplorer` and where they stand. What they do is in `needle.py`."""

from __future__ import annotations

import ipywidgets as w

from activations.needle import GROUPS, SYSTEMS
from qp_kernels.pivot.groups import PROXIES
from widgets.controls import GridSlider, button, choice, k_grid, linear_grid
from widgets.needle_view import WORDS
from widgets.panels.row_controls import HIDDEN, columns, line
from widgets.strip import TokenStrip

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
SEEDS = 20  # that the slider visits


class NeedleControls:
    """Every control under the name that the panel gives it.

    Args:
        lengths: Of prompts that the model reads.
    """

    def __init__(self, lengths: list[int]):
        self.c = GridSlider("c", "c candidates", [1], 1, tooltip="keys of a group that its members score again")
        self.k = GridSlider("k", "k keys a query", [1], 1, tooltip="selected keys")
        self.seed = GridSlider(
            "seed", "seed", list(range(SEEDS)), 0, limit=10**6, tooltip="another haystack and needle"
        )
        depth = "how much of the haystack stands before the needle"
        self.depth = GridSlider("depth", "depth [%]", linear_grid(0, 100, 5), 30.0, tooltip=depth)
        self.system = choice("system", [(WORDS[name], name) for name in SYSTEMS], "refine", "who selects keys")
        self.proxy = choice("proxy", list(PROXIES), "first", "who searches for a group")
        self.g = choice("g", list(GROUPS), 8, "queries of a group, which search once")
        self.length = choice("length", [(f"{n:,} tokens", n) for n in lengths], lengths[0], "of the prompt")
        self.backend = choice("back-end", ["auto", "torch", "triton"], "auto", "what computes the scores")
        self.text = w.Text(
            description="needle",
            continuous_update=False,
            placeholder="a sentence of your own, whose last word is asked for; empty: a secret word",
            style={"description_width": "50px"},
            layout=w.Layout(flex="1 1 300px", width="auto"),
        )
        self.run_button = button("Run", "read the prompt again", "play")
        self.curve_button = button("Go on", "compute the rest of the line over c", "play")
        self.curve_button.layout.display = HIDDEN
        self.answers = w.HTML(layout=w.Layout(margin="4px 0", overflow="auto"))
        self.strip = TokenStrip()
        self.legend = w.HTML(layout=w.Layout(margin="0"))

    @property
    def redrawing(self) -> list[w.Widget]:
        """The controls whose change is a new answer to the same prompt."""
        return [self.c, self.k, self.g, self.proxy, self.system, self.backend]

    @property
    def reading(self) -> list[w.Widget]:
        """The controls whose change is a new prompt."""
        return [self.seed, self.depth, self.length, self.text]

    def fit(self, length: int) -> None:
        """Bound c and k by the length of the prompt."""
        self.c.set_grid(k_grid(length, off=False))
        self.k.set_grid(k_grid(length // 2, off=False))

    def arrange(self) -> list[w.Widget]:
        choices = line(self.system, self.g, self.proxy, self.length, self.backend, self.curve_button)
        box = w.HBox([self.text, self.run_button], layout=w.Layout(width="100%"))
        return [box, columns([self.c, self.k], [self.seed, self.depth]), choices, self.answers]

    def below(self) -> list[w.Widget]:
        return [self.legend, self.strip]
