"""Exact top-k / top-p of logit rows in plain torch: the ground truth of the kernels, and the back-end without a GPU.

The order of a row is value descending, index ascending. Whatever is kept is a prefix of that order, so a row's result
is a *cut* (t, m): every entry above t, and the first m entries equal to t. A cut depends on the sorted values alone;
no index is ever sorted. Rows are sorted as keys = -logit ascending, with NaN last beside -inf.

Mass is summed in fixed point: weight = round(exp((x - max) / T) * 2**44) as int64. Integer sums are associative, so a
row has the same bits in every batch and however it is tiled, and partial sums compare exactly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import philox
from .checks import Limits, as_row_values
from .tiling import chunks, exp, search, tiled, tiles

INF = math.inf
# Sorted entries looked at first when p decides; a row whose nucleus is longer is sorted to its end.
HEAD = 4096


class Cut(NamedTuple):
    """Where each row is cut, [B] each."""

    value: Tensor  # t, float32; -inf where nothing is eligible
    ties: Tensor  # m, int64: entries equal to t that are kept; V where that is all of them
    length: Tensor  # entries kept, int64
    count: Tensor  # entries kept before any limit to the first C, int64
    top: Tensor  # the row's maximum, float32
    mass: Tensor  # weight of all `count` entries, float64, in units of the maximum's weight

    def rows(self, chunk: slice) -> Cut:
        return Cut(*(field[chunk] for field in self))


class Ranking(NamedTuple):
    """The first C entries of each row in row order, and how many of them k and p keep."""

    keys: Tensor  # [B, C] float32, -logit ascending
    mass: Tensor  # [B, C] int64, running fixed-point mass
    kept: Tensor  # [B] int64, length of the kept prefix
    kept_mass: Tensor  # [B] int64, mass of the kept prefix


def find_cuts(logits: Tensor, limits: Limits, temperature: Tensor | None = None, first: int | None = None) -> Cut:
    """The cut of each row of logits [B, V]; with `first`, of the kept set's first entries only."""
    vocab, parts = logits.shape[-1], []
    for chunk in chunks(logits):
        ranked = rank(logits[chunk], limits.rows(chunk), None if temperature is None else temperature[chunk])
        length = ranked.kept if first is None else ranked.kept.clamp(max=first)
        key = _at(ranked.keys, length - 1)
        through = _count(ranked.keys, key, inclusive=True)
        # Ties that reach the end of a shorter head may go on beyond it.
        all_ties = (through == length) & ((through < ranked.keys.shape[-1]) | (ranked.keys.shape[-1] == vocab))
        ties = torch.where(all_ties, vocab, length - _count(ranked.keys, key))
        mass = ranked.kept_mass.double() / fixed_point(vocab)
        parts.append(Cut(-key, ties, length, ranked.kept, -ranked.keys[:, 0], mass))
    return Cut(*map(torch.cat, zip(*parts, strict=True)))


def keeps(logits: Tensor, cut: Cut | None) -> Tensor:
    """[B, V] bool, the entries a cut keeps; everything eligible without one."""
    if cut is None:
        return tiled(lambda part: part > -INF, logits, torch.bool)
    value, ties = cut.value.to(logits.dtype)[:, None], cut.ties[:, None]
    if not logits.is_cuda and (ties == logits.shape[-1]).all():
        return tiled(lambda part: part >= value, logits, torch.bool)
    place = _count(running_count(logits, value), (cut.ties + 1).int())  # of the first tie that is dropped
    columns = torch.arange(logits.shape[-1], device=logits.device)
    keep = torch.empty(logits.shape, dtype=torch.bool, device=logits.device)
    for tile in tiles(logits):
        part = logits[:, tile]
        keep[:, tile] = (part > value) | ((part == value) & (columns[tile] < place[:, None]))
    return keep


def running_count(rows: Tensor, value: Tensor) -> Tensor:
    """[B, V] int32: how many entries up to each one equal value [B, 1]."""
    return tiled(lambda part: part == value, rows, torch.int32).cumsum_(-1)


