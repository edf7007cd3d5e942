"""The paper's variants of exact top-k / top-p, one switch for every idea, so that each one's worth can be measured.

Faithful, and apart: `top_k_top_p` has none of these switches. As in the paper, pivots lie in value space, k is searched
among logits and p among probabilities, and masses are fp32 sums. So these are not exact where the paper is not:

* k: exact on finite logits and -inf, ties by index, unless duplicates are off: then every entry equal to the k-th
  stays. (Beyond a range of 2**64 times the gap at the cut the step limit leaves more than k.)
* p: the nucleus up to the rounding of fp32 sums, about 1e-5 of the mass at V = 262,144; equal fp32 probabilities are
  ties, of different logits too. +inf is not handled. NaN is never kept.

Source: arXiv 2602.01518; its ablation lists the runs of `RUNS`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import backend
from . import checks
from .overlap import check_out

INF = math.inf
TRUNCATIONS = ("paper", "closed", "off", "miss")
SEARCHES = ("quaternary", "binary", "sort")
# Steps of a search; each divides the interval by 4, or by 2.
STEPS = {"quaternary": 32, "binary": 64}
MARGIN = 0.2
# Candidates a sort takes; a row with more is sorted whole.
SORT_WIDTH = 8192
NUCLEUS_CANDIDATES = 256
TABLE_SIZE = 200
# p = 0 keeps one entry, as the least mass does.
SMALLEST_P = 1e-30
# Standard deviation of logits that the table for p stands for; the one released with vLLM fits about this.
TABLE_STD = 2.4

RUNS = {
    "A": {},
    "B": {"block_table": False},
    "C": {"block_table": False, "duplicates": False},
    "D": {"truncation": "miss"},
    "E": {"truncation": "off"},
    "F": {"search": "binary"},
    "G": {"truncation": "miss", "search": "binary"},
    "H": {"truncation": "off", "search": "binary"},  # not in the paper: completes the grid
    "I": {"search": "sort"},
    "J": {"truncation": "off", "search": "sort"},
}
RUN_NAMES = {
    "A": "complete",
    "B": "untuned",
    "C": "untuned, no duplicates",
    "D": "forced miss",
    "E": "no truncation",
    "F": "hit + binary",
    "G": "miss + binary",
    "H": "no truncation + binary",
    "I": "hit + sort",
    "J": "full sort",
}


# What a kernel that gathers nothing is handed.
NO_THRESHOLD = {"delta_rows": None, "cap": INF, "margin": 0.0, "PER_STD": False, "OF_VALUE": False}


class Blocks(NamedTuple):
    """Entries read at once from a row and from its candidates, and warps of a program."""

    row: int
    search: int
    warps: int


UNTUNED = Blocks(1024, 1024, 4)
# Largest V, and what suits it.
BLOCK_TABLE = ((4096, Blocks(4096, 1024, 4)), (65_536, Blocks(4096, 2048, 8)), (INF, Blocks(8192, 4096, 16)))


def blocks(vocab: int, block_table: bool = True) -> Blocks:
    """The blocks of a vocabulary size: from the table, or one choice for all."""
    if not block_table:
        return UNTUNED
    return next(chosen for largest, chosen in BLOCK_TABLE if vocab <= largest)


def quantile_table() -> Tensor:
    """[200] fp64: for the share (i + 1)/200 of entries, where they begin, in standard deviations above the mean.

    The quantile of the normal distribution at the upper edge of bucket i, so that a bucket holds enough.

    >>> [round(x, 3) for x in quantile_table()[[0, 1, 9, 199]].tolist()]
    [2.576, 2.326, 1.645, -3.719]
    """
    edges = torch.arange(1, TABLE_SIZE + 1, dtype=torch.float64) / TABLE_SIZE
    return -torch.special.ndtri(edges.clamp(max=1 - 1e-4))


def mass_table(std: float = TABLE_STD) -> Tensor:
    """[200] fp64: the same for a share of the mass, of Gaussian logits with one standard deviation: std - Q(share)."""
    return std + quantile_table()


@torch.no_grad()
def run(
    logits: Tensor,
    k: int | Tensor | None = None,
    p: float | Tensor | None = None,
    *,
    truncation: str = "paper",
    search: str = "quaternary",
    duplicates: bool = True,
    block_table: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Keep k, then p of them, by one of the paper's variants. `run(logits, k, p, **RUNS["A"])` is the complete one.

    Args:
        logits: [B, V] or [V], float32 / float16 / bfloat16; on CUDA, or anywhere under TRITON_INTERPRET=1.
        k, p: As for `top_k_top_p`.
        truncation: "paper" (a table of 200 deltas, t = mu + delta sigma - .2 |mu + delta sigma|), "closed" (delta by
            formula, margin .2 |delta| sigma), "off" (no candidates are gathered), "miss" (t = inf: gathers in vain,
            then searches the whole row).
        search: "quaternary" or "binary" pivots, or "sort" (`torch.sort` of the candidates; of a whole row where they
            do not suffice, which a look from the host tells).
        duplicates: Count how often a value occurs, to stop at a tie and to drop what is too much of it. False takes
            every value to occur once, and keeps all ties.
        block_table: Blocks and warps by V (`BLOCK_TABLE`); False takes one choice for all (`UNTUNED`).
        out: As for `top_k_top_p`.
    Returns:
        As `top_k_top_p`: dropped entries are -inf.
    Raises:
        As `top_k_top_p`; RuntimeError where Triton cannot run; ValueError for an unknown word.

    Exactness: see the top of this file.

    >>> run(torch.tensor([2.0, 1.0, 3.0]).cuda(), k=2).cpu()  # doctest: +SKIP
    tensor([2., -inf, 3.])
    """
    rows = checks.as_rows(logits)
    limits = checks.limits(logits, k, p)
    checks.one_of("truncation", truncation, TRUNCATIONS)
    checks.one_of("search", search, SEARCHES)
    if out is not None:
        check_out(out, logits)
    backend.resolve(logits, "triton")
    result = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if len(rows):
        target = result if result.ndim == 2 else result[None]
        plan = _Plan(rows.contiguous(), target, limits, truncation, duplicates, blocks(rows.shape[-1], block_table))
        with backend.current(rows.device):
            _by_sorting(plan) if search == "sort" else _by_pivots(plan, search)
    return result if out is None else out.copy_(result)


