"""One row of logits as a histogram: its bins, the normal curve over it, and vertical lines through it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

BINS = 110
HEADROOM = 40  # the histogram's axis ends at this multiple of the highest bar; the labels of the lines stand there
# Each line ends just above its own label, so that none runs through the label of another.
LABEL_LEVEL = {"cut": 24, "threshold": 10, "min_p": 4.2, "top_n_sigma": 1.8}
# Beyond this share of the axis the label stands left.
SIDE = {"cut": 0.8, "threshold": 0.4, "min_p": 0.4, "top_n_sigma": 0.4}
BARS = {"type": "bar", "hovertemplate": "logit %{x:.2f}: %{y} tokens<extra></extra>"}


@dataclass(frozen=True)
class Histogram:
    """Bins of equal width over the bulk of a row.

    Attributes:
        left: [M] left edges [logit]. width: Of a bin [logit].
        at_least: [M + 1] finite entries at or above each edge. finite: Of all.
    """

    left: np.ndarray
    width: float
    at_least: np.ndarray
    finite: int

    @property
    def centres(self) -> np.ndarray:
        return self.left + self.width / 2

    @property
    def range(self) -> tuple[float, float]:
        pad = 2 * self.width
        return float(self.left[0] - pad), float(self.left[-1] + self.width + pad)

    @property
    def counts(self) -> np.ndarray:
        """[M] entries in each bin."""
        return self.prefix_counts(self.finite)

    @property
    def outside(self) -> int:
        """Entries beyond either end, which would have stretched the axis."""
        return self.finite - int(self.at_least[0] - self.at_least[-1])

    def prefix_counts(self, kept: int) -> np.ndarray:
        """[M] how many of the `kept` largest finite entries fall into each bin."""
        inside = np.minimum(self.at_least, kept)
        return inside[:-1] - inside[1:]


def histogram(descending: np.ndarray, mantissa_bits: int = 23) -> Histogram:
    """Bins of a sorted finite row; of 16-bit rows (`mantissa_bits` 7 or 10) whole steps, none empty by rounding."""
    last = len(descending) - 1
    top, upper, lower, bottom = (float(descending[round(share * last)]) for share in (0, 0.25, 0.75, 1))
    spread = upper - lower
    high = min(top, upper + 20 * spread) if spread else top
    low = max(bottom, lower - 8 * spread) if spread else bottom
    largest = max(abs(high), abs(low))
    step = 2.0 ** (math.frexp(largest)[1] - 1 - mantissa_bits) if largest else 1.0
    width = max(math.ceil((high - low) / BINS / step) * step, step, 1e-6)
    edges = np.arange(math.floor(low / width), math.floor(high / width) + 2) * width
    at_least = np.searchsorted(-descending, (-edges).astype(np.float32), side="right")
    return Histogram(edges[:-1], width, at_least, len(descending))


def normal_curve(hist: Histogram | None, mean: float, std: float, count: int) -> dict:
    """N(mean, std) with the area of `count` entries in these bins."""
    if hist is None or not std > 0:
        return {"x": [], "y": []}
    x = np.linspace(mean - 5 * std, mean + 5 * std, 121)
    density = np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    return {"x": x, "y": count * hist.width * density}


def split_bars(hist: Histogram | None, kept: int) -> dict[str, dict]:
    """The bars of the `kept` largest finite entries, and of the others on top of them."""
    if hist is None:
        return {"kept": {"x": [], "y": []}, "dropped": {"x": [], "y": []}}
    high = hist.prefix_counts(max(0, kept))
    rest = hist.counts - high
    # Empty bins are left out: a bar without height costs the browser as much as any other.
    stays, goes = high > 0, rest > 0
    return {
        "kept": {"x": hist.centres[stays], "width": hist.width, "y": high[stays]},
        "dropped": {"x": hist.centres[goes], "width": hist.width, "y": rest[goes], "base": high[goes]},
    }


def mark(name: str, x: float, text: str, *, hist: Histogram | None, height: float) -> dict:
    """A vertical line at x whose label stands above the bars, on the side with room."""
    if hist is None or not np.isfinite(x):
        return {"x": [], "y": [], "text": []}
    low, high = hist.range
    level, left = height * LABEL_LEVEL[name], x > low + SIDE[name] * (high - low)
    if not low <= x <= high:  # only its label, at the edge that it is beyond
        inset = 0.005 * (high - low)  # on the very edge it may be hidden
        edge, text = (low + inset, f"← {text}") if x < low else (high - inset, f"{text} →")
        line = {"x": [edge] * 3, "y": [level] * 3}
    else:
        line = {"x": [x] * 3, "y": [0.5, level, level * 1.5]}
    where = {"text": ["", f" {text} ", ""], "textposition": "middle left" if left else "middle right"}
    return {**line, **where, "hovertemplate": f"{text}, logit {x:.3f}<extra></extra>"}


def mantissa_bits(row: torch.Tensor) -> int:
    """23, 10 or 7: the coarsest float type that holds every value of the row."""
    for dtype, bits in ((torch.bfloat16, 7), (torch.float16, 10)):
        if torch.equal(torch.nan_to_num(row.to(dtype).float()), torch.nan_to_num(row)):
            return bits
    return 23
