"""The words of `PivotExplorer`: its sentence and notes, tables, the legend of its text, and its numbers as HTML."""

from __future__ import annotations

import html

import numpy as np

from qp_kernels import index_metrics
from widgets.pivot_lanes import hisa_block, hisa_blocks, misa_block, misa_heads
from widgets.pivot_view import NAMES, PivotView
from widgets.text import escape, short

MEBI = 1 << 20
PROXY_WORDS = {"mean": "their mean", "first": "its first", "last": "its last"}


def sentence(view: PivotView) -> str:
    """What a view shows, in a line."""
    at, most = view.at, int(view.ranked.count.max(initial=0))
    layer = f"{view.layer.title}, " if view.layer.name else ""
    setting = f"{layer}k = {at.k:,} of up to {most:,} keys"
    return " · ".join([f"{setting}: {_found(view)}", *_kept(view), _saved(view), _open(view), *notes(view)])


def _found(view: PivotView) -> str:
    if not bool(view.queries.some.any()):
        return "no query selects a key"
    parts = [f"{NAMES[name]}{_how(view, name)} finds {short(view.share(name))}" for name in ("refine", "reuse")]
    return f"groups of {view.at.g} search once; of the keys a query wants {' and '.join(parts)}"


def _how(view: PivotView, name: str) -> str:
    return f" (c = {view.rule.budget:,})" if name == "refine" else ""


def _kept(view: PivotView) -> list[str]:
    if view.mass is None or not bool(view.queries.some.any()):
        return []
    own, best = view.mass
    kept = f"{NAMES[view.at.mode]} keeps {short(view.attention(view.at.mode))} of the attention"
    return [f"{kept} (own keys {short(own)}, best possible {short(best)})"]


def _saved(view: PivotView) -> str:
    less = view.less(view.at.mode)
    if not view.systems["dense"].cost.operations:
        return "nothing to search"
    if f"{less:.2f}" == "1.00":
        return f"{NAMES[view.at.mode]} makes as many multiply-adds as dense"
    change = f"{less:.2f} × fewer multiply-adds than" if less >= 1 else f"{1 / less:.2f} × as many multiply-adds as"
    return f"{NAMES[view.at.mode]} makes {change} dense"


def _open(view: PivotView) -> str:
    both, lost, gained = view.keys
    name = view.name_of(view.row)
    if not len(both) + len(lost):
        return f"{name} selects no key"
    return f"{name} loses {len(lost):,} of its {len(both) + len(lost):,} keys"


def notes(view: PivotView) -> list[str]:
    """What the reader must know to read the numbers right."""
    ranked, at, T = view.ranked, view.at, len(view.rows)
    out = [*raised(at)]
    if none := int((ranked.count == 0).sum()):
        out.append(f"{none} of {T} queries select nothing: they see no key, or every score is NaN")
    if dense := int((view.dense & (ranked.count > 0)).sum()):
        why = "have no neighbours" if (view.lane.groups.stop - view.lane.groups.start == 1).all() else "see few keys"
        out.append(f"{dense} of {T} queries are on the dense path: they {why if at.g > 1 else 'are groups of one'}")
    if few := int(((ranked.count <= at.k) & (ranked.count > 0)).sum()):
        out.append(f"{few} of {T} queries have no more than k keys and want them all")
    if ranked.alike:
        out.append(f"{ranked.alike} of {T} queries score all keys alike: the lowest positions are taken")
    return [*out, *(f"{NAMES[name]}: {why}" for name, why in view.missing.items())]


def raised(at) -> list[str]:
    """Which entries are below what is legal, and what is used instead."""
    out, rule = [], at.rule()
    if 0 < at.window < rule.window:
        out.append(f"W = {at.window:,} is less than g: W = {rule.window:,} is used")
    if at.c < rule.budget:
        sum_ = f"k + W + g − 1 = {rule.budget:,}"
        out.append(f"c = {at.c:,} is less than {sum_}, which Refine needs in prefill: c = {rule.budget:,} is used")
    return out


def legend(view: PivotView) -> str:
    """HTML above the text: where it is from, and what its marks mean."""
    shown, (both, lost, _) = view.stretch(), view.keys
    here = sum(int(((keys >= shown.start) & (keys < shown.stop)).sum()) for keys in (both, lost))
    where = f"Tokens {shown[0]:,} to {shown[-1]:,} of {view.n_keys:,}, with {here:,} of the {len(both) + len(lost):,}"
    marks = "".join(
        f"<span class='qp-legend qp-{kind}'>{words}</span>"
        for kind, words in (("kept", "kept"), ("new", f"lost by {NAMES[view.at.mode]}"), ("gained", "taken instead"))
    )
    text = f"<b>{escape(view.layer.capture.tokens[view.position], 24)}</b> (query {view.query})"
    return f"<div class='qp-caption'>{where} keys of {text}: {marks}</div>"


