"""Panels that show one row at a time, and keep the rows around it sorted and at hand."""

from __future__ import annotations

from collections import OrderedDict

from widgets.histograms import mantissa_bits
from widgets.logit_view import RowFacts
from widgets.panels.rows import RowPanel
from widgets.sources import Rows

WARM_AFTER_S = 0.4  # sliders rest so long before neighbouring rows are prepared
ROWS_AT_HAND = 24  # rows kept sorted: all of a short text, the neighbours in a long one


class FactsPanel(RowPanel):
    """A `RowPanel` whose `_draw` asks `_facts_of(position)`; its last kind of job is "warm"."""

    def __init__(self, *args, **more):
        self._facts: OrderedDict[tuple, RowFacts] = OrderedDict()
        self._undrawable: set[int] = set()
        super().__init__(*args, **more)

    def _use_rows(self, rows: Rows, position: int) -> None:
        super()._use_rows(rows, position)
        self._facts.clear()
        self._undrawable.clear()

    def _leaves_unused_out(self) -> bool:
        """Whether `<unused…>` tokens count in the moments of a row."""
        return False

    def _key(self, position: int) -> tuple:
        return position, self.logits_dtype.value, self._leaves_unused_out()

    def _facts_of(self, position: int) -> RowFacts:
        return self._facts_at(self._key(position))

    def _facts_at(self, key: tuple) -> RowFacts:
        """The row of a `_key`: what else a job needs of the controls it reads once, for they may change under it."""
        if key not in self._facts:
            row = self._rows.row(*key[:2])
            unused = self._rows.unused if key[2] else None
            self._facts[key] = RowFacts(row, unused, mantissa_bits(row))
            while len(self._facts) > ROWS_AT_HAND:
                self._facts.popitem(last=False)
        self._facts.move_to_end(key)
        return self._facts[key]

    def _submit_warm(self, delay_s: float = WARM_AFTER_S) -> None:
        """Ask for the nearest row that is not at hand, one a job, once the sliders rest."""
        here, count = self.position.value, self._rows.count
        near = [r for step in range(1, ROWS_AT_HAND // 2) for r in (here + step, here - step) if 0 <= r < count]
        missing = next((r for r in near if self._key(r) not in self._facts and r not in self._undrawable), None)
        if missing is not None:
            self.submit("warm", lambda job: self._warm(missing), delay_s)

    def _warm(self, position: int) -> None:
        try:
            self._facts_of(position)
        except ValueError:
            self._undrawable.add(position)  # told when somebody opens it
        self._submit_warm(0.0)

    def release(self) -> None:
        super().release()
        self._facts.clear()
