"""TimingExplorer: how far from the memory limit each way to cut logits is, by recorded numbers or measured here."""

from __future__ import annotations

import functools
import html
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import ipywidgets as w
import torch

from qp_kernels import results
from widgets.controls import GridSlider
from widgets.painting import Painter, Properties
from widgets.panels.base import Panel
from widgets.panels.row_controls import as_k
from widgets.panels.timing_controls import CLOCKS, OPERATIONS, SWEEPS, TimingControls, to_control
from widgets.timing_figure import timing_figure, timing_properties
from widgets.timing_live import FIRST_SHOWN, WAYS, LiveTimings
from widgets.timing_records import FIELDS, SWEPT, Spot, Timings, recorded_timings
from widgets.timing_view import LETTERS, TimingView, axis_name, caption_of, code_of, frame_rows, sentence

MEASURE_AFTER_S = 0.3  # sliders rest so long before a case is measured by itself
SIZES = ((16, 32_768), (1024, 128_256))  # B and V that a panel starts with, on a CPU and on a GPU


class TimingExplorer(Panel):
    """See what each way to cut logits costs, beside the time that memory alone would take.

    Left, the time of a call by each way: its median on a logarithmic axis, p20 to p80 in grey. Blue lines are the
    floors, measured in the same run: the time to read the logits once, and to read and write them once. What is left of
    the floor of the operation is shaded. Right, the memory that a call adds at its peak. A *line* shows the same over
    B, V, k or p.

    With a GPU it measures as the controls move; without one it shows what was recorded on one, and then only cases that
    were recorded can be chosen. `numbers` changes between the two; a line is measured on Run.

    Args:
        source: None (this GPU, else the recorded numbers, else this CPU), "live" (measure on this machine), or recorded
            numbers: `Results`, a name in data/results, the path of a results file, or of a folder that holds
            bench_qrita.json.
        batch, vocab: B and V; None for a size that suits the machine. k, p: Limits; None is off, and 0 and 1 are.
        rows: "gauss", "miss", "lie" or "live" (a model's; to measure, pass `logits`).
        dtype: "float32", "bfloat16" or "float16".
        operation: "mask", "select" or "sample". clock: "gpu" or "wall"; None is the GPU's where there is one.
        sweep: "off", or the quantity of a line: "batch", "vocab", "k" or "p".
        providers: Names of the ways shown first; None is all that are usual.
        own: Name -> `f(logits, k, p)`, to measure beside them; see `bench.providers`.
        logits: Rows [R, V] of a model, to measure with rows="live".
        device: What is measured on; None is the GPU where there is one.
    Raises:
        TypeError, ValueError, FileNotFoundError: a source or value that can't be used, and what is accepted.

    Drive it by code: `panel.batch.value = 16; panel.wait(); panel.to_frame()`. Controls: batch, vocab, k, p, rows,
    dtype, operation, clock, sweep, source, providers, repetitions, run_button.
    """

    sliders = SWEPT

    def __init__(
        self,
        source: results.Results | str | Path | None = None,
        *,
        batch: int | None = None,
        vocab: int | None = None,
        k: int | None = 50,
        p: float | None = 0.9,
        rows: str = "gauss",
        dtype: str = "float32",
        operation: str = "mask",
        clock: str | None = None,
        sweep: str = "off",
        providers: tuple[str, ...] | None = None,
        own: Mapping[str, Callable] | None = None,
        logits: torch.Tensor | None = None,
        device: str | None = None,
    ):
        for name, value, known in (
            ("operation", operation, tuple(OPERATIONS)),
            ("clock", clock, (None, *CLOCKS.values())),
            ("sweep", sweep, tuple(SWEEPS.values())),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        self._live = LiveTimings(device, own, logits)
        self._origins: dict[str, Timings] = {"live": self._live}
        if (recorded := recorded_timings(source)) is not None:
            self._origins["recorded"] = recorded
        on_gpu = self._live.on_gpu
        first = "live" if source == "live" or recorded is None or (source is None and on_gpu) else "recorded"
        known = recorded.providers if recorded else []
        every = tuple(dict.fromkeys([*WAYS, *self._live.own, *known]))
        usual = tuple(name for name in every if name not in WAYS or name in FIRST_SHOWN)
        big = first == "recorded" or on_gpu
        batch, vocab = batch or SIZES[big][0], vocab or SIZES[big][1]
        limits = as_k(k, vocab) or None, None if p in (None, 1) else p
        spot = Spot(rows, batch, vocab, *limits, dtype, operation, clock or ("gpu" if big else "wall"))
        self._view: TimingView | None = None
        self._pinned: str | None = None  # the control that moved last
        self._caption = ""
        self.computed_ms: list[float] = []  # how long each redraw took in the kernel, newest last
        super().__init__(timing_figure(every), ("draw", "measure"))
        self._painter = Painter(self.figure)
        try:
            shown = usual if providers is None else tuple(providers)
            self._make_controls(every, first, spot, sweep, shown)
        except BaseException:
            self.close()
            raise
        self._connect()
        self._ask()

    def _make_controls(self, every, first: str, spot: Spot, sweep: str, shown: tuple[str, ...]) -> None:
        names = {"recorded": "recorded on {}", "live": "measured on {}"}
        origins = [
            (names[key].format(self._origins[key].device), key) for key in ("recorded", "live") if key in self._origins
        ]
        self._controls = TimingControls(every, origins)
        self._controls.source.value, self._controls.sweep.value = first, sweep
        self._controls.providers.value = shown
        self._controls.repetitions.value = self._live.repetitions
        for name, control in vars(self._controls).items():
            setattr(self, name, control)
        timings = self._origins[first]
        self._controls.offer(self._choices(timings, spot))
        if timings.recorded:
            self._controls.show(timings.nearest(spot, None))
        else:
            self._live.check(spot)
            self._controls.show(spot)
        self.arrange(*self._controls.arrange())

    def _connect(self) -> None:
        for name, control in vars(self._controls).items():
            if control in self._controls.redrawing:
                control.observe(functools.partial(self._on_control, name), "value")
            if isinstance(control, GridSlider):
                control.observe(self._on_refused, "error")
        self.run_button.on_click(lambda _: self._ask(run=True))

    def _on_control(self, name: str, _) -> None:
        if not self._worker.is_current:  # a job that sets a control draws by itself
            self.clear_status("control")
            self._pinned = name
            self._ask()

    def _on_refused(self, change) -> None:
        if change["new"]:
            self.show_status("control", change["new"])

    def _ask(self, run: bool = False) -> None:
        self.submit("draw", self._draw)
        if self.source.value == "live":
            self.submit("measure", lambda job: self._measure(job, run), 0.0 if run else MEASURE_AFTER_S)

    # Jobs: what stands from here to `caption` runs on the worker.

    def _choices(self, timings: Timings, spot: Spot) -> dict[str, list]:
        """What the controls can be set to: what was recorded, or what this machine can do."""
        if not timings.recorded:
            return self._live.choices(spot)
        return {name: sorted(to_control(name, v) for v in timings.values(name)) for name in SWEPT} | {
            name: timings.values(name) for name in FIELDS if name not in SWEPT
        }

    def _settle(self) -> Spot:
        """The spot that is shown: as the controls say, or the recorded one that is nearest; the controls follow."""
        timings, controls = self._origins[self.source.value], self._controls
        pinned, self._pinned = self._pinned, None
        wanted = controls.wanted
        controls.offer(self._choices(timings, wanted))
        controls.allow_measuring(not timings.recorded)
        controls.providers.offer(timings.providers if timings.recorded else self._live.names)
        if not timings.recorded:
            self._live.check(controls.wanted)
            return controls.wanted
        spot = timings.nearest(wanted, pinned if pinned in FIELDS else None)
        controls.show(spot, wanted)
        moved = [name for name in FIELDS if getattr(spot, name) != getattr(wanted, name)]
        self.clear_status("recorded")
        if moved and pinned in FIELDS:
            words = ", ".join(f"{LETTERS.get(name, name)} = {axis_name(name, getattr(spot, name))}" for name in moved)
            self.show_status("recorded", f"recorded cases only, so the nearest one is shown: {words}", "qp-busy")
        return spot

    def _draw(self, job) -> None:
        self._paint(self._look(self._settle(), self.sweep.value, self.providers.value))

    def _look(self, spot: Spot, sweep: str, shown: tuple[str, ...]) -> TimingView:
        timings = self._origins[self.source.value]
        over = "" if sweep == "off" else sweep
        spots = timings.along(spot, over) if over else [spot]
        found = {one: records for one in spots if (records := timings.at(one))}
        spots = tuple(found) or (spot,)
        return TimingView(
            spot, over, spots, found, shown, self.providers.every, timings.top_gbps, timings.device, timings.recorded
        )

    def _paint(self, view: TimingView) -> None:
        start = time.perf_counter()
        self._view = view
        with self._lock:
            self._painter.paint(timing_properties(view))
        self.summary = sentence(view)
        self._caption = caption_of(view, self._origins["recorded" if view.recorded else "live"])
        self._caption_view.value = f"<div class='qp-caption'>{html.escape(self._caption)}</div>"
        self.computed_ms = [*self.computed_ms[-199:], 1e3 * (time.perf_counter() - start)]

    def _measure(self, job, run: bool) -> Iterator[None]:
        """Measure the case that is chosen where it was not; a line, and what is known, when Run is pressed."""
        spot, over, names = self._controls.wanted, self.sweep.value, self.providers.value
        self._live.check(spot)
        line = [spot] if over == "off" else self._live.line_of(spot, over) if run else []
        missing = [one for one in line if self._live.lacks(one, names)]
        todo = missing or (line if run else [])
        for done, one in enumerate(todo):
            count = f"{done + 1} of {len(todo)}: " if len(todo) > 1 else ""
            tell = functools.partial(_tell, job, count)
            self._live.measure(one, names, self.repetitions.value, tell)
            self._draw(job)
            yield

    @property
    def caption(self) -> str:
        return self._caption

    def to_frame(self):
        """A pandas frame of the records that are seen, floors first; the fields are those of `bench.run_case`."""
        import pandas as pd

        return pd.DataFrame(frame_rows(self._need_view()))

    def export_html(self, path: str | Path, slider: str | None = None, steps: int = 40) -> Path:
        """Write what is seen as one HTML file that works offline.

        Args:
            path: File to write. slider: None, or "batch", "vocab", "k" or "p": a slider over the cases that are known.
            steps: Positions of that slider, at most 50.
        """
        return self._export(path, slider, steps)

    def _slider_views(self, name: str, steps: int) -> tuple[list[str], list[Properties], int]:
        view = self._need_view()
        timings = self._origins["recorded" if view.recorded else "live"]
        spots = timings.along(view.spot, name)
        if view.over == name or len(spots) < 2:
            raise ValueError(
                f"a slider needs at least two known cases that differ in {name} alone; it has {len(spots)}"
            )
        picked = sorted({round(i * (len(spots) - 1) / (steps - 1)) for i in range(steps)} | {spots.index(view.spot)})
        # The line under an exported figure is the first annotation that `snapshot` adds.
        line = f"annotations[{len(self.figure.layout.annotations)}].text"
        views = []
        for i in picked[:steps]:
            other = self._look(spots[i], view.over or "off", view.shown)
            traces, layout = timing_properties(other)
            views.append((traces, layout | {line: html.escape(sentence(other))}))
        names = [f"{LETTERS[name]} = {axis_name(name, getattr(spots[i], name))}" for i in picked[:steps]]
        return names, views, picked.index(spots.index(view.spot))

    def code(self) -> str:
        view = self._need_view()
        return code_of(view, self._origins["recorded" if view.recorded else "live"], self.repetitions.value)

    def owned(self) -> list[w.Widget]:
        controls = list(vars(self._controls).values()) if hasattr(self, "_controls") else []
        return [*super().owned(), *controls, *(part for c in controls for part in getattr(c, "children", ()))]

    def release(self) -> None:
        self._live.release()
        self._view = None


def _tell(job, count: str, done: int, total: int, what: str) -> None:
    job.progress(done, total, f"{count}{what}")
