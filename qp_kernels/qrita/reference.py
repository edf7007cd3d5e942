"""Exact top-k / top-p of logit rows in plain torch: the ground truth of the kernels, and the back-end without a GPU.

The order of a row is value descending, index ascending. Whatever is kept is a prefix of that order, so a row's result
is a *cut* (t, m): every entry above t, and the first m entries equal to t. A cut depends on the sorted values alone;
no index is ever sorted. Rows are sorted as keys = -logit ascending, with NaN last beside -inf.

Mass is summed in fixed point: weight = round(exp((x - max) / T) * 2**44) as int64. Integer sums are associative, so a
row has the same bits in every batch, and partial sums compare exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import Limits

INF = math.inf
# Sorted entries looked at first when p decides; a row whose nucleus is longer is sorted to its end.
HEAD = 4096
# Elements of logits worked on at once (about 40 bytes each): near the cache on a CPU, few launches on a GPU.
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}


class Cut(NamedTuple):
    """Where each row is cut, [B] each."""

    value: Tensor  # t, float32; -inf where nothing is eligible
    ties: Tensor  # m, int64: entries equal to t that are kept
    length: Tensor  # entries kept, int64: above t plus m
    count: Tensor  # entries kept before any limit to the first C, int64
    top: Tensor  # the row's maximum, float32
    mass: Tensor  # weight of all `count` entries, float64, in units of the maximum's weight


class Ranking(NamedTuple):
    """The first C entries of each row in row order, and how many of them k and p keep."""

    keys: Tensor  # [B, C] float32, -logit ascending
    mass: Tensor  # [B, C] int64, running fixed-point mass
    kept: Tensor  # [B] int64, length of the kept prefix
    kept_mass: Tensor  # [B] int64, mass of the kept prefix


def find_cuts(logits: Tensor, limits: Limits, temperature: Tensor | None = None, first: int | None = None) -> Cut:
    """The cut of each row of logits [B, V]; with `first`, of the kept set's first entries only."""
    parts = []
    for chunk in chunks(logits):
        ranked = rank(logits[chunk], limits.rows(chunk), None if temperature is None else temperature[chunk])
        length = ranked.kept if first is None else ranked.kept.clamp(max=first)
        value, above = _entry(ranked.keys, length - 1)
        mass = ranked.kept_mass.double() / fixed_point(logits.shape[-1])
        parts.append(Cut(value, length - above, length, ranked.kept, -ranked.keys[:, 0], mass))
    return Cut(*map(torch.cat, zip(*parts, strict=True)))


def mask(logits: Tensor, cut: Cut, out: Tensor) -> Tensor:
    """Write logits [B, V] into `out`, with -inf for what the cut drops; `out` may be logits."""
    dropped = torch.full((), -INF, dtype=logits.dtype, device=logits.device)
    for chunk in chunks(logits):
        part = Cut(*(field[chunk] for field in cut))
        torch.where(keeps(logits[chunk], part), logits[chunk], dropped, out=out[chunk])
    return out


def kept(logits: Tensor, limits: Limits, temperature: Tensor | None = None) -> Tensor:
    """[B, V] bool, what k and p keep at a temperature."""
    return logits > -INF if limits.off else keeps(logits, find_cuts(logits, limits, temperature))


def keeps(logits: Tensor, cut: Cut) -> Tensor:
    """[B, V] bool, the entries a cut keeps."""
    value, ties = cut.value.to(logits.dtype)[:, None], cut.ties[:, None]
    at_least = logits >= value
    if not logits.is_cuda and (at_least.sum(-1) == cut.length).all():
        return at_least
    equal = logits == value
    return (logits > value) | (equal & (equal.cumsum(-1, dtype=torch.int32) <= ties))


