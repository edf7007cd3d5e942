"""What the contract allows of index selection on floats, in float64, for whole batches; no code is the package's.

Each step (a proxy's list, the re-score of a member) may put a key within eps of its cut on either side,
eps = 2^-18 (float8: 2^-10) · sum over j of |w_j|·|q_j| times the larger norm of the two keys. So of each step some keys
are sure to be in, and some are possible. Each check returns [T] bool: rows that break the contract.
"""

from dataclasses import dataclass, replace

import torch

# Rows whose scores exist at once, times keys.
ENTRIES = 1 << 24
LARGEST_FLOAT8 = 448.0


@dataclass(frozen=True)
class Rows:
    """Queries of one sequence: q [T, H, D], k [N, D], w [T, H], scales [T, H] and [N] or None, lo and hi [T]."""

    q: torch.Tensor
    k: torch.Tensor
    w: torch.Tensor
    lo: torch.Tensor
    hi: torch.Tensor
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None

    def part(self, rows):
        scale = None if self.q_scale is None else self.q_scale[rows]
        return replace(self, q=self.q[rows], w=self.w[rows], lo=self.lo[rows], hi=self.hi[rows], q_scale=scale)

    def inside(self):
        """[T, N] bool: what a row may select."""
        place = torch.arange(len(self.k), device=self.q.device)
        lo, hi = (ends.to(self.q.device)[:, None] for ends in (self.lo, self.hi))
        return (place >= lo) & (place < hi)

    def chunks(self):
        step = max(1, ENTRIES // max(1, len(self.k)))
        return [slice(start, min(start + step, len(self.q))) for start in range(0, len(self.q), step)]


def scored(rows):
    """Scores [T, N], each row's eps for a key of norm 1 [T], and the keys' norms [N]; float64."""
    k, weights = rows.k.double(), rows.w.double()
    norms = k.norm(dim=1)
    if rows.q_scale is not None:
        weights = weights * rows.q_scale.double()
    scores = torch.zeros(len(rows.q), len(k), dtype=torch.float64, device=k.device)
    for j in range(rows.q.shape[1]):
        scores += weights[:, j, None] * (rows.q[:, j].double() @ k.t()).relu()
    if rows.k_scale is not None:
        scores, norms = scores * rows.k_scale.double(), norms * rows.k_scale.double()
    unit = 2.0**-10 if rows.q.dtype == torch.float8_e4m3fn else 2.0**-18
    return scores, unit * (weights.abs() * rows.q.double().norm(dim=2)).sum(1), norms


def cut(scores, norms, there, limit):
    """The limit-th largest score of each row among what is there [T, N], and its key's norm; else -inf."""
    best = scores.masked_fill(~there, -torch.inf).topk(min(limit, scores.shape[1]), dim=1)
    last = best.values[:, -1:] if limit <= scores.shape[1] else torch.full_like(scores[:, :1], -torch.inf)
    return last, norms[best.indices[:, -1:]]


def broken(found, scores, sums, norms, sure, possible, topk):
    """Rows of a selection [T, topk] that no list between the sure and the possible keys [T, N] explains."""
    there = found >= 0
    chosen = torch.zeros_like(sure)
    chosen.scatter_(1, found.clamp(min=0).long(), there)  # a tail of -1 writes False to key 0, put right below
    chosen[:, 0] = (found == 0).any(1)
    count = there.sum(1)
    in_order = ((found[:, 1:] > found[:, :-1]) | ~there[:, 1:]).all(1) & (there.int().diff(dim=1) <= 0).all(1)
    fewest, most = (part.sum(1).clamp(max=topk) for part in (sure, possible))
    low, low_norm = cut(scores, norms, sure, topk)
    high, high_norm = cut(scores, norms, possible, topk)
    too_low = chosen & (scores < low - sums[:, None] * norms.maximum(low_norm))
    left_out = sure & ~chosen & (scores > high + sums[:, None] * norms.maximum(high_norm))
    right = in_order & (count >= fewest) & (count <= most) & (chosen.sum(1) == count)
    return ~right | (chosen & ~possible).any(1) | too_low.any(1) | left_out.any(1)


def dense(found, rows, topk):
    result = []
    for part in rows.chunks():
        some = rows.part(part)
        inside = some.inside()
        result.append(broken(found[part], *scored(some), inside, inside, topk))
    return torch.cat(result)


def proxies(rows, group):
    """Of whole groups: the sum of the members' queries, times their scales, and weights, in their order in float32.

    The sum is rounded to q's dtype; float8 has the smallest power of two as scale with which all of a head fits.
    """
    q, w = rows.q.float(), rows.w.float()
    if rows.q_scale is not None:
        q = q * rows.q_scale.float()[..., None]
    q, w = (values.unflatten(0, (-1, group)) for values in (q, w))
    total, weight = q[:, 0].clone(), w[:, 0].clone()
    for member in range(1, group):
        total, weight = total + q[:, member], weight + w[:, member]
    scale = None
    if rows.q.dtype == torch.float8_e4m3fn:
        part, power = torch.frexp(total.abs().amax(2).double() / LARGEST_FLOAT8)  # part is 0, or from 1/2 to below 1
        scale = torch.exp2((power - (part <= 0.5).int()).double().where(part > 0, 0.0)).float()
        total = total / scale[..., None]
    return replace(rows, q=total.to(rows.q.dtype), w=weight, lo=rows.lo[::group], hi=rows.hi[::group], q_scale=scale)


def reuse(found, rows, topk, group):
    """PIVOT-Reuse of whole groups, each longer than topk."""
    members = found.unflatten(0, (-1, group))
    alike = (members == members[:, :1]).flatten(1).all(1)
    return (dense(members[:, 0], proxies(rows, group), topk) | ~alike).repeat_interleave(group)


def refine(found, rows, topk, group, budget, window, phase="prefill"):
    """PIVOT-Refine of whole groups, each longer than the budget; in decode the window is besides the budget."""
    proxy, result = proxies(rows, group), []
    place = torch.arange(len(rows.k), device=rows.q.device)
    for g in range(len(proxy.q)):
        mine, one = slice(g * group, (g + 1) * group), proxy.part(slice(g, g + 1))
        start, end = max(int(one.lo), int(one.hi) - window), int(rows.hi[mine][-1])
        recent = ((place >= start) & (place < end))[None]
        ranked, room = one.inside(), budget
        if phase == "prefill":
            ranked, room = ranked & ~recent, budget - (end - start)
        scores, sums, norms = scored(one)
        last, norm = cut(scores, norms, ranked, room)
        eps = sums[:, None] * norms.maximum(norm)
        sure, possible = (recent | (ranked & (scores > last + sign * eps)) for sign in (1, -1))
        members = rows.part(mine)
        inside = members.inside()
        result.append(broken(found[mine], *scored(members), sure & inside, possible & inside, topk))
    return torch.cat(result)
