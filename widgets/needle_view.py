"""What `NeedleExplorer` shows: a model's answer under one selection, where the needle's key stands, the line over c."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from activations.needle import Needle, Reply, least_budget
from activations.selection import Selection
from widgets.pivot_view import NAMES
from widgets.text import percent

POINTS = 14  # budgets that the line over c is drawn at
AROUND = 14  # tokens beside the needle, and before the prompt's end, that are shown
WORDS = {**NAMES, "full": "full attention"}


class Asked(NamedTuple):
    """What makes the prompt. sentence: "" is one from the seed. depth: In percent."""

    length: int
    seed: int
    depth: float
    sentence: str


class Setting(NamedTuple):
    """The values of the controls that select, at one moment: they may change under a job, which reads them once."""

    system: str
    k: int
    g: int
    proxy: str
    c: int
    backend: str

    @property
    def least(self) -> int:
        """The smallest budget of Refine that is legal."""
        return least_budget(self.k, self.g)

    @property
    def budget(self) -> int:
        """c, raised to what is legal."""
        return max(self.c, self.least)

    def selection(self) -> Selection:
        if self.system in ("full", "dense"):
            return Selection(self.system, self.k, backend=self.backend)
        budget = self.budget if self.system == "refine" else None
        return Selection(self.system, self.k, self.g, budget, proxy=self.proxy, backend=self.backend)

    def by(self, system: str) -> Selection:
        """Another system with the same numbers."""
        return self._replace(system=system).selection()

    def compared(self) -> tuple[Selection, Selection, Selection]:
        """What a view shows beside each other: this one, every key, and each query's own best."""
        return self.selection(), self.by("full"), self.by("dense")

    def budgets(self, n_keys: int) -> list[int]:
        """Where the line over c is drawn: from the least legal one to all keys."""
        return sorted({round(x) for x in np.geomspace(self.least, max(self.least, n_keys), POINTS)})

    def at_budget(self, c: int) -> Selection:
        return self._replace(c=c).by("refine")


@dataclass(frozen=True, eq=False)
class NeedleView:
    """What the panel shows.

    Attributes:
        made: The prompt. tokens: Its N tokens. at: The setting. layers: Those that select.
        shown, full, dense: What the model answers at the setting, with every key, and with each query's own best k.
        curve: c -> what it answers with Refine, as far as that is known.
    """

    made: Needle
    tokens: list[str]
    at: Setting
    layers: list[int]
    shown: Reply
    full: Reply
    dense: Reply
    curve: dict[int, Reply] = field(default_factory=dict)

    @property
    def n_keys(self) -> int:
        return self.made.prompt

    @property
    def cut(self) -> int | None:
        """How many keys are taken at the setting: c, or k; None where all are."""
        return None if self.at.system == "full" else self.at.budget if self.at.system == "refine" else self.at.k

    @cached_property
    def chosen(self) -> np.ndarray:
        """Positions that the answering query attends to in some layer; empty under full attention."""
        found = [place.chosen for place in self.shown.places.values()]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    @cached_property
    def stretches(self) -> tuple[range, range]:
        """The tokens that are spelt out: the needle among its neighbours, and the prompt's end."""
        line, end = self.made.line, self.made.question
        around = range(max(0, line.start - AROUND), min(self.n_keys, line.stop + AROUND))
        return around, range(max(around.stop, end.start - AROUND), self.n_keys)


def quoted(reply: Reply) -> str:
    """What a model answers, in quotes."""
    return repr("".join(reply.said).strip(" ") or "".join(reply.said))


def verdict(reply: Reply) -> str:
    return "right" if reply.right else "wrong"


def name_of(at: Setting) -> str:
    """The system with its numbers."""
    if at.system == "full":
        return WORDS["full"]
    if at.system == "dense":
        return f"dense selection of k = {at.k:,}"
    budget = f", c = {at.budget:,}" if at.system == "refine" else ""
    return f"{WORDS[at.system]} (k = {at.k:,}, g = {at.g}, proxy {at.proxy}{budget})"


def sentence(view: NeedleView) -> str:
    """What a view shows, in a line."""
    at, shown = view.at, view.shown
    says = f"{name_of(at)}: the model answers {quoted(shown)}, which is {verdict(shown)}"
    chance = f"{view.made.answer.strip()!r} has a probability of {percent(shown.probability)}"
    return " · ".join([f"{says}; {chance}", *fate(view), *notes(view)])


