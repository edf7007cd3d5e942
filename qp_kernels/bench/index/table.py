"""Records as text, a line each."""

from __future__ import annotations

from typing import Any


def lines_of(records: list[dict[str, Any]]) -> list[str]:
    """Mode, provider, time, floor, speed over dense selection, memory; "*" marks an aim that was missed."""
    lines = []
    for r in records:
        line = f"{r['mode']:<6}{r['provider']:<18}{r['median_us']:>11.1f} us ({r['p20_us']:.1f} to {r['p80_us']:.1f})"
        if r["times_floor"] is not None:
            line += f"{r['times_floor']:>7.2f} x floor"
        if r["tflops"] is not None:
            line += f"{r['tflops']:>8.1f} TFLOP/s"
        if r["over_dense"] is not None and r["provider"] != "dense":
            line += f"{r['over_dense']:>7.2f} x dense"
        if r["paper_over_dense"] is not None:
            line += f" (paper {r['paper_over_dense']:.2f})"
        if r["peak_bytes"] is not None:
            line += f"{r['peak_bytes'] / 2**20:>9.1f} MiB"
        if r["wrong_rows"]:
            line += f"  {r['wrong_rows']} of {r['checked_rows']} rows wrong"
        if r["late"]:
            line += f"  the GPU waited for the host in {r['late']} of {r['repetitions']}"
        if r["provider"] == "floor_read":
            line += f"  ({r['version']})"
        lines.append(line + "".join(f"  * {aim}" for aim in missed(r)))
    return lines


def missed(record: dict[str, Any]) -> list[str]:
    """The aims that a record misses, in words."""
    r, found = record, []
    if r["target_us"] is not None and r["median_us"] > r["target_us"]:
        found.append(f"aim {r['target_us']:g} us")
    if r["target_over_dense"] is not None and r["over_dense"] < r["target_over_dense"]:
        found.append(f"aim {r['target_over_dense']:g} x dense")
    if r["target_tflops"] is not None and r["tflops"] < r["target_tflops"]:
        found.append(f"aim {r['target_tflops']:g} TFLOP/s")
    if None not in (r["target_peak_bytes"], r["peak_bytes"]) and r["peak_bytes"] > r["target_peak_bytes"]:
        found.append(f"aim {r['target_peak_bytes'] / 2**20:g} MiB")
    return found