def candidates(logits: Tensor, cut: Cut, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (int32, -1 tail), logits and probabilities (float32, 0 tail) of the kept entries in row order, [B, C]."""
    parts = []
    for chunk in chunks(logits):
        rows, part = logits[chunk], Cut(*(field[chunk] for field in cut))
        slots = torch.arange(1, width + 1, dtype=torch.int32, device=logits.device).repeat(len(rows), 1)
        filled = slots <= part.length[:, None]
        # The j-th kept entry is where the running count of kept entries reaches j.
        running = keeps(rows, part).cumsum(-1, dtype=torch.int32)
        indices = torch.searchsorted(running, slots).clamp_(max=logits.shape[-1] - 1)
        values = rows.gather(1, indices).float()
        keys = torch.where(filled, 0.0 - values, INF)  # 0 - x, because -0.0 and 0.0 are ties
        order = keys.sort(dim=-1, stable=True).indices
        keys, indices, values = (t.gather(1, order) for t in (keys, indices, values))
        probs = weights(keys, part.top[:, None]) / part.mass[:, None]
        parts.append(
            (indices.where(filled, -1).int(), values.where(filled, 0.0), probs.where(filled, 0.0).float()),
        )
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def draw(logits: Tensor, limits: Limits, temperature: Tensor | None, uniform: Tensor) -> Tensor:
    """[B] int64: the first token in row order whose cumulative mass exceeds u times the kept mass, -1 for none."""
    tokens = []
    for chunk in chunks(logits):
        rows, u = logits[chunk], uniform[chunk].double()
        if temperature is not None:
            u = torch.where(temperature[chunk] > 0, u, 0.0)  # argmax is the first of the order
        ranked = rank(rows, limits.rows(chunk), None if temperature is None else temperature[chunk], u)
        target = (u * ranked.kept_mass.double()).floor().long()
        place = _count(ranked.mass, target, inclusive=True).minimum(ranked.kept - 1)
        value, above = _entry(ranked.keys, place)
        running = (rows == value.to(rows.dtype)[:, None]).cumsum(-1, dtype=torch.int32)
        token = _count(running, (place - above + 1).int())  # where the running count of ties reaches this one
        tokens.append(torch.where(ranked.kept > 0, token, -1))
    return torch.cat(tokens)


def rank(logits: Tensor, limits: Limits, temperature: Tensor | None = None, drawn: Tensor | None = None) -> Ranking:
    """Sort as much of each row as the answer needs, and count what k and p keep.

    With `drawn` [B], rows without k and p are sorted only as far as that share of their mass.
    """
    keys = row_keys(logits)
    top, vocab = -keys.amin(-1, keepdim=True), logits.shape[-1]
    by_k_alone = limits.k is not None and (limits.p is None or limits.order == "k_then_p")
    total = target = None
    if not by_k_alone:
        total = fixed_weights(keys, top, vocab, temperature).sum(-1)
        target = total + 1 if drawn is None else (drawn * total.double()).floor().long() + 1
        if limits.p is not None:
            target = _share(total, limits.p)
    for width in _widths(logits, limits, by_k_alone):
        head = _smallest(keys, width)
        mass = fixed_weights(head, top, vocab, temperature).cumsum(-1)
        if width == vocab or by_k_alone:
            break
        reached = mass[:, -1] >= target
        if limits.k is not None:
            reached |= limits.k <= width
        if reached.all():
            break
    return _prefix(head, mass, limits, total, target)


def _prefix(keys: Tensor, mass: Tensor, limits: Limits, total: Tensor | None, target: Tensor | None) -> Ranking:
    """Count the kept prefix of sorted keys [B, C]; `total` and `target` are masses over the whole row, or None."""
    kept = _count(keys, keys.new_full((len(keys),), INF))  # what is eligible
    if limits.k is not None:
        kept = _with_ties(keys, kept.minimum(limits.k), limits.ties)
    kept_mass = _at(mass, kept - 1) if total is None or limits.k is not None else total
    if limits.p is not None:
        target = _share(kept_mass, limits.p) if target is None else target
        nucleus = (_count(mass, target) + 1).minimum(kept)
        kept = _with_ties(keys, nucleus, limits.ties).minimum(kept)
        kept_mass = _at(mass, kept - 1)
    return Ranking(keys, mass, kept, torch.where(kept > 0, kept_mass, 0))


def row_keys(logits: Tensor) -> Tensor:
    """A fresh contiguous float32 copy of -logits; what is never eligible (NaN, -inf) becomes +inf."""
    keys = 0.0 - logits.float()  # not -x: -0.0 and 0.0 give one key
    return keys.contiguous().nan_to_num_(nan=INF, posinf=INF, neginf=-INF)


def weights(keys: Tensor, top: Tensor, temperature: Tensor | None = None) -> Tensor:
    """exp((x - max) / T) in float64; 1 for the maximum, also where it is inf, and 0 for what is not eligible."""
    gap = (-top).masked_fill(top == -INF, 0.0).double() - keys.double()
    if temperature is not None:
        gap /= temperature[:, None]
    return gap.exp_().nan_to_num_(nan=1.0)  # inf - inf, or 0 / 0: a maximum


def fixed_weights(keys: Tensor, top: Tensor, vocab: int, temperature: Tensor | None = None) -> Tensor:
    """`weights` as int64 multiples of 1 / fixed_point(V)."""
    return weights(keys, top, temperature).mul_(fixed_point(vocab)).round_().long()


def fixed_point(vocab: int) -> float:
    """The integer weight of a row's maximum: 2**44, less where V of them would pass 2**62."""
    return 2.0 ** min(44, 62 - (vocab - 1).bit_length())


def chunks(logits: Tensor) -> Iterator[slice]:
    """Slices of rows whose working memory is bounded; one empty slice for B = 0."""
    rows = max(1, CHUNK[logits.device.type] // logits.shape[-1])
    return (slice(start, start + rows) for start in range(0, max(len(logits), 1), rows))


def _widths(logits: Tensor, limits: Limits, by_k_alone: bool) -> tuple[int, ...]:
    """How many sorted entries to look at, in turn. On a GPU all at once: a look at the outcome would synchronise."""
    vocab = logits.shape[-1]
    if logits.is_cuda or limits.ties == "all":
        return (vocab,)
    return (limits.k_max,) if by_k_alone else (min(HEAD, vocab), vocab)


def _smallest(keys: Tensor, count: int) -> Tensor:
    """The `count` smallest of each row, ascending; reorders `keys` on a CPU, where numpy's sort is the fast one."""
    if keys.is_cuda:
        return keys.sort(dim=-1).values[:, :count].contiguous()
    array = keys.numpy()
    if count < array.shape[1]:
        array.partition(count - 1, axis=-1)
    head = array[:, :count].copy()
    head.sort(axis=-1)
    return torch.from_numpy(head)


def _share(mass: Tensor, p: Tensor) -> Tensor:
    """The integer mass that a prefix must reach for p; more than there is where p is off."""
    return torch.where(p < 1, (mass.double() * p).ceil().long(), mass + 1)


def _count(ascending: Tensor, bound: Tensor, inclusive: bool = False) -> Tensor:
    """[B]: entries of each row below the bound, or up to it."""
    return torch.searchsorted(ascending, bound[:, None], right=inclusive)[:, 0]


def _at(values: Tensor, place: Tensor) -> Tensor:
    """values[i, place[i]], the first where place is -1."""
    return values.gather(1, place.clamp(min=0)[:, None])[:, 0]


def _entry(keys: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """The logit at a place of the row order and how many are above it; -inf and -1 + 1 = 0 for place -1."""
    key = _at(keys, place)
    return -key, _count(keys, key)


def _with_ties(keys: Tensor, length: Tensor, ties: str) -> Tensor:
    """The length of a prefix, or with ties="all" of the prefix and everything equal to its last entry."""
    if ties == "index":
        return length
    return torch.where(length > 0, _count(keys, _at(keys, length - 1), inclusive=True), 0)
