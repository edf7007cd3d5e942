"""TruncationExplorer: does the Gaussian threshold leave enough, and not too much, at every position of a text?"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch

from widgets.controls import k_grid
from widgets.histograms import mantissa_bits
from widgets.painting import Properties
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.panels.rows import RowPanel
from widgets.panels.truncation_controls import TruncationControls
from widgets.sorted_rows import Outcome, Rule, SortedRows
from widgets.sources import Rows
from widgets.truncation_figure import truncation_figure, truncation_properties
from widgets.truncation_view import STATES, TruncationView, open_row, sentence, setting_grid

MOST_POSITIONS = 100  # of a longer text, so many are looked at, evenly spaced; each takes 4 V bytes
ROWS_AT_HAND = 64  # whole rows that are kept for opening them, V entries each
REPAINT_S = 0.3  # while positions are read


class TruncationExplorer(RowPanel):
    """See where the threshold t of the σ-truncation leaves enough candidates (hit), too few (miss) or too many.

    Left: a map of every position and every k (or p), and below it the candidates of each position at the current k,
    with the lines they must stay between. Right: one position's histogram with the normal curve, t, and the real cut.
    A click on a position, or on its token, opens it.

    Args:
        source: A live `LanguageModel` (then the panel has a text box), a `LogitCapture`, logits [V] or [R, V] as tensor
            or array, or the path of a `.safetensors`, `.npy` or `.npz` file.
        k: Tokens kept; 0, or V and more, is off. p: Probability mass kept, 1 is off.
        over: "k" or "p": which of the two sets the threshold. None: k, unless it is off.
        temperature: Positive; the threshold sees (logit + shift) / T. position: Row shown first; negative counts from
            the end. margin, rule: As `truncation` takes them.
        backend: "auto", "triton" or "torch", as in `qp_kernels`. text: First text of a live model.
    Raises:
        TypeError, ValueError: a source or number that can't be used, and what is accepted.

    Drive it by code: `panel.margin.value = 0; panel.wait(); panel.to_frame()`. Controls: k, p, over, margin, rule,
    temperature, shift, position, logits_dtype, backend, and on a live model text and layer.
    """

    sliders = ("k", "p", "margin", "shift", "temperature")

    def __init__(
        self,
        source,
        *,
        k=50,
        p=0.9,
        over=None,
        temperature=1.0,
        position=-1,
        margin=0.2,
        rule="sigma",
        backend="auto",
        text=None,
    ):
        self._known: SortedRows | None = None
        self._known_key: tuple | None = None
        self._looked = range(0)
        self._names: dict[int, str] = {}
        self._stopped = False  # Cancel holds until other rows come
        self._tensors: OrderedDict[int, tuple[torch.Tensor, int]] = OrderedDict()  # rows and their mantissa bits
        self._map: tuple[tuple, Outcome] | None = None
        if over is None:
            over = "p" if k in (None, 0) and p not in (None, 1) else "k"
        if over not in ("k", "p"):
            raise ValueError(f'over must be "k" or "p", got {over!r}')
        if rule not in ("sigma", "paper"):
            raise ValueError(f'rule must be "sigma" or "paper", got {rule!r}')
        more = {"k": k, "p": p, "over": over, "temperature": temperature, "margin": margin, "rule": rule}
        super().__init__(
            source,
            truncation_figure(),
            ("capture", "draw", "scan"),
            position=position,
            backend=backend,
            text=text,
            **more,
        )

    def _new_controls(self, vocab: int, n_layers: int) -> TruncationControls:
        return TruncationControls(vocab, n_layers)

    def _connect(self) -> None:
        super()._connect()
        self.scan_button.on_click(lambda _: self._scan_on())
        for trace in self.figure.data:
            if trace.name in ("map", "hit", "miss", "overflow", "candidates"):
                trace.on_click(self._on_click)

    def _on_click(self, trace, points, state) -> None:
        if points.xs:
            self.position.value = int(points.xs[0])

    def _scan_on(self) -> None:
        self._stopped = False
        self.submit("scan", self._scan)

    def cancel(self) -> None:
        self._stopped = True
        super().cancel()

    # Jobs: what stands from here to `to_frame` runs on the worker.

    def _use_rows(self, rows: Rows, position: int) -> None:
        super()._use_rows(rows, position)
        self._known = self._view = None
        self._stopped = False
        self.k.set_grid(k_grid(rows.vocab_size))

    def _draw(self, job) -> None:
        if self._rows is None:
            return
        start = time.perf_counter()
        self._use_dtype(self.logits_dtype.value)
        position = self.position.value
        self._paint(position)
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        if self._missing() and "scan" not in self._busy:
            self.submit("scan", self._scan)

    def _scan(self, job):
        """Read the positions that are not known yet, one a step; what is read so far is painted now and then."""
        total, painted = len(self._looked), time.monotonic()
        while missing := self._missing():
            job.progress(total - len(missing), total, "reading positions")
            self._learn(missing[0])
            if time.monotonic() > painted + REPAINT_S:
                self._paint(self.position.value)
                painted = time.monotonic()
            yield
        self._paint(self.position.value)
        job.progress(total, total, "reading positions")  # raises when the rest was cancelled

    def _use_dtype(self, dtype: str) -> None:
        """Start afresh when other rows or another dtype are asked for."""
        if self._known is not None and self._known_key == (self._rows, dtype):
            return
        count = self._rows.count
        self._looked = range(0, count, -(-count // MOST_POSITIONS))
        self._known = SortedRows(len(self._looked) + 1, self._rows.vocab_size)  # and one that is opened between them
        self._known_key, self._map, self._stopped = (self._rows, dtype), None, False
        self._names.clear()
        self._tensors.clear()

    def _missing(self) -> list[int]:
        """Positions to read, and for p to weigh; the nearest to the open one first."""
        rule, here = self._rule(), self.position.value
        unread = [] if self._stopped else [r for r in self._looked if r not in self._known]
        unweighed = []
        if rule.over == "p":
            unweighed = [r for r in self._looked if r in self._known and not self._known.weighed(r, rule)]
        return unweighed + sorted(unread, key=lambda row: abs(row - here))

    def _learn(self, position: int) -> None:
        """Keep of a row what the map needs; where there is room, also the row itself."""
        if position not in self._known:
            row = self._row(position)
            self._known.add(position, row[0])
            if len(self._tensors) < ROWS_AT_HAND:
                self._tensors[position] = row
        if self.over.value == "p" and not self._known.weighed(position, rule := self._rule()):
            self._known.weigh(position, rule)

    def _row(self, position: int) -> tuple[torch.Tensor, int]:
        """A row where the kernels see it, and its mantissa bits."""
        if position in self._tensors:
            return self._tensors[position]
        row = self._rows.row(position, self._known_key[1])
        return row, mantissa_bits(row)

    def _open(self, position: int) -> tuple[torch.Tensor, int]:
        """Have the open row at hand, instead of the one that was opened least recently."""
        self._learn(position)
        self._tensors[position] = row = self._row(position)
        self._tensors.move_to_end(position)
        while len(self._tensors) > ROWS_AT_HAND:
            self._tensors.popitem(last=False)
        return row

    def _rule(self) -> Rule:
        return Rule(self.over.value, self.margin.value, self.rule.value, self.temperature.value, self.shift.value)

    def _paint(self, position: int) -> None:
        row, _ = self._open(position)
        view = self._look(position, getattr(self, self.over.value).value, self._rule())
        self._view = view
        with self._lock:
            self._painter.paint(truncation_properties(view))
        self._show_text(position)
        self.summary = sentence(view)
        self._show_caption(row, f"t from a sample of {min(view.vocab, 8192):,}")
        self.scan_button.layout.display = SHOWN if self._stopped and len(view.rows) < len(view.looked) else HIDDEN
        for name in ("k", "p"):
            getattr(self, name).layout.display = SHOWN if name == view.rule.over else HIDDEN

    def _look(self, position: int, setting: float, rule: Rule) -> TruncationView:
        known, vocab = self._known, self._rows.vocab_size
        rows = [r for r in self._looked if r in known and (rule.over == "k" or known.weighed(r, rule))]
        rows = rows or [position]  # the only one so far stands between those that are looked at
        now = known.outcome(rows, np.array([setting]), rule)[:, 0]
        if rule.over == "k":
            wanted = np.full(len(rows), setting or vocab)
        else:
            wanted = known.nuclei(rows, setting, rule)
        return TruncationView(
            rule=rule,
            setting=setting,
            vocab=vocab,
            looked=self._looked,
            rows=rows,
            names=[self._name(r) for r in rows],
            now=now,
            wanted=wanted,
            grid=setting_grid(rule.over, vocab),
            map=self._map_of(rows, rule),
            opened=open_row(position, *self._row(position), known, setting, rule, self.backend.value),
        )

    def _name(self, row: int) -> str:
        """The token whose successor a row predicts."""
        if row not in self._names:
            text = self._rows.text(row)
            self._names[row] = text.tokens[text.here] if text.here >= 0 else ""
        return self._names[row]

    def _map_of(self, rows: list[int], rule: Rule) -> Outcome:
        """The map, which moving k or p does not change."""
        key = (tuple(rows), rule)
        if self._map is None or self._map[0] != key:
            grid = setting_grid(rule.over, self._rows.vocab_size)
            self._map = (key, self._known.outcome(rows, grid, rule))
        return self._map[1]

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        view, over, row = self._need_view(), self.over.value, self.position.value
        if name in ("k", "p") and name != over or over == "p" and name in ("shift", "temperature"):
            raise ValueError(f"a slider over {name} does not go with a map over {over}")
        views = [
            self._look(row, value, view.rule)
            if name == over
            else self._look(row, view.setting, replace(view.rule, **{name: value}))
            for value in values
        ]
        return [(truncation_properties(view), sentence(view)) for view in views]

    def to_frame(self):
        """A pandas frame of the positions that are read: token, mean, std, delta, threshold, kept, wanted, state."""
        import pandas as pd

        view, known = self._need_view(), self._known
        mean, std = known.moments(view.rows, view.rule)
        return pd.DataFrame(
            {
                "position": view.rows,
                "token": view.names,
                "mean": mean.numpy(),
                "std": std.numpy(),
                "delta": known.delta(view.rows, view.setting, view.rule),
                "threshold": view.now.threshold,
                "kept": view.now.kept,
                "wanted": view.wanted,
                "hit": view.now.hit,
                "overflow": view.now.overflow,
                "state": [STATES[state] for state in view.now.state],
            }
        )

    def code(self) -> str:
        view = self._need_view()
        rule, setting = view.rule, view.setting
        on = setting > 0 if rule.over == "k" else setting < 1
        shifted = f"(logits + {rule.shift!r})" if rule.shift else "logits"
        scaled = f"{shifted} / {rule.temperature!r}" if rule.temperature != 1 else shifted
        whole = len(view.rows) == len(view.looked)
        more = f"margin={rule.margin!r}, rule={rule.rule!r}, backend={self.backend.value!r}"
        return "\n".join(
            [
                "from qp_kernels.qrita import truncation",
                *self._rows.code(view.looked if whole else view.rows, self._known_key[1]),
                f"stats = truncation({scaled}, {rule.over}={setting if on else None!r}, {more})",
            ]
        )

    def release(self) -> None:
        super().release()
        self._known = self._known_key = self._map = None
        self._tensors.clear()