def fate(view: NeedleView) -> list[str]:
    """Where the needle's key got lost, and how far it is behind there.

    That is no budget which would be enough: another one changes what the layers after the first are given, and so
    their order.
    """
    places = view.shown.places
    lost = [layer for layer, place in places.items() if not place.selected]
    if not places:
        return []
    if not lost:
        return ["the needle's key is selected in every layer"]
    where = f"layer {lost[0]}" if len(lost) == 1 else f"layers {', '.join(map(str, lost[:-1]))} and {lost[-1]}"
    return [f"the needle's key is not selected in {where}{_behind(view, lost)}"]


def _behind(view: NeedleView, lost: list[int]) -> str:
    """Number of the needle's key at this setting, in the one of these layers where it is furthest from being taken."""
    places = view.shown.places
    if outside := [layer for layer in lost if not places[layer].candidate and not places[layer].is_dense]:
        layer = max(outside, key=lambda layer: places[layer].needed)
        who, number, what = "its group's proxy", places[layer].needed, "c" if view.at.system == "refine" else "k"
        taken = places[layer].cut
    else:
        layer = max(lost, key=lambda layer: places[layer].rank)
        who, number, what, taken = "the query", places[layer].rank + 1, "k", view.at.k
    if number > view.n_keys:  # no budget is enough
        return ""
    there = "there" if len(lost) == 1 else f"in layer {layer}"
    return f": {there} {who} has it as number {number:,} at this setting, and {what} = {taken:,} are taken"


def notes(view: NeedleView) -> list[str]:
    """What the reader must know to read the picture right."""
    at, out = view.at, []
    if at.system == "refine" and at.c < at.least:
        out.append(f"c = {at.c:,} is below k + 2g − 1, which Refine needs in prefill: c = {at.least:,} is used")
    if at.system in ("refine", "reuse") and any(place.is_dense for place in view.shown.places.values()):
        why = "a group of one" if at.g == 1 else "the guard: the prefix is no longer than that"
        out.append(f"the queries search by themselves ({why})")
    if not view.full.right:
        out.append("even full attention does not answer this one: try another seed")
    elif not view.dense.right and at.system != "dense":
        out.append(f"k = {at.k:,} is too few keys even for dense selection")
    return out


def table(view: NeedleView) -> str:
    """HTML: the prompt in a line, and what the model answers with every key, with dense selection and as chosen."""
    made, at = view.made, view.at
    hay = len(view.tokens) - len(made.line) - len(made.question)
    asked = f"… <b>{html.escape(made.asked + made.answer)}</b>. … {hay:,} tokens of other sentences … "
    asked += f"<b>{html.escape(made.asked)} ▁▁▁</b>"
    rows = {"full": ("full attention, every key", view.full)}
    rows["dense"] = (f"dense selection, each query's own best {at.k:,}", view.dense)
    if at.system not in rows:
        rows[at.system] = (name_of(at), view.shown)
    cells = "".join(
        _row(name, reply, "▸ " if key == at.system else "", key == at.system) for key, (name, reply) in rows.items()
    )
    right = html.escape(made.answer.strip())
    head = f"<tr><th>the model reads with</th><th>answers</th><th></th><th>probability of ‘{right}’</th></tr>"
    return f"<div class='qp-summary'>{asked}</div><table class='qp-numbers'>{head}{cells}</table>"


def _row(name: str, reply: Reply, mark: str, is_open: bool) -> str:
    tag = "b" if is_open else "span"
    kind, sign = ("kept", "✔ right") if reply.right else ("new", "✖ wrong")
    sign = f"<span class='qp-legend qp-{kind}'>{sign}</span>"
    said = html.escape(quoted(reply).strip("'"))
    cells = [f"{mark}{html.escape(name)}", said, sign, percent(reply.probability)]
    return "<tr>" + "".join(f"<td><{tag}>{cell}</{tag}></td>" for cell in cells) + "</tr>"


def layer_rows(view: NeedleView) -> dict[str, list]:
    """Columns: a row a layer."""
    places = view.shown.places
    fields = ("rank", "needed", "cut", "is_dense", "candidate", "selected")
    return {"layer": list(places), **{name: [getattr(one, name) for one in places.values()] for name in fields}}


def curve_rows(view: NeedleView) -> dict[str, list]:
    """Columns: a row a budget, ascending."""
    known = sorted(view.curve)
    replies = [view.curve[c] for c in known]
    lost = [[n for n, place in one.places.items() if not place.selected] for one in replies]
    return {
        "c": known,
        "probability": [one.probability for one in replies],
        "right": [one.right for one in replies],
        "answer": ["".join(one.said) for one in replies],
        "lost_in": lost,
    }
