"""What a row keeps: the cut (key, ties) of its entries, from k, p and the search on candidates or on the whole row.

A cut keeps every entry above the key and the first `ties` entries equal to it. What a row gives (WHAT):
    MASK   the row itself with -inf for what is dropped
    LIST   (key, column) of the kept entries in any order, packed into int64; their number, mass and the row's maximum
    TOKEN  the column of the kept entry that a uniform number draws
"""

import triton
import triton.language as tl

from .parts import NOTHING, count_from, mass_from, value_of, weights
from .searches import narrow_and_search, search

MASK, LIST, TOKEN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def needed(share, mass):
    """The integer mass that reaches this share (fp64) of a mass: at least 1, at most all of it."""
    product = share * mass.to(tl.float64)
    target = product.to(tl.int64)
    target += (target.to(tl.float64) < product).to(tl.int64)
    return tl.maximum(tl.minimum(target, mass), 1)


@triton.jit
def find(
    source, n, stride, lo, n_lo, at_lo, target, top_key, unit, rate, t, std, held,
    MASS: tl.constexpr, HELD: tl.constexpr, FIX: tl.constexpr, BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The search on candidates, or on a whole row."""
    if HELD:
        key, above, copies = search(
            source, n, lo, top_key + 1, at_lo, at_lo * 0, target, unit, rate, MASS, FIX, SEARCH_BLOCK
        )
    else:
        key, above, copies = narrow_and_search(
            source, n, stride, lo, top_key + 1, n_lo, at_lo, target, unit, rate, t, std, held,
            MASS, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
        )  # fmt: skip
    return key, above, copies


@triton.jit
def ties_kept(target, above, copies, key, unit, rate, all_ties, FIX: tl.constexpr):
    """How many entries equal to the key the mass `target` needs, given the mass above it."""
    each = tl.maximum(weights(value_of(key), unit, rate, FIX), 1)
    ties = (target - above + each - 1) // each
    if all_ties:
        ties = copies
    return ties


@triton.jit
def weighs_all(n_all, k, joint):
    """Whether `decide` needs the mass of all entries: not where the k largest are a part of them and p is within k."""
    return (k >= n_all) | (joint != 0)


@triton.jit
def share_of(p, complete, all_mass, below, within_k):
    """The mass that p needs where it does not count within the k largest, or all of a row is given."""
    mass = all_mass
    if not within_k:
        mass += below
    target = needed(p, mass)
    if complete:
        target = tl.minimum(target, tl.maximum(all_mass, 1))
    return target


@triton.jit
def suffices(n_all, complete, all_mass, below, k, p, joint, vocab, HAS_P: tl.constexpr):
    """Whether the n_all entries of a source decide a mask: with k of them, or the mass that p needs."""
    by_k = k < vocab
    within_k = by_k & (joint == 0)
    enough = complete | (by_k & (n_all >= k))
    if HAS_P:
        target = share_of(p, complete, all_mass, below, within_k)
        enough = enough | ((not within_k) & (p < 1.0) & (all_mass >= target))
    return enough


@triton.jit
def decide(
    source, n, stride, vocab, n_all, complete, lowest, all_mass, below, top_key, k, p, joint, all_ties, uniform, width,
    unit, rate, t, std, held,
    HAS_P: tl.constexpr, WHAT: tl.constexpr, HELD: tl.constexpr,
    FIX: tl.constexpr, BLOCK: tl.constexpr, SEARCH_BLOCK: tl.constexpr,
    LANES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The cut of a row, from the n_all eligible entries of a source: candidates, or (complete) all there are.

    Args:
        lowest: A key not above any of the entries. all_mass: Their mass, where `weighs_all` says that it is needed.
        below: Mass of the row beyond that of the entries.
        unit: The value whose weight masses are in units of: most often the largest entry.
        uniform: Number in [0, 1) that draws (TOKEN). width: Entries listed at most (LIST).
    Returns:
        Whether the entries suffice; the cut (key, ties); how many entries equal the key; number and mass of what is
        kept before it is limited to `width` (LIST). The cut (NOTHING, 0) keeps every entry.
    """
    STEP: tl.constexpr = SEARCH_BLOCK if HELD else BLOCK
    none = n_all * 0
    key, ties, copies, n_lo = none.to(tl.int32) + NOTHING, none, none, n_all
    by_k = k < vocab
    within_k = by_k & (joint == 0)
    decided = suffices(n_all, complete, all_mass, below, k, p, joint, vocab, HAS_P)
    if by_k & (k < n_all):
        key, above, copies = find(
            source, n, stride, lowest, n_all, n_all, k, top_key, unit, rate, t, std, held,
            False, HELD, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
        )  # fmt: skip
        n_lo = above + copies
        ties = k - above
        if all_ties:
            ties = copies

    if HAS_P:
        lo, from_lo = lowest, all_mass
        target = share_of(p, complete, all_mass, below, within_k)
        if within_k & (key > NOTHING):
            each = weights(value_of(key), unit, rate, FIX)
            above = mass_from(source, n, stride, key + 1, unit, rate, HELD, FIX, STEP)
            lo, from_lo = key, above + copies * each
            target = needed(p, above + ties * each)
        else:
            n_lo = n_all
        reached = (p < 1.0) & (from_lo >= target)
        if within_k:
            reached = reached & decided
        if reached:
            key_p, above, copies_p = find(
                source, n, stride, lo, n_lo, from_lo, target, top_key, unit, rate, t, std, held,
                True, HELD, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
            )  # fmt: skip
            ties_p = ties_kept(target, above, copies_p, key_p, unit, rate, all_ties, FIX)
            if (key_p > key) | ((key_p == key) & (ties_p < ties)):  # the shorter prefix
                key, ties, copies = key_p, ties_p, copies_p

    kept, mass = none, none
    if WHAT != MASK:
        lo, at_lo = lowest, none
        if key > NOTHING:
            each = weights(value_of(key), unit, rate, FIX)
            above = mass_from(source, n, stride, key + 1, unit, rate, HELD, FIX, STEP)
            n_above = count_from(source, n, stride, key + 1, HELD, STEP)
            lo, at_lo, mass = key, above + copies * each, above + ties * each
            n_lo, kept = n_above + copies, n_above + ties
        else:
            at_lo, n_lo, kept, mass = all_mass, n_all, n_all, all_mass
            if not by_k:  # else just these entries are the k largest
                mass += below
        if WHAT == LIST:
            if kept > width:
                key, above, copies = find(
                    source, n, stride, lo, n_lo, n_lo, width, top_key, unit, rate, t, std, held,
                    False, HELD, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
                )  # fmt: skip
                ties = width - above
        else:
            target = tl.minimum((uniform * mass.to(tl.float64)).to(tl.int64), mass - 1) + 1
            if complete:
                target = tl.minimum(target, at_lo)
            reached = (at_lo >= target) & (target > 0)
            if reached:
                key, above, copies = find(
                    source, n, stride, lo, n_lo, at_lo, target, top_key, unit, rate, t, std, held,
                    True, HELD, FIX, BLOCK, SEARCH_BLOCK, LANES, DEPTH,
                )  # fmt: skip
                ties = ties_kept(target, above, copies, key, unit, rate, 0, FIX)
            if not (by_k | (p < 1.0)):
                decided = decided | reached
    return decided, key, ties, copies, kept, mass
