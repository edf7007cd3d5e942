"""A live model as the source of a panel on an indexer: which of its layers, and what they make of a text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from activations import IndexCapture, LanguageModel, capture_index, index_layers, texts
from widgets.index_source import UNPACK, Layer
from widgets.ranked_windows import WINDOW

MOST_LAYERS = 8  # that are read: more could not be told apart side by side
MOST_KEYS = 1 << 17  # where a model names no longest text
MOST_QUERIES = 2048  # of a longer text the last ones
MASS_BYTES = 512 << 20  # of the attention's mass of all layers; fewer queries have it where that does not do
SHOWN_CODE = 400  # characters of a text that code spells out
# Texts to start from: a name, the built-in text, and about how many characters of it. The first one opens.
EXAMPLES = (
    ("reference of Python, 4,000 characters", "pydoc", 4_000),
    ("reference of Python, 35,000 characters", "pydoc", 35_000),
    ("The Zen of Python", "zen", 1_000),
    ("source of functools, 12,000 characters", "functools", 12_000),
    ("source of decimal, 12,000 characters", "decimal", 12_000),
)


def example_texts() -> list[tuple[str, str]]:
    """(name, text) of the examples that this Python has; longer texts are cut between paragraphs."""
    found = []
    for label, name, characters in EXAMPLES:
        try:
            text = texts.builtin_text(name, characters + 1)
        except OSError:  # it came without the sources of its modules
            continue
        found.append((label, text if len(text) <= characters else text[: text.rfind("\n\n")]))
    return found


class LiveIndex:
    """The layers of a model that a panel shows.

    A model with lightning indexers is seen through those, any other through its attention. Of more than `MOST_LAYERS`
    layers those are taken that lie evenly in its depth, and the one that is asked for.

    Args:
        layer: Number, or name, of the layer that must be among them; None is any.
    Raises:
        ValueError: the model has no layer whose queries and keys can be seen, or not that one.
    """

    def __init__(self, model: LanguageModel, layer=None):
        self.model, (self.source, there) = model, _eligible(model)
        wanted = next((number for number in there if str(number) == str(layer)), None)
        if layer is not None and wanted is None:
            raise ValueError(f"layer must be one of {', '.join(map(str, there))} of {model.name}, got {layer!r}")
        steps = min(len(there), MOST_LAYERS)
        spread = {there[round(i * (len(there) - 1) / max(steps - 1, 1))] for i in range(steps)}
        self.layers = sorted(spread | ({wanted} - {None}))

    def unread(self) -> list[Layer]:
        """The layers before a text was read, with one query and as many keys as a text can have: for bounds alone."""
        keys, on = self.model.context or MOST_KEYS, {"device": self.model.device}
        one = torch.zeros(1, dtype=torch.int64)
        index = {"q": torch.zeros(1, 1, 1, **on), "k": torch.zeros(keys, 1, **on), "w": torch.zeros(1, 1, **on)}
        places = {"lo": one, "hi": one, "positions": one, "ids": torch.zeros(keys, dtype=torch.int64)}
        capture = IndexCapture(**index, **places, tokens=[""] * keys)
        return [Layer(str(number), capture, True, "", ()) for number in self.layers]

    def read(self, text: str, with_mass: bool, progress: Callable[[int, int, str], None]) -> list[Layer]:
        """Run the model on a text; the layers of its last tokens as queries, with the attention's mass if wanted.

        Raises:
            ValueError: an empty text, one beyond the model's context or the window of a layer.
        """
        if not text.strip():
            raise ValueError("the text is empty: type or paste one, then Run")
        ids = self.model.encode(text)
        queries = min(len(ids), MOST_QUERIES)
        if with_mass:
            room = MASS_BYTES // (4 * len(ids) * len(self.layers))
            queries = min(queries, max(WINDOW, room // WINDOW * WINDOW))
        options = {"layer": self.layers, "source": self.source, "positions": range(-queries, 0), "mass": with_mass}
        found = capture_index(self.model, ids, **options, progress=progress)
        return [self._layer(i, capture, text, options) for i, capture in enumerate(found)]

    def _layer(self, i: int, capture: IndexCapture, text: str, options: dict) -> Layer:
        known = self.model.loaded_from
        code = (
            "from activations import capture_index, load, texts",
            f"lm = load({known!r})" if known else "lm = ...  # the model of this panel",
            f"text = {_text_code(text)}",
            f"captures = capture_index(lm, text, {', '.join(f'{name}={value!r}' for name, value in options.items())})",
            f"capture = captures[{i}]",
            UNPACK,
        )
        return Layer(str(self.layers[i]), capture, True, capture.caption, code)


def _eligible(model: LanguageModel) -> tuple[str, list[int]]:
    """(source, layers): those with an indexer, else those that attend to the whole text, else to a window of it."""
    for source, n_tokens in (("native", None), ("attention", None), ("attention", 1)):
        if layers := index_layers(model, source, n_tokens):
            return source, layers
    raise ValueError(
        f"no layer of {model.name} has an indexer, or attention whose queries and keys can be seen: open this panel on "
        "a capture or on another model"
    )


def _text_code(text: str) -> str:
    """Python that gives a text: a short one as it is, the beginning of a built-in one by its name."""
    if len(text) <= SHOWN_CODE:
        return repr(text)
    for name in dict.fromkeys(name for _, name, _ in EXAMPLES):
        with contextlib.suppress(OSError):
            if texts.builtin_text(name, len(text)) == text:
                return f"texts.builtin_text({name!r}, {len(text)})"
    return f"...  # the {len(text):,} characters in the text box"
