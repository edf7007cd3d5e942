"""How tokens and numbers are written in figures and lines of text: escaped, visible, short."""

from __future__ import annotations

import html

VISIBLE = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "␣", "\u200b": "·"})


def escape(text: str, limit: int = 22) -> str:
    """A token as plotly text: HTML escaped, spaces and control characters visible, long ones cut in the middle."""
    text = text.translate(VISIBLE)
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    body = text.lstrip(" ")
    text = "␣" * (len(text) - len(body)) + body
    trailing = len(text) - len(text.rstrip(" "))
    text = text.rstrip(" ") + "␣" * trailing
    if len(text) > limit:
        text = f"{text[: limit - 6]}…{text[-5:]}"
    return html.escape(text)


def percent(share: float) -> str:
    """A probability as people read it: 3 digits, and powers of ten where per cent would be all zeros."""
    if share == 0:
        return "0"
    return f"{100 * share:.3g} %" if share >= 1e-5 else f"{share:.0e}".replace("e-0", "e-")


def number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3g}"