class _Plan(NamedTuple):
    rows: Tensor
    out: Tensor
    limits: checks.Limits
    truncation: str
    duplicates: bool
    blocks: Blocks

    def threshold(self) -> dict[str, Tensor | float | bool]:
        """What the kernels make t of: delta [B], which p's formula adds to sigma and caps, and the margin."""
        vocab, k, p = self.rows.shape[-1], self.limits.k, self.limits.p
        if self.truncation == "closed":
            cap, per_std = INF, k is None
            if k is not None:
                delta = -torch.special.ndtri(k.double() / vocab)
            else:
                delta = -torch.special.ndtri(p)
                least = torch.tensor(min(1.0, NUCLEUS_CANDIDATES / vocab), dtype=torch.float64)
                cap = -float(torch.special.ndtri(least))
        else:
            share = k.double() / vocab if k is not None else p
            table = quantile_table() if k is not None else mass_table()
            delta = table.to(share.device)[(share * TABLE_SIZE).long().clamp(max=TABLE_SIZE - 1)]
            cap, per_std = INF, False
        # A row whose k is off in a tensor of k has an infinite delta: its candidates are the whole row.
        return {
            "delta_rows": delta.clamp(-1e4, 1e4).float(),
            "cap": cap,
            "margin": MARGIN,
            "PER_STD": per_std,
            "OF_VALUE": self.truncation == "paper",
        }


def _by_pivots(plan: _Plan, search: str) -> None:
    from . import ablation_kernels as kernels

    rows, limits, sizes = plan.rows, plan.limits, plan.blocks
    truncate = plan.truncation != "off" and not limits.off
    kernels.row_kernel[(len(rows),)](
        rows,
        plan.out,
        torch.empty(rows.shape, dtype=torch.float32, device=rows.device),
        limits.k,
        None if limits.p is None else limits.p.clamp(min=SMALLEST_P).float(),
        n=rows.shape[-1],
        stride=rows.stride(0),
        out_stride=plan.out.stride(0),
        **(plan.threshold() if truncate else NO_THRESHOLD),
        K=limits.k is not None,
        P=limits.p is not None,
        TRUNCATE=truncate,
        MISS=plan.truncation == "miss",
        WAYS=4 if search == "quaternary" else 2,
        DUPLICATES=plan.duplicates,
        STEPS=STEPS[search],
        BLOCK=sizes.row,
        SEARCH_BLOCK=sizes.search,
        num_warps=sizes.warps,
    )


def _by_sorting(plan: _Plan) -> None:
    from . import ablation_kernels as kernels

    rows, limits, sizes = plan.rows, plan.limits, plan.blocks
    batch, vocab = rows.shape
    grid, launch = (batch,), {"BLOCK": sizes.row, "num_warps": sizes.warps}
    value, needed = torch.empty(2, batch, dtype=torch.float32, device=rows.device).unbind()
    missed = torch.ones(batch, dtype=torch.bool, device=rows.device)
    if plan.truncation != "off" and not limits.off:
        width = min(vocab, SORT_WIDTH)
        scratch = torch.full((batch, width), -INF, dtype=torch.float32, device=rows.device)
        found = torch.empty(batch, 3, dtype=torch.float32, device=rows.device)
        chosen = {**plan.threshold(), "MISS": plan.truncation == "miss"}
        kernels.gather_kernel[grid](
            rows, scratch, found, n=vocab, stride=rows.stride(0), width=width, **chosen, **launch
        )
        gathered, above, total = found.unbind(-1)
        enough = gathered >= limits.k if limits.k is not None else above >= limits.p.clamp(min=SMALLEST_P) * total
        missed = ~enough | (gathered > width)
        value, needed = _sorted_cut(scratch, limits.k, limits.p, total)
    if missed.any():
        whole = rows[missed].float().nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)
        k, p = (None if of_row is None else of_row[missed] for of_row in (limits.k, limits.p))
        value[missed], needed[missed] = _sorted_cut(whole, k, p)
    kernels.cut_kernel[grid](
        rows, plan.out, value, needed, vocab, rows.stride(0), plan.out.stride(0), DUPLICATES=plan.duplicates, **launch
    )


def _sorted_cut(
    values: Tensor, k: Tensor | None, p: Tensor | None, total: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The cut of each row of values [b, C]: value and ties kept. p alone is a share of `total`, by default theirs."""
    values = values.sort(dim=-1, descending=True).values
    kept = (values > -INF).sum(-1)
    if k is not None:
        kept, total = kept.minimum(k), None
    if p is not None:
        beyond = torch.arange(values.shape[-1], device=values.device) >= kept[:, None]
        mass = (values - values[:, :1]).exp().masked_fill_(beyond, 0.0).cumsum(-1)
        target = p * (mass[:, -1] if total is None else total)
        nucleus = (mass < target[:, None]).sum(-1) + 1
        kept = torch.where(p < 1, kept.minimum(nucleus), kept)
    value = values.gather(1, (kept - 1).clamp(min=0)[:, None])
    return value[:, 0], (kept - (values > value).sum(-1)).float()
