"""What `TimingExplorer` shows: one spot, or a line of spots over one quantity, and the words for it. No drawing."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.timing_records import FIELDS, FLOORS, Spot, Timings, spot_of

NAMES = {
    "vllm": "vLLM",
    "flashinfer": "FlashInfer",
    "torch_sort": "torch.sort",
    "torch_topk": "torch.topk",
    "transformers_rule": "transformers",
    "floor_read": "read once",
    "floor_read_write": "read and write once",
}
LETTERS = {"batch": "B", "vocab": "V", "k": "k", "p": "p"}
OVER = {"batch": "B, rows", "vocab": "V, entries of a row", "k": "k, tokens kept", "p": "p, mass kept"}
HOW = {
    "gpu": "by CUDA events",
    "graph": "as a CUDA graph's replay",
    "wall": "wall clock",
}
# A floor that reaches less than this share of the best bandwidth seen is made of launches, not of bytes.
LAUNCH_BOUND = 0.25


@dataclass(frozen=True)
class TimingView:
    """One picture.

    Attributes:
        spot: What the controls name. over: Quantity of the line, "" for the one spot.
        spots: Of the line, in order. found: Spot -> provider or floor -> record.
        shown: Providers, in the order of their colours. every: All providers there are.
        top_gbps: The best bandwidth of any floor of this origin, None where it is not known.
        device, recorded: Where the numbers come from.
    """

    spot: Spot
    over: str
    spots: tuple[Spot, ...]
    found: dict[Spot, dict[str, dict]]
    shown: tuple[str, ...]
    every: tuple[str, ...]
    top_gbps: float | None
    device: str
    recorded: bool

    def record(self, name: str, spot: Spot | None = None) -> dict | None:
        return self.found.get(spot or self.spot, {}).get(name)

    def line(self, name: str) -> list[dict]:
        """The records of a provider or floor along the line."""
        return [record for spot in self.spots if (record := self.record(name, spot))]

    @property
    def floor(self) -> str:
        """The floor that bounds this operation."""
        return self.spot.case.floor

    @property
    def present(self) -> list[str]:
        """Providers shown that have a record in any of the spots."""
        return [name for name in self.shown if self.line(name)]

    @property
    def has_memory(self) -> bool:
        return any(record.get("peak_bytes") is not None for name in self.present for record in self.line(name))

    def times_floor(self, record: dict) -> float | None:
        """How many times the floor of the same run."""
        known = record.get("times_floor")
        floor = self.record(self.floor, spot_of(record))
        if known is not None or floor is None:
            return known
        return record["median_us"] / floor["median_us"]

    @property
    def launch_bound(self) -> bool:
        floor = self.record(self.floor)
        return bool(floor and self.top_gbps and floor.get("gbps") and floor["gbps"] < LAUNCH_BOUND * self.top_gbps)


def name_of(provider: str, record: dict | None = None) -> str:
    """A provider in words, with its version where the record knows it."""
    version = (record or {}).get("version")
    name = NAMES.get(provider, provider)
    numbered = version and version[0].isdigit() and not provider.startswith(("qp_kernels", "torch_"))
    return f"{name} {version}" if numbered else name


def duration(us: float) -> str:
    """A time in three digits."""
    for unit, size in (("µs", 1.0), ("ms", 1e3), ("s", 1e6)):
        if us < 999.5 * size or unit == "s":
            return f"{_digits(us / size)} {unit}"
    raise AssertionError


def bandwidth(gbps: float) -> str:
    return f"{_digits(gbps / 1e3)} TB/s" if gbps >= 1e3 else f"{_digits(gbps)} GB/s"


def size(count: float) -> str:
    """Bytes in three digits."""
    for unit, scale in (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < 999.5 * scale or unit == "GB":
            return f"{_digits(count / scale)} {unit}" if scale > 1 else f"{count:.0f} B"
    raise AssertionError


def _digits(value: float) -> str:
    """Three digits, and a thousand without a power of ten."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def times(ratio: float) -> str:
    return f"{ratio:,.0f} ×" if ratio >= 99.5 else f"{ratio:.1f} ×" if ratio >= 9.95 else f"{ratio:.2f} ×"


def name_spot(spot: Spot, without: str = "") -> str:
    """A spot in words; the swept quantity is left out."""
    limits = [
        f"{name} = {value:,}" if name == "k" else f"{name} = {value:g}"
        for name, value in (("k", spot.k), ("p", spot.p))
        if value is not None and name != without
    ]
    sizes = [
        f"{name} = {value:,}"
        for name, field, value in (("B", "batch", spot.batch), ("V", "vocab", spot.vocab))
        if field != without
    ]
    what = [] if spot.operation == "mask" else [spot.operation]
    return ", ".join([*what, *limits, *sizes, spot.dtype, f"{spot.rows} rows"])


def sentence(view: TimingView) -> str:
    """What a view shows, in a line."""
    return _line_sentence(view) if view.over else _case_sentence(view)


