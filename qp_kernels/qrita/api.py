"""The public functions of exact top-k / top-p: contract, validation and dispatch.

The work is done by `reference.py` and `threshold.py` (torch), or by `launch.py` (Triton).
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import backend as backends
from . import checks, reference
from . import threshold as thresholds
from .overlap import check_out
from .threshold import TruncationStats

INF = float("inf")


class Candidates(NamedTuple):
    """The kept entries of each row in row order (value descending, index ascending): [B, C], or [C] for one row.

    Attributes:
        indices: int32, -1 beyond the kept set.
        logits: float32, 0 beyond the kept set.
        probs: float32, normalised over the whole kept set even where only its first C are listed, 0 beyond it.
        count: [B] or 0-d int32, the size of the whole kept set.
    """

    indices: Tensor
    logits: Tensor
    probs: Tensor
    count: Tensor


@torch.no_grad()
def top_k_top_p(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    order: str = "k_then_p",
    ties: str = "index",
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Keep the k largest logits of each row, then the shortest prefix of them with mass p.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16, natural-log units, any strides. Not changed unless it
            is `out`. Gradients do not flow through.
        k: Entries kept: an int, or an integer tensor [B] (0-d for [V]). None, 0, -1 or >= V: off.
        p: Mass kept: a number, or a float tensor [B] (0-d for [V]). None or 1: off; 0 keeps one entry.
        order: "k_then_p" renormalises after top-k. "joint" applies p to the original distribution and keeps the
            shorter of the two prefixes.
        ties: "index" keeps exactly the prefix. "all" keeps, in the k step, every entry equal to the k-th and, in the
            p step, every entry equal to the last of the nucleus.
        out: Where to write, of the shape, dtype and device of logits; logits itself works in place.
        backend: "auto", "triton" or "torch".
    Returns:
        The shape and dtype of logits: kept entries keep their bits, all others are -inf, NaN included.
    Raises:
        TypeError: a dtype or type that is not listed above, a bool, a float k.
        ValueError: k < -1, p outside [0, 1], NaN, a wrong shape or device, an unknown word, an `out` that overlaps
            itself or lies partly on logits. Contents of CUDA tensors are not checked: k <= 0 is off, p >= 1 or NaN
            is off, p <= 0 keeps one. Nothing is changed when an error is raised.
        RuntimeError: the back-end cannot run here.

    Ties: lowest index; -0.0 equals 0.0. NaN and -inf are never kept; +inf wins, and several share the mass.
    Exactness: top-k exact; the mass of a nucleus within 1e-6 of p, from int64 sums of float64 weights, so a row gives
    the same bits in every batch. Source: arXiv 2602.01518.

    >>> top_k_top_p(torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0]), k=2)
    tensor([2., 1., -inf, -inf, -inf])
    >>> top_k_top_p(torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]).log(), p=0.6).isfinite()
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    rows = checks.as_rows(logits)
    limits = checks.limits(logits, k, p, order, ties)
    if out is not None:
        check_out(out, logits)
    work = worker(logits, backend)
    if out is None:
        out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    work.mask(rows, limits, out if out.ndim == 2 else out[None])
    return out


@torch.no_grad()
def select(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    order: str = "k_then_p",
    max_candidates: int | None = None,
    backend: str = "auto",
) -> Candidates:
    """List what `top_k_top_p` keeps, with probabilities, in row order.

    Args:
        logits, k, p, order, backend: As for `top_k_top_p`.
        max_candidates: C, the width of the result; a row that keeps more lists its first C. By default the number k
            (at most V), else the largest count of the batch, which costs a CUDA device one synchronisation.
    Returns:
        `Candidates(indices, logits, probs, count)`.
    Raises:
        As `top_k_top_p`; also ValueError where k and p are both off (None, 0, -1; None, 1) or max_candidates < 1.

    >>> found = select(torch.tensor([0.1, 0.6, 0.3]).log(), p=0.8)
    >>> found.indices.tolist(), [round(x, 3) for x in found.probs.tolist()], int(found.count)
    ([1, 2], [0.667, 0.333], 2)
    """
    rows = checks.as_rows(logits)
    limits = checks.limits(logits, k, p, order)
    width = None if max_candidates is None else checks.positive("max_candidates", max_candidates)
    if limits.p is None and (k is None or (isinstance(k, numbers.Integral) and k <= 0)):
        raise ValueError(f"select needs k or p, got k={k!r} and p={p!r}, which are both off")
    work = worker(logits, backend)
    if width is None and isinstance(k, numbers.Integral) and k > 0:
        width = min(int(k), rows.shape[-1])
    found = Candidates(*work.listed(rows, limits, width))
    return found if logits.ndim == 2 else Candidates(*(field[0] for field in found))


@torch.no_grad()
def sample(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    seeds: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """Draw one token per row from what k and p keep.

    Temperature comes first: mass is exp((x - max) / T). The row order stays that of the logits, so no entries become
    equal by rounding. The token is the first in row order whose cumulative mass exceeds u times the kept mass, with
    u = `tl.rand(seed, 0)` (Philox 4x32-10).

    Args:
        logits, k, p, backend: As for `top_k_top_p`. Both k and p may be off.
        temperature: Finite number >= 0, or a float tensor [B] (0-d for [V]). 0 takes the argmax. On CUDA, where
            contents are not checked, negative, infinite and NaN take the argmax too.
        seeds: [B] int64 (0-d for [V]). Equal row and seed give the equal token, whatever the batch.
        generator: Source of the seeds where they are absent; None is torch's default one.
    Returns:
        [B] int64 token ids, 0-d for [V]; -1 where nothing is eligible.
    Raises:
        As `top_k_top_p`; also TypeError for seeds that are not int64, ValueError for a temperature out of range.

    >>> sample(torch.tensor([[0.0, 5.0, 1.0]] * 3), k=2, seeds=torch.tensor([1, 2, 10])).tolist()
    [1, 1, 1]
    >>> sample(torch.tensor([0.0, 5.0, 5.0]), temperature=0)
    tensor(1)
    """
    rows = checks.as_rows(logits)
    limits = checks.limits(logits, k, p)
    heat = checks.temperatures(temperature, logits)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if seeds is not None:
        seeds = checks.seed_rows(seeds, logits)
    work = worker(logits, backend)
    if seeds is None:
        source = logits.device if generator is None else generator.device
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=generator, device=source).to(logits.device)
    tokens = work.draw(rows, limits, heat, seeds)
    return tokens if logits.ndim == 2 else tokens[0]


@torch.no_grad()
def truncation(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    margin: float = 0.2,
    rule: str = "sigma",
    order: str = "k_then_p",
    backend: str = "auto",
) -> TruncationStats:
    """Tell where the Gaussian threshold of each row lies and what it leaves.

    delta_k = Q(1 - k/V) and delta_p = min(std - Q(p), Q(1 - 256/V)), Q the normal quantile function. With both on,
    "k_then_p" takes delta_k and "joint" the larger.
    `rule="sigma"`: t = mean + delta (1 - margin sign(delta)) std, which does not move when all logits shift.
    `rule="paper"`: t = mean + delta std - margin |mean + delta std|.
    t = -inf for V <= 512, a constant row, one without finite entries, and where k and p are off.

    Args:
        logits, k, p, order, backend: As for `top_k_top_p` (`order` extends the call of the paper's rule to both cases).
        margin: Slack, finite and >= 0.
        rule: "sigma" or "paper".
    Returns:
        `TruncationStats`. `kept` counts every entry >= t, which for t = -inf includes -inf, never NaN.
    Raises:
        As `top_k_top_p`; also ValueError for a margin or rule out of range.

    >>> row = torch.linspace(-3, 3, 1001)
    >>> stats = truncation(row, k=100)
    >>> round(float(stats.threshold), 3), int(stats.kept), bool(stats.hit)
    (1.778, 204, True)
    """
    rows = checks.as_rows(logits)
    limits = checks.limits(logits, k, p, order)
    checks.one_of("rule", rule, checks.RULES)
    if not 0 <= checks.real("margin", margin) < INF:
        raise ValueError(f"margin must be finite and >= 0, got {margin}")
    stats = worker(logits, backend).truncate(rows, limits, float(margin), rule)
    return stats if logits.ndim == 2 else TruncationStats(*(field[0] for field in stats))


class Work(NamedTuple):
    """The four things that a back-end does with checked arguments."""

    mask: Callable[..., None]
    listed: Callable[..., tuple[Tensor, ...]]
    draw: Callable[..., Tensor]
    truncate: Callable[..., TruncationStats]


def worker(logits: Tensor, backend: str) -> Work:
    """The back-end that works on this tensor; Triton's is imported when it is first wanted."""
    if backends.resolve(logits, backend).name == "torch":
        return Work(reference.mask, reference.listed, reference.draw, thresholds.truncate)
    from . import launch

    return Work(launch.mask, launch.listed, launch.draw, launch.truncate)
