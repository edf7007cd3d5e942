"""NeedleExplorer: when does the key that a model needs leave the candidates, and what does it answer then?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from activations import index_layers
from activations.needle import NeedleReader, Reply, needle
from activations.selection import Selection
from qp_kernels import backend as backends
from widgets.controls import GridSlider
from widgets.needle_figure import needle_figure, needle_properties
from widgets.needle_view import Asked, NeedleView, Setting, curve_rows, layer_rows, sentence, table
from widgets.painting import Properties
from widgets.panels.controlled import ControlledPanel
from widgets.panels.needle_controls import LENGTHS, NeedleControls
from widgets.panels.row_controls import HIDDEN, SHOWN
from widgets.sources import is_live

REPAINT_S = 0.4  # while the line over c fills in
TABLES = {"layers": layer_rows, "c": curve_rows}
LEGEND = (
    "<div class='qp-caption'>The needle, and the prompt's end, where the outlined token answers: "
    "<span class='qp-legend qp-kept'>key that it selects in some layer</span>"
    "<span class='qp-legend qp-new'>the needle's key, selected in none</span></div>"
)


class NeedleExplorer(ControlledPanel):
    """Shrink the candidates c of PIVOT-Refine until the needle's key is none of them, and the model's answer breaks.

    A prompt hides one sentence among many and ends with its beginning. Above: what the model answers with every key,
    with dense selection, and as chosen. Below: the keys that the answering query attends to in each layer; the place of
    the needle's key in the order that decides, against the cut; the probability of the right answer over c.

    The haystack is read once with full attention; only the question's and the answer's tokens select, so that a step is
    a call on a few tokens. In the paper the whole prefill selects, which loses more.

    Args:
        source: A live `LanguageModel` with layers that attend to the whole text.
        c: Candidates; None is half of the prompt. Below the least legal one, k + 2g − 1, that one is used.
        k: Keys a query. g: 1, 2, 4, 8 or 16.
        proxy: "first", "mean" or "last": with "mean", which PIVOT takes, the needle survives most budgets.
        system: "refine", "reuse", "dense" or "full".
        length: Tokens of the prompt. seed: Of haystack and needle. depth: Where the needle lies, in percent.
        text: A needle of your own, whose last word is asked for; "" is a secret word.
        indexers: layer -> indexer, as `selected_attention` takes them (`distilled_indexers`); None: each layer selects
            by its own queries and keys. backend: "auto", "triton" or "torch".
    Raises:
        TypeError, ValueError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.c.value = 31; panel.wait(); panel.to_frame()`. Controls: c, k, g, proxy, system, seed,
    depth, length, text, backend.
    """

    sliders = ("c",)

    def __init__(
        self,
        source,
        *,
        c=None,
        k=16,
        g=8,
        proxy="first",
        system="refine",
        length=1024,
        seed=0,
        depth=30,
        text="",
        indexers=None,
        backend="auto",
    ):
        self._selecting, lengths = _usable(source, indexers)
        self._model, self._indexers = source, indexers
        self._reader: NeedleReader | None = None
        self._tokens: list[str] = []
        self._replies: dict[Selection, Reply] = {}
        self._stopped = self._filling = False  # Cancel holds until something else is asked for
        self._failed = False  # the last prompt could not be read: what was said of it stays in sight
        super().__init__(needle_figure(), ("read", "draw", "curve"))
        self.add_class("qp-wide")
        try:
            self._adopt(NeedleControls(lengths))
            self.length.value = length
            self._controls.fit(self.length.value)
            c = self.length.value // 2 if c is None else c
            start = {"c": c, "k": k, "g": g, "proxy": proxy, "system": system, "seed": seed, "depth": depth}
            for name, value in {**start, "text": text, "backend": backend}.items():
                getattr(self, name).value = value
            backends.resolve(source.head.matrix(source.dtype)[0], backend)
            self.arrange(*self._controls.arrange())
            *above, caption = self.children
            self.children = [*above, *self._controls.below(), caption]
        except BaseException:
            self.close()
            raise
        self._connect()
        self._ask()

    def _connect(self) -> None:
        super()._connect()
        for control in self._controls.reading:
            control.observe(self._on_prompt, "value")
            if isinstance(control, GridSlider):
                control.observe(self._on_refused, "error")
        self.run_button.on_click(lambda _: self._ask())
        self.curve_button.on_click(lambda _: self._go_on())

    def _on_control(self, change) -> None:
        self._stopped = self._stopped and change["owner"] is self.c  # another c wants no other line
        super()._on_control(change)

    def _on_prompt(self, _) -> None:
        self.clear_status("control")
        self._ask()

    def _ask(self) -> None:
        self._stopped = False
        self.submit("read", self._read)

    def _go_on(self) -> None:
        self._stopped = False
        self._redraw()

    def cancel(self) -> None:
        self._stopped = True
        super().cancel()

    # Jobs: what stands from here to `caption` runs on the worker.

    def _read(self, job) -> None:
        """Make the prompt, and have the model read its haystack."""
        self._failed = True
        asked = Asked(self.length.value, self.seed.value, self.depth.value, self.text.value.strip())
        made = needle(
            self._model.encode, asked.length, asked.seed, depth=asked.depth / 100, sentence=asked.sentence or None
        )
        reader = NeedleReader(self._model, made, layers=self._selecting, indexers=self._indexers, progress=job.progress)
        job.check("the model reads the haystack")
        self._reader, self._replies, self._asked, self._failed = reader, {}, asked, False
        self._tokens = self._model.tokens(made.ids[: made.prompt])
        self._controls.fit(asked.length)
        self._draw(job)

    def _setting(self) -> Setting:
        return Setting(*(getattr(self, name).value for name in Setting._fields))

    def _reply(self, selection: Selection) -> Reply:
        if selection not in self._replies:
            self._replies[selection] = self._reader.answer(selection)
        return self._replies[selection]

    def _missing(self, at: Setting) -> list[int]:
        """Budgets of the line over c that are not known yet; the ends first, then the middles between."""
        budgets = at.budgets(self._reader.needle.prompt)
        last = len(budgets) - 1
        order = sorted(range(len(budgets)), key=lambda i: (i not in (0, last), -(i & -i)))
        return [budgets[i] for i in order if at.at_budget(budgets[i]) not in self._replies]

    def _draw(self, job) -> None:
        if self._reader is None:
            return
        start = time.perf_counter()
        at = self._setting()
        self._paint(at)
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]
        if not (self._filling or self._stopped) and self._missing(at):
            self.submit("curve", self._fill)

    def _fill(self, job) -> Iterator[None]:
        """Answer at the budgets of the line over c, whatever is open meanwhile."""
        self._filling, painted = True, time.monotonic()
        try:
            while not self._worker.closed and (missing := self._missing(at := self._setting())):
                self._tell(job, at, len(missing))
                self._reply(at.at_budget(missing[0]))
                if time.monotonic() > painted + REPAINT_S:
                    self._repaint()
                    painted = time.monotonic()
                yield
        except Exception:
            with suppress(Exception):  # what ended the line is what must be told
                self._repaint()  # after Cancel the picture offers to go on
            raise
        finally:
            self._filling = False
        self._repaint()

    def _repaint(self) -> None:
        """Draw what is open with what is known of its line by now; the model is asked nothing."""
        view = self._view
        if view is None or self._worker.closed:
            return
        if all(one in self._replies for one in view.at.compared()):  # a new prompt has other replies
            self._paint(view.at)

    def _tell(self, job, at: Setting, left: int) -> None:
        total, what = len(at.budgets(self._reader.needle.prompt)), "answers over c:"
        job.check(what) if self._failed else job.progress(total - left, total, what)

    def _look(self, at: Setting) -> NeedleView:
        made = self._reader.needle
        shown, full, dense = (self._reply(one) for one in at.compared())
        points = {c: at.at_budget(c) for c in {*at.budgets(made.prompt), at.budget}}
        curve = {c: self._replies[one] for c, one in points.items() if one in self._replies}
        return NeedleView(made, self._tokens, at, self._reader.layers, shown, full, dense, curve)

    def _paint(self, at: Setting) -> None:
        self._view = view = self._look(at)
        with self._lock:
            self._painter.paint(needle_properties(view))
        self.answers.value, self.legend.value = table(view), LEGEND
        self._mark_text(view)
        self.summary = sentence(view)
        made, reader = view.made, self._reader
        index = "the indexers given" if self._indexers else "their own queries and keys"
        which = ", ".join(map(str, reader.layers))
        used = backends.resolve(made.ids.to(self._model.device), at.backend).name
        self._say_caption(
            f"{self._model.caption} · of {made.prompt:,} tokens {reader.read:,} are read with full attention, "
            f"the last ones select in layers {which} by {index} · {used} back-end"
        )
        self.curve_button.layout.display = SHOWN if self._stopped and self._missing(self._setting()) else HIDDEN

    def _mark_text(self, view: NeedleView) -> None:
        """Spell out needle and question with the keys that are selected."""
        around, end = view.stretches
        positions, gap = [*around, *end], len(around)
        tokens = [view.tokens[p] for p in positions]
        if end.start > around.stop:
            positions.insert(gap, -1)
            tokens.insert(gap, "…")
        chosen = set(view.chosen.tolist())
        lost = view.at.system != "full" and view.made.key not in chosen
        with self.strip.hold_sync():
            self.strip.tokens, self.strip.here = tokens, len(tokens) - 1
            self.strip.kept = [i for i, p in enumerate(positions) if p in chosen]
            self.strip.new = [i for i, p in enumerate(positions) if lost and p == view.made.key]

    def _slider_grid(self, name: str) -> list:
        return sorted(self._need_view().curve)

    def _views_over(self, name: str, values: list) -> list[tuple[Properties, str]]:
        at = self._need_view().at
        views = [self._look(at._replace(**{name: value})) for value in values]
        return [(needle_properties(one), sentence(one)) for one in views]

    def to_frame(self, kind: str = "layers"):
        """A pandas frame of what is seen.

        Args:
            kind: "layers" (where the needle's key stands in each) or "c" (what is answered at each budget).
        """
        import pandas as pd

        if kind not in TABLES:
            raise ValueError(f"kind must be one of {', '.join(map(repr, TABLES))}, got {kind!r}")
        return pd.DataFrame(TABLES[kind](self._need_view()))

    def code(self) -> str:
        view, asked, known = self._need_view(), self._asked, self._model.loaded_from
        chosen = view.at.selection()
        fields = {"system": chosen.system, "topk": chosen.topk}
        if chosen.system in ("refine", "reuse"):
            fields |= {"group": chosen.group, "proxy": chosen.proxy}
        if chosen.system == "refine":
            fields["budget"] = chosen.budget
        given = ", ".join(f"{name}={value!r}" for name, value in {**fields, "backend": chosen.backend}.items())
        more = f", sentence={asked.sentence!r}" if asked.sentence else ""
        indexers = ", layers=list(indexers), indexers=indexers" if self._indexers else ""
        lines = [
            "from activations import Selection, load",
            "from activations.needle import NeedleReader, needle",
            f"lm = load({known!r})" if known else "lm = ...  # the model of this panel",
            f"made = needle(lm.encode, {asked.length}, {asked.seed}, depth={asked.depth / 100!r}{more})",
            f"reply = NeedleReader(lm, made{indexers}).answer(Selection({given}))",
        ]
        if self._indexers:
            lines.insert(3, "indexers = ...  # those of this panel")
        return "\n".join(lines)

    def release(self) -> None:
        super().release()
        self._reader, self._replies, self._tokens = None, {}, []


def _usable(source, indexers) -> tuple[list[int], list[int]]:
    """Layers that can select, and lengths of prompts, of a model that can be asked."""
    if not is_live(source):
        raise TypeError(
            f"NeedleExplorer needs a model that answers: pass the result of activations.load or wrap, got "
            f"{type(source).__name__}"
        )
    layers = [layer for layer in index_layers(source) if indexers is None or layer in indexers]
    lengths = [n for n in LENGTHS if source.context is None or n < source.context]
    if not layers:
        with_indexer = "" if indexers is None else " and has an indexer"
        raise ValueError(f"no layer of {source.name} attends to the whole text{with_indexer}")
    if not lengths:
        raise ValueError(f"{source.name} reads {source.context:,} tokens: a haystack needs {LENGTHS[0]:,} and more")
    return layers, lengths
