"""How tokens and numbers are written in figures and lines of text: escaped, visible, short."""

from __future__ import annotations

import html
import math
import unicodedata

DECADES = {1: "1", 10: "10", 100: "100", 1e3: "1k", 1e4: "10k", 1e5: "100k", 1e6: "1M"}  # ticks of a logarithmic axis
VISIBLE = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "␣", "\u200b": "·"})


def escape(text: str, limit: int = 20) -> str:
    """A token as plotly text: HTML escaped, spaces and control characters visible, long ones cut in the middle.

    Args:
        limit: Width in letters; East Asian ones count as two.
    """
    text = text.translate(VISIBLE)
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    body = text.lstrip(" ")
    text = "␣" * (len(text) - len(body)) + body
    trailing = len(text) - len(text.rstrip(" "))
    text = text.rstrip(" ") + "␣" * trailing
    if width(text) > limit:
        start, end = limit - 6, 5
        while width(text[:start]) > limit - 6:
            start -= 1
        while width(text[-end:]) > 5:
            end -= 1
        text = f"{text[:start]}…{text[-end:]}"
    return html.escape(text).replace("&quot;", "&#34;")  # plotly knows few names of characters, and all numbers


def width(text: str) -> int:
    """Width in letters of a fixed-width font."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def percent(share: float) -> str:
    """A probability as people read it: 3 digits, more where it is nearly all, a power of ten if nearly none."""
    if share == 0 or share >= 1:  # a sum of float32 shares may be beyond 1 by a rounding
        return "100 %" if share else "0"
    if share > 0.99:
        digits = min(10, max(0, math.ceil(-math.log10(1 - share) - 0.01) - 2))
        return f"{100 * share:.{digits}f} %"
    return f"{100 * share:.3g} %" if share >= 1e-5 else f"{share:.0e}".replace("e-0", "e-")


def number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3g}"


def short(share: float) -> str:
    """A share as people read it; a dash where there is none."""
    return "–" if math.isnan(share) else "0 %" if share == 0 else percent(share)


def rough(share: float) -> str:
    """The same in a figure, where whole percents do."""
    return f"{100 * share:.0f} %" if 0.01 <= share <= 0.99 else short(share)
