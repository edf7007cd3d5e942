"""What `OverlapExplorer` shows: one window of queries at one k and g, one query's keys, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from widgets.index_view import IndexView
from widgets.overlap_measures import Chosen, chance_joint, chance_union
from widgets.ranked_windows import Ranked
from widgets.text import escape, short


class Setting(NamedTuple):
    """The values of the controls at one moment: they may change under a job, which reads them once."""

    layer: str
    query: int
    k: int
    g: int
    place: int
    backend: str


@dataclass(frozen=True)
class LayerNumbers:
    """How alike neighbours choose in one layer; NaN where it has none, or was not read yet."""

    adjacent: float = np.nan
    union: float = np.nan
    joint: float = np.nan

    @classmethod
    def of(cls, chosen: Chosen, g: int) -> LayerNumbers:
        return cls(chosen.adjacent, *chosen.union_and_joint(g))


@dataclass(frozen=True, eq=False)
class OverlapView(IndexView):
    """What the panel shows.

    Attributes:
        chosen: Selections of the open layer's window. g: Queries a group.
        layers: Name of every layer -> its numbers for the window of the same query.
    """

    chosen: Chosen
    g: int
    layers: dict[str, LayerNumbers]

    @property
    def ranked(self) -> Ranked:
        return self.chosen.ranked

    @cached_property
    def now(self) -> LayerNumbers:
        return LayerNumbers.of(self.chosen, self.g)

    @property
    def neighbour(self) -> int | None:
        """The row of the window that the open query is compared with: the one before, for the first the next."""
        if len(self.rows) == 1:
            return None
        return self.row - 1 if self.row else 1

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the open query's keys, ascending: those that its neighbour has as well, and the others."""
        mine = self.chosen.keys(self.row)
        if self.neighbour is None:
            return mine[:0], mine
        shared = self.chosen.ranked.rank[self.neighbour, mine] < self.chosen.k
        return mine[shared], mine[~shared]


def sentence(view: OverlapView) -> str:
    """What a view shows, in a line."""
    chosen, g, now = view.chosen, view.g, view.now
    most = int(chosen.ranked.count.max())
    layer = f"{view.layer.title}, " if view.layer.name else ""
    share = f" ({short(min(chosen.k / most, 1.0))})" if most else ""
    setting = f"{layer}k = {chosen.k:,} of up to {most:,} keys{share}"
    return " · ".join([f"{setting}: {_neighbours(view, now)}", _group(g, now), _open(view), *notes(view)])


def _neighbours(view: OverlapView, now: LayerNumbers) -> str:
    if np.isnan(now.adjacent):
        return "no two neighbouring queries to compare"
    step = view.chosen.ranked.step
    apart = "" if step == 1 else f" {step:,} tokens apart"
    return f"neighbours{apart} share {short(now.adjacent)} (by chance {short(view.chosen.share)})"


def _group(g: int, now: LayerNumbers) -> str:
    if np.isnan(now.union):
        return f"no {g} neighbouring queries form a group"
    return f"groups of {g}: union {now.union:.2f} × k, joint {short(now.joint)} of k"


def _open(view: OverlapView) -> str:
    size, name = int(view.chosen.size[view.row]), view.name_of(view.row)
    if not size:
        return f"{name} selects no key"
    if view.neighbour is None:
        return f"{name} selects {size:,}"
    return f"{name} shares {len(view.keys()[0]):,} of {size:,} with query {view.rows[view.neighbour]}"


def notes(view: OverlapView) -> list[str]:
    """What the reader must know to read the numbers right."""
    chosen, ranked, T = view.chosen, view.chosen.ranked, len(view.rows)
    out = []
    if none := int((ranked.count == 0).sum()):
        out.append(f"{none} of {T} queries select nothing: they see no key, or every score is NaN")
    if short_ := int(((ranked.count <= chosen.k) & (ranked.count > 0)).sum()):
        out.append(f"{short_} of {T} queries have no more than k keys and select them all")
    if ranked.alike:
        out.append(f"{ranked.alike} of {T} queries score all keys alike: the lowest positions are taken")
    elif chosen.tied:
        out.append(f"in {chosen.tied} of {T} queries the cut goes through equal scores: the lowest positions stay")
    return out


def comparing(view: OverlapView) -> list[str]:
    """Lines of Python that make the view's numbers of `indices`; they name the rows where not all of them count."""
    near, starts, T, g = view.chosen.near, view.chosen.groups(view.g), len(view.rows), view.g
    lines, first, second, grouped = [], "indices[:-1]", "indices[1:]", "indices"
    if len(near) < T - 1:
        lines.append(f"near = {near.tolist()}  # rows whose next one is a neighbour; both select keys")
        first, second = "indices[near]", "indices[[row + 1 for row in near]]"
    if not np.array_equal(starts, np.arange(0, T - g + 1, g)):
        lines.append(f"starts = {starts.tolist()}  # first rows of the groups whose members all select keys")
        grouped = f"indices[[row + member for row in starts for member in range({g})]]"
    return [
        *lines,
        f"adjacent = index_metrics.overlap({first}, {second}).mean()",
        f"joint, union = (part.mean() for part in index_metrics.joint_and_union({grouped}, {g}))",
    ]


def frames(view: OverlapView) -> dict[str, dict]:
    """Columns of the tables that `to_frame` gives."""
    chosen, ranked, rows = view.chosen, view.chosen.ranked, np.arange(len(view.rows))
    tokens = view.layer.capture.tokens
    before = np.full(len(rows), np.nan)
    before[1:] = np.diagonal(chosen.overlap, 1)
    distances, overlap = chosen.by_distance
    sizes, union, joint = chosen.over_g
    share = chosen.share
    return {
        "queries": {
            "query": list(view.rows),
            "position": ranked.positions,
            "token": [tokens[int(p)] for p in ranked.positions],
            "keys": ranked.count,
            "selected": chosen.size,
            "overlap_with_previous": before,
            "overlap_with_open": chosen.overlap[view.row],
        },
        "distance": {"distance": distances, "overlap": overlap},
        "groups": {
            "g": sizes,
            "union": union,
            "joint": joint,
            "union_by_chance": chance_union(share, sizes),
            "joint_by_chance": chance_joint(share, sizes),
        },
        "layers": {
            "layer": list(view.layers),
            **{name: [getattr(n, name) for n in view.layers.values()] for name in ("adjacent", "union", "joint")},
        },
    }


def legend(view: OverlapView) -> str:
    """HTML above the text: where it is from, and what its marks mean."""
    shown, (shared, new) = view.stretch(), view.keys()
    here = sum(int(((keys >= shown.start) & (keys < shown.stop)).sum()) for keys in (shared, new))
    where = f"Tokens {shown[0]:,} to {shown[-1]:,} of {view.n_keys:,}, with {here:,} of the {len(shared) + len(new):,}"
    marks = f"<span class='qp-legend qp-new'>key of query {view.query}"
    if view.neighbour is not None:
        both = f"key that query {view.rows[view.neighbour]} wants too"
        marks = f"<span class='qp-legend qp-kept'>{both}</span>{marks} alone"
    text = f"<b>{escape(view.layer.capture.tokens[view.position], 24)}</b> (query {view.query})"
    return f"<div class='qp-caption'>{where} keys of {text}: {marks}</span></div>"
