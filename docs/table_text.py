"""Tables of a page as text: rows, times, and the line under a table that says where its numbers come from."""

from __future__ import annotations

from qp_kernels import results


def plain_table(lines: list[str], about: str, found: results.Results) -> str:
    head, *body = lines
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join([head, rule, *body, "", f"<sub>{about} {found.caption}.</sub>", ""])


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def time(us: float) -> str:
    """Time in µs or ms.

    >>> time(3.25), time(325.0), time(3250.0)
    ('3.2 µs', '325 µs', '3.25 ms')
    """
    return f"{us:.1f} µs" if us < 100 else f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms"
