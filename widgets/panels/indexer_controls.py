"""The controls of `IndexerExplorer` and where they stand. What they do is in `indexer.py`."""

from __future__ import annotations

import ipywidgets as w

from activations.texts import looking_back
from widgets.indexer_view import SHOWN as KEYS_SHOWN
from widgets.panels.index_controls import IndexControls
from widgets.panels.row_controls import HIDDEN, SHOWN, columns, line, sentence_input


class IndexerControls(IndexControls):
    """Those of every panel on an indexer, without a place for g."""

    query_tooltip = "whose keys are scored; a click on a token chooses it"

    @staticmethod
    def text_input() -> w.Text:
        return sentence_input()

    @staticmethod
    def examples() -> list[tuple[str, str]]:
        return [(one, one) for one in looking_back]

    def text_box(self) -> w.HBox:
        return w.HBox([self.text, self.run_button, self.texts], layout=w.Layout(width="100%"))

    def fit(self, n_keys: int) -> None:
        """Show where to look in a text that is longer than what is drawn at once."""
        self.place.layout.display = SHOWN if n_keys > KEYS_SHOWN else HIDDEN

    def arrange(self, several: bool) -> list[w.Widget]:
        self.layer.layout.display = SHOWN if several else HIDDEN
        return [self.legend, self.strip, columns([self.k, line(self.layer, self.backend)], [self.query, self.place])]

    def below(self, with_text: bool) -> list[w.Widget]:
        return []
