"""The controls of `QualityExplorer` and where they stand. What they do is in `quality.py`."""

from __future__ import annotations

import ipywidgets as w

from widgets.controls import choice
from widgets.panels.row_controls import HIDDEN, SHOWN, line
from widgets.quality_view import ALL, LONGEST, Setting
from widgets.quality_words import INDEX

QUESTIONS = {
    "length": "Length: Reuse, Refine",
    "proxy": "Proxy: mean, first, last",
    "group": "Group g",
    "budget": "Budget c",
    "rivals": "Rivals",
}
MEASURES = {"task": "share of tasks answered", "passage": "loss of passages"}


class QualityControls:
    """Every control under the name that the panel gives it, at a first setting."""

    def __init__(self, first: Setting):
        self.question = choice("question", [(text, key) for key, text in QUESTIONS.items()], first.question)
        self.index = choice("index of", [(first.index, first.index)], first.index, "what makes queries and keys")
        self.topk = choice("topk", [(f"{first.topk:,}", first.topk)], first.topk, "keys kept a query")
        self.measure = choice("measure", [(MEASURES.get(first.measure, first.measure), first.measure)], first.measure)
        self.only = choice("of", [(first.only, first.only)], first.only, "one task or kind of passage, or their mean")
        self.length = choice("length", [(str(first.length), first.length)], first.length, "in tokens")

    @property
    def redrawing(self) -> list[w.Widget]:
        return list(vars(self).values())

    def arrange(self) -> list[w.Widget]:
        return [line(self.question, self.index, self.topk), line(self.measure, self.only, self.length)]

    def offer(self, choices: dict[str, list]) -> None:
        """Give each control what can be chosen; a value that has gone is replaced by the nearest, or the first."""
        for name, values in choices.items():
            getattr(self, name).offer([(_words(name, value), value) for value in values])
        self.length.layout.display = HIDDEN if self.question.value == "length" else SHOWN

    @property
    def wanted(self) -> Setting:
        return Setting(*(getattr(self, name).value for name in Setting._fields))


def _words(name: str, value) -> str:
    if name == "only" and value == ALL:
        return "all, averaged"
    if name == "length":
        return {LONGEST: "the longest", ALL: "all, averaged"}.get(value) or f"{value:,}"
    known = {"index": INDEX, "measure": MEASURES}.get(name, {})
    return known.get(value, f"{value:,}" if isinstance(value, int) else str(value))