def mask(logits: Tensor, limits: Limits, out: Tensor, temperature: Tensor | float = 1.0) -> None:
    """Write logits [B, V] into `out`, with -inf for what k and p drop; `out` may be logits. Masses are at T."""
    cut = None if limits.off else find_cuts(logits, limits, as_row_values(temperature, logits))
    dropped = torch.full((), -INF, dtype=logits.dtype, device=logits.device)
    for chunk in chunks(logits):
        keep = keeps(logits[chunk], None if cut is None else cut.rows(chunk))
        for tile in tiles(keep):
            torch.where(keep[:, tile], logits[chunk, tile], dropped, out=out[chunk, tile])


def listed(logits: Tensor, limits: Limits, width: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices, logits, probabilities of the first `width` kept entries in row order, and how many are kept."""
    cut = find_cuts(logits, limits, first=width)
    if width is None:
        width = int(cut.count.max()) if len(logits) else 0
    return (*candidates(logits, cut, width), cut.count.int())


def candidates(logits: Tensor, cut: Cut, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (int32, -1 tail), logits and probabilities (float32, 0 tail) of the kept entries in row order, [B, C]."""
    parts = []
    for chunk in chunks(logits):
        rows, part = logits[chunk], cut.rows(chunk)
        slots = torch.arange(1, width + 1, dtype=torch.int32, device=logits.device).repeat(len(rows), 1)
        filled = slots <= part.length[:, None]
        # The j-th kept entry is where the running count of kept entries reaches j.
        keep = keeps(rows, part)
        running = running_count(keep, keep.new_ones(1, 1))
        indices = search(running, slots).clamp_(max=logits.shape[-1] - 1)
        values = rows.gather(1, indices).float()
        keys = torch.where(filled, 0.0 - values, INF)  # 0 - x, because -0.0 and 0.0 are ties
        order = keys.sort(dim=-1, stable=True).indices
        keys, indices, values = (field.gather(1, order) for field in (keys, indices, values))
        probs = weights(keys, part.top[:, None]) / part.mass[:, None]
        parts.append((indices.where(filled, -1).int(), values.where(filled, 0.0), probs.where(filled, 0.0).float()))
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def draw(logits: Tensor, limits: Limits, temperature: Tensor | float, seeds: Tensor) -> Tensor:
    """[B] int64: the token that each row's seed draws among what is kept; -1 where nothing is eligible."""
    return draw_at(logits, limits, as_row_values(temperature, logits), philox.uniform(seeds))


def draw_at(logits: Tensor, limits: Limits, temperature: Tensor | None, uniform: Tensor) -> Tensor:
    """[B] int64: the first token in row order whose cumulative mass exceeds u times the kept mass, -1 for none."""
    tokens = []
    for chunk in chunks(logits):
        heat = None if temperature is None else temperature[chunk]
        u = uniform[chunk].double()
        if heat is not None:
            u = torch.where(heat > 0, u, 0.0)  # argmax is the first of the order
        ranked = rank(logits[chunk], limits.rows(chunk), heat, drawn=u)
        target = (u * ranked.kept_mass.double()).floor().long()
        place = _count(ranked.mass, target, inclusive=True).minimum(ranked.kept - 1)
        key = _at(ranked.keys, place)
        value, above = (-key).to(logits.dtype)[:, None], _count(ranked.keys, key)
        # The token is where the running count of entries equal to it reaches its place among them.
        token = _count(running_count(logits[chunk], value), (place - above + 1).int())
        tokens.append(torch.where(ranked.kept > 0, token, -1))
    return torch.cat(tokens)


def rank(logits: Tensor, limits: Limits, temperature: Tensor | None = None, drawn: Tensor | None = None) -> Ranking:
    """Sort as much of each row as the answer needs, and count what k and p keep.

    With `drawn` [B], rows without k and p are sorted only as far as that share of their mass.
    """
    vocab, keys = logits.shape[-1], row_keys(logits)
    by_k_alone = limits.k is not None and (limits.p is None or limits.order == "k_then_p")
    total = target = None
    for width in _widths(logits, limits, by_k_alone):
        head = _smallest(keys, width)
        top = -head[:, :1]
        mass = running_mass(head, top, vocab, temperature)
        if by_k_alone:
            break
        if total is None:
            total = sum(fixed_weights(keys[:, tile], top, vocab, temperature).sum(-1) for tile in tiles(keys))
            target = _target(total, limits.p, drawn)
        if width == vocab or _reached(mass, target, limits, width):
            break
    return _prefix(head, mass, limits, total, target)


def _prefix(keys: Tensor, mass: Tensor, limits: Limits, total: Tensor | None, target: Tensor | None) -> Ranking:
    """Count the kept prefix of sorted keys [B, C]; `total` and `target` are masses over the whole row, or None."""
    kept = _count(keys, keys.new_full((len(keys),), INF))  # what is eligible
    kept_mass = total
    if limits.k is not None:
        kept = _with_ties(keys, kept.minimum(limits.k), limits.ties)
        kept_mass = _at(mass, kept - 1)
    if limits.p is not None:
        target = _target(kept_mass, limits.p) if target is None else target
        nucleus = (_count(mass, target) + 1).minimum(kept)
        kept = _with_ties(keys, nucleus, limits.ties).minimum(kept)
        kept_mass = _at(mass, kept - 1)
    return Ranking(keys, mass, kept, kept_mass)


def row_keys(logits: Tensor) -> Tensor:
    """A fresh contiguous float32 copy of -logits; what is never eligible (NaN, -inf) becomes +inf."""
    return tiled(
        lambda part: (0.0 - part.float()).nan_to_num_(nan=INF, posinf=INF, neginf=-INF),  # 0 - x: -0.0 and 0.0 are ties
        logits,
        torch.float32,
    )


def weights(keys: Tensor, top: Tensor, temperature: Tensor | None = None) -> Tensor:
    """exp((x - max) / T) in float64; 1 for the maximum, also where it is inf, and 0 for what is not eligible."""
    gap = (-top).masked_fill(top == -INF, 0.0).double() - keys
    if temperature is not None:
        gap /= temperature[:, None]
    return exp(gap).nan_to_num_(nan=1.0)  # inf - inf, or 0 / 0: a maximum


def fixed_weights(keys: Tensor, top: Tensor, vocab: int, temperature: Tensor | None = None) -> Tensor:
    """`weights` as int64 multiples of 1 / fixed_point(V)."""
    return weights(keys, top, temperature).mul_(fixed_point(vocab)).add_(0.5).long()


def running_mass(keys: Tensor, top: Tensor, vocab: int, temperature: Tensor | None = None) -> Tensor:
    """[B, C] int64: `fixed_weights` summed up to each entry."""
    return tiled(lambda part: fixed_weights(part, top, vocab, temperature), keys, torch.int64).cumsum_(-1)


def fixed_point(vocab: int) -> float:
    """The integer weight of a row's maximum: 2**44, less where V of them would pass 2**62."""
    return 2.0 ** min(44, 62 - (vocab - 1).bit_length())


def _widths(logits: Tensor, limits: Limits, by_k_alone: bool) -> tuple[int, ...]:
    """How many sorted entries to look at, in turn. On a GPU all at once: a look at the outcome would synchronise."""
    vocab = logits.shape[-1]
    if logits.is_cuda or limits.ties == "all":
        return (vocab,)
    # One entry beyond k tells whether the k-th has ties that are dropped.
    return (min(limits.k_max + 1, vocab),) if by_k_alone else (min(HEAD, vocab), vocab)


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


def _target(mass: Tensor, p: Tensor | None, drawn: Tensor | None = None) -> Tensor:
    """The integer mass a prefix must reach for p, or for a draw; more than there is where neither ends it."""
    if p is not None:
        return torch.where(p < 1, (mass.double() * p).ceil().long(), mass + 1)
    return mass + 1 if drawn is None else (drawn * mass.double()).floor().long() + 1


def _reached(mass: Tensor, target: Tensor, limits: Limits, width: int) -> bool:
    """Whether the sorted heads suffice for every row."""
    enough = mass[:, -1] >= target
    if limits.k is not None:
        enough |= limits.k < width
    return bool(enough.all())


def _count(ascending: Tensor, bound: Tensor, inclusive: bool = False) -> Tensor:
    """[B]: entries of each row below the bound, or up to it."""
    return torch.searchsorted(ascending, bound[:, None], right=inclusive)[:, 0]


def _at(values: Tensor, place: Tensor) -> Tensor:
    """values[i, place[i]], the first where place is -1."""
    return values.gather(1, place.clamp(min=0)[:, None])[:, 0]


def _with_ties(keys: Tensor, length: Tensor, ties: str) -> Tensor:
    """The length of a prefix, or with ties="all" of the prefix and everything equal to its last entry."""
    if ties == "index":
        return length
    return torch.where(length > 0, _count(keys, _at(keys, length - 1), inclusive=True), 0)
