"""QualityExplorer: what does each selection of keys cost a model's answers and loss, and does the record show it?"""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import plotly.graph_objects as go

from activations.quality_records import FIELDS, QualityRecords
from qp_kernels import results
from widgets.panels.controlled import ControlledPanel
from widgets.panels.quality_controls import QualityControls
from widgets.quality_figure import quality_figure, quality_properties
from widgets.quality_frame import code_of, frame_rows
from widgets.quality_view import ALL, LONGEST, QUESTIONS, QualityView, Setting, first_setting, look
from widgets.quality_words import NOT_RECORDED, caption_of, contents, sentence
from widgets.recorded_results import open_results, recorded_or_none

RECORDED = "quality"
# Lines under a still figure.
LETTERS_A_LINE, LINE_PX, UNDER_PX = 150, 16, -50


class QualityExplorer(ControlledPanel):
    """See what a model loses when its global layers attend to selected keys only, with error bars, beside the paper.

    Left, what each system answers (in %) or how much more loss its passages have than with full attention, with 95 %
    intervals; full attention is green. Over lengths the points are of the tasks that every length has. A symbol is
    hollow where the record shows no difference from dense selection, by the same samples. Right, on axes of its own,
    what the paper on PIVOT reports of DeepSeek-V3.2. The line above says what the intervals allow to say. No model is
    needed; an unfinished record is a record.

    Args:
        source: None (data/results/quality.json, and a panel without numbers where it is missing), or `Results`, a name
            in data/results, the path of a results file, or of a folder that holds quality.json.
        question: "length" (Reuse and Refine), "proxy", "group" (g), "budget" (c) or "rivals".
        index: Whose queries and keys select: "attention" or "distilled"; None is the first recorded.
        topk: Keys kept; None is nearest to a 64th of the longest text, as in the paper.
        measure: "task" (share answered) or "passage" (loss); None is the first recorded.
        only: A task or kind of passage, or "all" for their mean.
        length: Tokens, "longest" (at which all systems of the question were asked) or "all" for the mean over lengths.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.question.value = "rivals"; panel.wait(); panel.to_frame()`. Controls: question, index,
    topk, measure, only, length.
    """

    def __init__(
        self,
        source: results.Results | str | Path | None = None,
        *,
        question: str = "length",
        index: str | None = None,
        topk: int | None = None,
        measure: str | None = None,
        only: str = ALL,
        length: int | str = LONGEST,
    ):
        self._found, self._code, self._table = open_quality(source)
        first = first_setting(self._table, question, index, topk, measure)
        super().__init__(quality_figure(), ("draw",))
        try:
            self._adopt(QualityControls(first))
            self._offer(first)
            self.only.value, self.length.value = only, length
            self.arrange(*self._controls.arrange())
        except BaseException:
            self.close()
            raise
        self._connect()
        self._redraw()

    def _offer(self, at: Setting) -> None:
        """What the record holds for a setting; nothing where there is no record."""
        if self._table is None or not self._table.by:
            return
        table, here = self._table, {"source": at.index, "topk": at.topk}
        choices = {"index": table.values("source"), "topk": table.values("topk", source=at.index)}
        choices |= {"measure": table.values("kind", **here)}
        choices |= {"only": [ALL, *table.values("name", kind=at.measure, **here)]}
        choices |= {"length": [LONGEST, ALL, *table.values("length", kind=at.measure, **here)]}
        self._controls.offer(choices)

    # Jobs: what stands from here to `caption` runs on the worker.

    def _settle(self) -> Setting:
        """The setting that the controls say, when each holds what there is for those before it."""
        last = None
        while last != (last := self._controls.wanted):
            self._offer(last)
        return last

    def _draw(self, job) -> None:
        start = time.perf_counter()
        view = self._look(self._settle())
        self._view = view
        with self._lock:
            self._painter.paint(quality_properties(view))
        self.summary = sentence(view)
        self._say_caption(caption_of(view, self._found))
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]

    def _look(self, setting: Setting) -> QualityView:
        return QualityView(setting) if self._table is None else look(self._table, setting)

    def _other(self, question: str | None, more: dict) -> QualityView:
        """The view under another question or setting; the panel stays as it is."""
        view = self._need_view()
        changed = (
            view.setting._replace(**more) if question is None else view.setting._replace(question=question, **more)
        )
        if changed.question not in QUESTIONS:
            raise ValueError(f"question must be one of {', '.join(map(repr, QUESTIONS))}, got {changed.question!r}")
        return self._look(changed)

    def answer(self, question: str | None = None, **more) -> str:
        """What the record answers, in a line, also to another question than the open one; and which systems of the
        question it holds nothing of, or too little.

        Args:
            more: index, topk, measure, only or length, where they are not those of the panel.
        """
        return sentence(self._other(question, more))

    def asked(self) -> str:
        """What the record holds, in a line: samples, topk, lengths, tasks, passages, systems."""
        return contents(self._table) if self._table is not None and self._table.by else NOT_RECORDED

    def to_frame(self, question: str | None = None, **more):
        """A pandas frame with a row for each point: its level and interval, its difference from dense selection (of
        dense: from full attention), what that shows, and the paper's number. Args: as `answer`."""
        import pandas as pd

        return pd.DataFrame(frame_rows(self._other(question, more)))

    def snapshot(self) -> go.Figure:
        """As of every panel; what stands under it is longer than a line."""
        figure, y = super().snapshot(), UNDER_PX
        for note in figure.layout.annotations[-2:]:
            lines = textwrap.wrap(note.text, LETTERS_A_LINE)
            note.update(text="<br>".join(lines), yanchor="top", yshift=y)
            y -= LINE_PX * len(lines) + 4
        figure.update_layout(height=figure.layout.height - y, margin_b=figure.layout.margin.b - y)
        return figure

    def code(self) -> str:
        view = self._need_view()
        return code_of(view, self._code)

    def release(self) -> None:
        super().release()
        self._table = None


def open_quality(source) -> tuple[results.Results | None, list[str], QualityRecords | None]:
    """Results, the lines that open them, and their records; None where nothing was named and nothing is recorded.

    Raises:
        TypeError, ValueError, FileNotFoundError: what was given and what is accepted.
    """
    if source is None:
        if (source := recorded_or_none(RECORDED)) is None:
            return None, [], None
        found, code = source, ["from qp_kernels import results", f"found = results.read({RECORDED!r})"]
    else:
        found, code = open_results(source, RECORDED, "measurements of quality")
    for record in found.records:
        missing = set(FIELDS) - set(record) | ({"each"} - set(record) if record.get("kind") == "task" else set())
        if missing:
            lacking = ", ".join(sorted(missing))
            raise ValueError(f"the results {found.name!r} hold no quality on selected keys: they lack {lacking}")
    return found, code, QualityRecords(found.records)
