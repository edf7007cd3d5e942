"""What `IndexerExplorer` shows: one query of an indexer against its keys, from the products to the selection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from qp_kernels.pivot.reference import in_float32
from widgets.index_view import IndexView
from widgets.ranked_windows import Ranked
from widgets.text import escape, number, short

SHOWN = 60  # keys that are drawn at once
NAMED = 6  # keys that a sentence names


class Setting(NamedTuple):
    """The values of the controls at one moment: they may change under a job, which reads them once."""

    layer: str
    query: int
    k: int
    place: int
    backend: str


@dataclass(frozen=True, eq=False)
class Scored:
    """One query against all N keys of its layer; NaN where it may not look.

    Attributes:
        products: [H, N], q_j · k_s of every head. weights: [H].
        score: [N], the weighted sum over heads of the positive products, as it was ranked.
    """

    products: np.ndarray
    weights: np.ndarray
    score: np.ndarray

    @classmethod
    @in_float32
    def of(cls, capture, row: int, score: np.ndarray) -> Scored:
        products = (capture.q[row].float() @ capture.k.float().t()).cpu().numpy()
        products[:, : int(capture.lo[row])] = products[:, int(capture.hi[row]) :] = np.nan
        weights = capture.w[row].float().cpu().numpy()
        return cls(products, weights, score)

    @property
    def weighted(self) -> np.ndarray:
        """[H, N]: what each head adds to each score; NaN also for an infinite weight of nothing."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.weights[:, None] * np.maximum(self.products, 0)


@dataclass(frozen=True, eq=False)
class IndexerView(IndexView):
    """What the panel shows.

    Attributes:
        window: The ranked window of the open query. scored: That query against all keys. k: Keys selected.
    """

    window: Ranked
    scored: Scored
    k: int

    @property
    def ranked(self) -> Ranked:
        return self.window

    @property
    def rank(self) -> np.ndarray:
        """[N]: 0 for the best key, a huge number where none may be selected."""
        return self.ranked.rank[self.row]

    @property
    def count(self) -> int:
        """How many keys may be selected."""
        return int(self.ranked.count[self.row])

    @cached_property
    def kept(self) -> np.ndarray:
        """[N] bool: the selection."""
        return self.rank < self.k

    @property
    def size(self) -> int:
        """How many keys are selected: fewer than k where there are no more."""
        return min(self.k, self.count)

    @cached_property
    def order(self) -> np.ndarray:
        """Positions of the keys that may be selected, best first."""
        return np.argsort(self.rank, kind="stable")[: self.count]

    @property
    def cut(self) -> float:
        """The lowest score that is kept; NaN where nothing is."""
        return float(self.scored.score[self.order[self.size - 1]]) if self.size else np.nan

    @cached_property
    def mass(self) -> np.ndarray | None:
        """[N]: what the layer's own attention gives each key of this query; None where that is not known."""
        mass = self.layer.capture.mass
        row = None if mass is None else mass[self.query].float().cpu().numpy()
        return None if row is None or np.isnan(row).any() else row

    @property
    def captured(self) -> float:
        """The mass on the selected keys; NaN where it is not known."""
        return np.nan if self.mass is None else _share(self.mass[self.kept])

    @property
    def most(self) -> float:
        """The mass that any so many keys hold at most."""
        return np.nan if self.mass is None else _share(np.sort(self.mass)[::-1][: self.size])

    def stretch(self) -> range:
        """The keys that are drawn, and whose tokens are shown."""
        start = max(0, min(self.place - SHOWN // 2, self.n_keys - SHOWN))
        return range(start, min(start + SHOWN, self.n_keys))

    def token_of(self, position: int) -> str:
        """A key's token, or its position where tokens are not known."""
        return self.layer.capture.tokens[position] if self.layer.has_text else f"key {position}"

    @property
    def name(self) -> str:
        """The query in words."""
        token = f" {self.token_of(self.position)!r}" if self.layer.has_text else ""
        return f"query {self.query}{token}" + (f" (position {self.position:,})" if self.query != self.position else "")


def _share(mass: np.ndarray) -> float:
    """A sum of float32 shares, whose last digits mean nothing."""
    return min(1.0, round(float(mass.sum(dtype=np.float64)), 6))


def sentence(view: IndexerView) -> str:
    """What a view shows, in a line."""
    layer = f"{view.layer.title}, " if view.layer.name else ""
    if not view.count:
        return f"{layer}{view.name} selects no key: it sees none, or every score is NaN"
    first = [view.token_of(int(key)) for key in view.order[: view.size][:NAMED]]
    more = f" and {view.size - len(first):,} more" if view.size > len(first) else ""
    named = ", ".join(repr(token) for token in first) + more
    parts = [f"{layer}{view.name} keeps {view.size:,} of {view.count:,} keys: {named}"]
    parts.append(f"lowest kept score {number(view.cut)}")
    if view.mass is not None:
        parts.append(
            f"attention gives them {short(view.captured)} of its mass (the best {view.size:,}: {short(view.most)})"
        )
    return " · ".join([*parts, *notes(view)])


def notes(view: IndexerView) -> list[str]:
    """What the reader must know to read the picture right."""
    seen = view.scored.products[:, ~np.isnan(view.scored.score)]
    negative = float((seen < 0).mean()) if seen.size else 0.0
    out = [f"ReLU sets {short(negative)} of the products to 0"] if negative else []
    if view.count <= view.k:
        out.append("no more than k keys: all are kept")
    elif view.ranked.equal[view.row, view.size - 1]:
        out.append("the cut goes through equal scores: the lowest positions stay")
    return out


def legend(view: IndexerView) -> str:
    """HTML above the text: what its marks mean, and which part of a long text it is."""
    part = ""
    keys = view.stretch()
    if len(keys) < view.n_keys:
        here = int(view.kept[keys.start : keys.stop].sum())
        part = f"Tokens {keys[0]:,} to {keys[-1]:,} of {view.n_keys:,}, with {here:,} of them: "
    token = f"<b>{escape(view.token_of(view.position), 24)}</b>"
    return f"<div class='qp-caption'>{part}<span class='qp-legend qp-kept'>key that {token} selects</span></div>"


def frame(view: IndexerView) -> dict[str, list]:
    """Columns of the table that `to_frame` gives: a row a key that may be selected, by position."""
    seen = np.sort(view.order)
    columns = {"position": seen, "token": [view.token_of(int(key)) for key in seen]}
    columns |= {f"product_{head}": row[seen].astype(float) for head, row in enumerate(view.scored.products)}
    columns |= {"score": view.scored.score[seen].astype(float), "rank": view.rank[seen], "kept": view.kept[seen]}
    return columns if view.mass is None else columns | {"mass": view.mass[seen].astype(float)}