def frames(view: PivotView) -> dict[str, dict]:
    """Columns of the tables that `to_frame` gives."""
    queries, curves, kept = view.queries, view.curves, view.open.kept
    of = view.lane.of.numpy()
    unknown = np.full(len(view.rows), np.nan)
    both, lost, gained = view.keys
    keys = np.concatenate([both, lost, gained])
    state = np.repeat(["kept", "lost", "gained"], [len(both), len(lost), len(gained)])
    by_place, tokens = np.argsort(keys, kind="stable"), view.layer.capture.tokens
    return {
        "queries": {
            "query": list(view.rows),
            "position": view.ranked.positions,
            "token": [tokens[int(p)] for p in view.ranked.positions],
            "group": of,
            "member": np.arange(len(of)) - view.lane.groups.start[of],
            "dense": view.dense,
            "selected": queries.size(view.at.k).numpy(),
            "recall": kept.recall.numpy(),
            "attention": unknown if kept.mass is None else kept.mass.numpy(),
            "regret": kept.regret.numpy(),
            "own_kept": view.own_kept,
        },
        "members": {"member": np.arange(len(view.members["lost"])) + 1, **view.members},
        "g": {
            "g": curves.g,
            "refine": curves.refine,
            "reuse": curves.reuse,
            "refine_attention": curves.refine_mass,
            "reuse_attention": curves.reuse_mass,
        },
        "c": {"c": curves.c, "refine": curves.over_c, "refine_attention": curves.over_c_mass},
        "systems": _systems(view),
        "keys": {
            "position": keys[by_place],
            "token": [tokens[int(p)] for p in keys[by_place]],
            "state": state[by_place],
            "own_rank": queries.rank[view.row][keys[by_place]].numpy() if len(keys) else np.empty(0, np.int32),
        },
    }


def _systems(view: PivotView) -> dict:
    names = list(view.systems)
    costs = [view.systems[name].cost for name in names]
    return {
        "system": names,
        "recall": [view.share(name) for name in names],
        "attention": [view.attention(name) for name in names],
        **{
            part: [getattr(one, part) for one in costs] for part in ("scan", "choose", "rescore", "operations", "bytes")
        },
        "times_fewer": [view.less(name) for name in names],
        "time_us": [view.times_us.get(name, np.nan) for name in names],
    }


def numbers(view: PivotView) -> str:
    """The systems as an HTML table: what they keep, multiply-adds in millions, bytes, and measured time."""
    with_mass = view.mass is not None
    head = ["", "keys found", *["attention"] * with_mass, "scan", "proxy, router", "re-score", "multiply-adds"]
    head += ["× fewer", "MiB moved", *["time"] * bool(view.times_us)]
    cells = "".join(f"<th>{text}</th>" for text in head)
    rows = ["".join(f"<td>{text}</td>" for text in _row(view, name, with_mass)) for name in view.systems]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table class='qp-numbers'><tr>{cells}</tr>{body}</table>"


def _row(view: PivotView, name: str, with_mass: bool) -> list[str]:
    one, with_time = view.systems[name], bool(view.times_us)
    title = f"<b>{NAMES[name]}</b>" if name == view.at.mode else NAMES[name]
    kept = [short(view.share(name)), *[short(view.attention(name))] * with_mass]
    if one.used:
        return [f"{title} of {html.escape(one.used)}", *kept, *["–"] * (6 + with_time)]
    us = view.times_us.get(name)
    time = "–" if us is None else f"{us:,.0f} µs" if us < 1e4 else f"{us / 1e3:,.1f} ms"
    parts = [one.cost.scan, one.cost.choose, one.cost.rescore, one.cost.operations]
    less = view.less(name)
    cost = [*map(_millions, parts), f"{less:.2f}" if np.isfinite(less) else "–", f"{one.cost.bytes / MEBI:,.1f}"]
    return [title, *kept, *cost, *[time] * with_time]


def below_numbers(view: PivotView, can_time: bool) -> str:
    """HTML below the table: the cost model, what is counted, and what the rivals are set to.

    Args:
        can_time: Whether times can be measured here.
    """
    timed = "" if can_time else " Time is measured where the capture is on a CUDA device."
    said = f"{len(view.rows)} queries; multiply-adds in millions, counted by definition.{timed} {_shapes(view)}"
    return f"<div class='qp-caption'>{model(view)}<br>{html.escape(said)}</div>"


def _millions(count: int) -> str:
    return "–" if not count else f"{count / 1e6:,.0f}" if count >= 1e7 else f"{count / 1e6:.2g}"


def model(view: PivotView) -> str:
    """The cost model at the open setting, as HTML."""
    at, rule, L = view.at, view.rule, int(view.ranked.count.max(initial=0))
    if not L:
        return ""
    speed = index_metrics.speed_up(L, group=at.g, budget=rule.budget, r=at.r)
    terms = f"{at.g} · {L:,} / ({L:,} + {at.r:g} · {at.g} · {rule.budget:,})"
    return (
        f"Cost model of Refine: g·L / (L + r·g·c) = {terms} = <b>{speed:.2f} ×</b> as fast as dense; "
        f"Reuse {at.g} ×. r is what a re-scored key costs of a scanned one; in the paper's prefill about 3."
    )


def _shapes(view: PivotView) -> str:
    """What the rivals are set to."""
    shape, out = view.layer.capture.q.shape, []
    if "hisa" in view.systems:
        block = hisa_block(view.n_keys)
        blocks = hisa_blocks(view.at.k, view.rule.budget, block)
        out.append(f"HISA: {blocks} blocks of {block} keys.")
    if {"misa", "misa_rerank"} & set(view.systems):
        out.append(
            f"MISA: {misa_heads(shape[1])} of {shape[1]} heads, router blocks of {misa_block(view.n_keys)} keys."
        )
    return " ".join(out)