def _case_sentence(view: TimingView) -> str:
    floor, parts = view.record(view.floor), []
    if floor is not None:
        speed = f" ({bandwidth(floor['gbps'])})" if floor.get("gbps") else ""
        to = NAMES[view.floor].removesuffix(" once")
        parts.append(f"to {to} the logits once takes {duration(floor['median_us'])}{speed}")
    for name in view.present:
        record = view.record(name)
        ratio = view.times_floor(record)
        many = f", {times(ratio)} that" if ratio is not None else ""
        parts.append(f"{name_of(name)} {duration(record['median_us'])}{many}{_wrong(record)}")
    if view.launch_bound:
        parts.append(
            f"so little work is bound by launches, not by bytes: even the floor is at {bandwidth(floor['gbps'])} of "
            f"{bandwidth(view.top_gbps)}"
        )
    return f"{name_spot(view.spot)}: " + " · ".join(parts or ["not measured yet"])


def name_wrong(record: dict) -> str:
    """What is wrong with a record, "" where nothing is."""
    if record.get("correct") is not False:
        return ""
    rows = record.get("wrong_rows")
    return f"{rows:,} {'row' if rows == 1 else 'rows'} wrong" if rows else "wrong"


def _wrong(record: dict) -> str:
    return f" ({name_wrong(record)})" if name_wrong(record) else ""


def _line_sentence(view: TimingView) -> str:
    values = [getattr(spot, view.over) for spot in view.spots]
    named = [axis_name(view.over, value) for value in values]
    parts = []
    for name in view.present:
        ratios = [ratio for record in view.line(name) if (ratio := view.times_floor(record)) is not None]
        wrong = sum(record.get("correct") is False for record in view.line(name))
        if ratios:
            low, high = min(ratios), max(ratios)
            span = times(high) if times(low) == times(high) else f"{times(low).removesuffix(' ×')} to {times(high)}"
            parts.append(f"{name_of(name)} {span} the floor" + (f" (wrong in {wrong} cases)" if wrong else ""))
    over = OVER[view.over].split(",")[0]
    where = f"{over} from {named[0]} to {named[-1]}" if len(values) > 1 else f"{over} = {named[0]} alone"
    return f"{where}, {name_spot(view.spot, view.over)}: " + " · ".join(parts or ["nothing is measured yet, press Run"])


def axis_name(over: str, value) -> str:
    """A value of a swept quantity in words; what is off says so."""
    if value is None:
        return "off"
    return value if isinstance(value, str) else f"{value:g}" if over == "p" else f"{value:,}"


def frame_rows(view: TimingView) -> list[dict]:
    """The records of a view, floors first at each spot; without a floor that is drawn from another spot."""
    names = [*FLOORS, *view.present]
    found = [(spot, record) for spot in view.spots for name in names if (record := view.record(name, spot))]
    return [record for spot, record in found if spot_of(record) == spot]


def caption_of(view: TimingView, timings: Timings) -> str:
    """Where the numbers come from, and how they were timed."""
    records = [record for name in (*view.present, *FLOORS) for record in view.line(name)]
    calls = sorted({record["repetitions"] for record in records})
    count = f"{calls[0]}" if len(calls) == 1 else f"{calls[0]} to {calls[-1]}" if calls else ""
    clocks = sorted({HOW.get(record["mode"], record["mode"]) for record in records})
    parts = [timings.caption, *([f"median of {count} calls", *clocks] if records else []), *timings.notes(view.spot)]
    if not view.recorded and view.spot.clock == "wall" and timings.device == "this CPU":
        parts.append("a CPU's numbers say little of a GPU's")
    return " · ".join(parts)


def code_of(view: TimingView, timings: Timings, repetitions: int) -> str:
    """Python that gives the records of a view."""
    spot, over = view.spot, view.over
    if view.recorded:
        fixed = {name: getattr(spot, name) for name in FIELDS[:-1] if name != over}
        lines = [
            *timings.code,
            f"case = {fixed!r}",
            "records = [r for r in records if all(r[name] == value for name, value in case.items())]",
            f"records = [r for r in records if (r['mode'] == 'wall') is {spot.clock == 'wall'}]",
        ]
        return "\n".join(lines)
    own = ", own=own" if timings.own else ""
    return "\n".join(
        [
            "from qp_kernels import bench",
            "from qp_kernels.bench import rows",
            *([] if timings.on_gpu else ["import torch", "torch.set_num_threads(1)  # as the panel measures"]),
            *(["logits = ...  # [R, V], as this panel was given"] if spot.rows == "live" else []),
            *(["own = ...  # name -> f(logits, k, p), as this panel was given"] if own else []),
            f"ways = bench.providers({str(timings.where)!r}{own})",
            f"ways = {{name: ways[name] for name in {view.shown!r} if name in ways}}",
            "records = []",
            f"for {over or 'batch'} in {[getattr(one, over or 'batch') for one in view.spots]!r}:",
            f"    case = bench.Case({_arguments(spot, over or 'batch')})",
            f"    made = rows.make(case, {str(timings.where)!r}{', logits' if spot.rows == 'live' else ''})",
            f"    records += bench.run_case(case, made, ways, repetitions={repetitions})",
        ]
    )


def _arguments(spot: Spot, over: str) -> str:
    return ", ".join(f"{name}={name if name == over else repr(getattr(spot, name))}" for name in FIELDS[:-1])
