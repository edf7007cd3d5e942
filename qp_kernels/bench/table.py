"""Records as text: a line each, and the table of all."""

from __future__ import annotations

from typing import Any

from .cases import Target
from .providers import OURS

FLOORS = ("floor_read_write", "floor_read")


def lines_of(records: list[dict[str, Any]]) -> list[str]:
    """One line a record."""
    lines = []
    for r in records:
        line = f"{r['mode']:<6}{r['provider']:<20}{r['median_us']:>10.1f} us ({r['p20_us']:.1f} to {r['p80_us']:.1f})"
        line += f"{r['gbps']:>8.0f} GB/s"
        if r["times_floor"] is not None:
            line += f"{r['times_floor']:>7.2f} x floor"
        if r["peak_bytes"] is not None:
            line += f"{r['peak_bytes'] / 2**20:>9.1f} MiB"
        if r["wrong_rows"]:
            line += f"  {r['wrong_rows']} wrong rows"
        if r["late"]:
            line += f"  the GPU waited for the host in {r['late']} of {r['repetitions']}"
        if r["provider"] in FLOORS:
            line += f"  ({r['version']})"
        lines.append(line)
    return lines


def table(records: list[dict[str, Any]]) -> str:
    """Case, mode, our time, the floor, their ratio, what is aimed at, and the others' times; microseconds.

    "!" marks wrong rows; "*" marks an aim that was missed.
    """
    kinds = list(dict.fromkeys((r["case"], r["mode"]) for r in records))
    by = {(r["case"], r["mode"], r["provider"]): r for r in records}
    others = [name for name in dict.fromkeys(r["provider"] for r in records) if name not in (OURS, *FLOORS)]
    head = ["case", "mode", "ours", "floor", "x", "aim", *others]
    body = []
    for case, mode in kinds:
        floor = next((by[case, mode, name] for name in FLOORS if (case, mode, name) in by), None)
        ours = by.get((case, mode, OURS))
        cells = [_time(by.get((case, mode, name))) for name in others]
        ratio = f"{ours['times_floor']:.2f}" if ours else "-"
        body.append([case, mode, _time(ours), _time(floor), ratio, _aim(ours), *cells])
    widths = [max(map(len, column)) for column in zip(head, *body)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in (head, *body)
    )


def _time(record: dict[str, Any] | None) -> str:
    return "-" if record is None else f"{record['median_us']:.1f}{'!' * (record['wrong_rows'] > 0)}"


def _aim(record: dict[str, Any] | None) -> str:
    if record is None:
        return "-"
    aim = Target(record["target_times_floor"], record["target_us"])
    if aim.times_floor is not None:
        return f"{aim.times_floor:g} x" + "*" * (record["times_floor"] > aim.times_floor)
    return "-" if aim.us is None else f"{aim.us:.0f} us" + "*" * (record["median_us"] > aim.us)
