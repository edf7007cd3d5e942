"""Queries, keys and scores that are measured on, drawn on the device; whole numbers for the check, others for times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...pivot.checks import take
from .cases import FP8, Case

FP8_LARGEST = 448.0
# Of long-tailed scores: the share that is not zero goes from the one to the other over the rows; keys of one topic.
LEAST_NONZERO, MOST_NONZERO, STRETCH = 0.005, 0.6, 512


@dataclass(frozen=True)
class Inputs:
    """Arguments of a selection: tensors on the device, lo and hi on the host, None for their defaults."""

    q: Tensor
    k: Tensor
    w: Tensor
    q_scale: Tensor | None = None
    k_scale: Tensor | None = None
    lo: Tensor | None = None
    hi: Tensor | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"q_scale": self.q_scale, "k_scale": self.k_scale, "lo": self.lo, "hi": self.hi}

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """lo and hi, their defaults written out."""
        total = len(self.q)
        lo = torch.zeros(total, dtype=torch.int64) if self.lo is None else self.lo
        hi = torch.arange(len(self.k) - total + 1, len(self.k) + 1) if self.hi is None else self.hi
        return lo, hi

    def rows(self, chosen: slice) -> Inputs:
        """The same keys for some rows, which keep what they may select."""
        lo, hi = self.bounds
        scale = None if self.q_scale is None else self.q_scale[chosen]
        fields = {"q": take(self.q, chosen), "w": self.w[chosen], "q_scale": scale}
        return replace(self, **fields, lo=lo[chosen], hi=hi[chosen])


def draw(case: Case, device: torch.device | str, *, whole: bool, seed: int = 0) -> Inputs:
    """Inputs of a case; several sequences packed.

    Args:
        whole: Small whole numbers, with powers of two as scales, so that every score is exact and a selection unique.
            Else normal numbers; float8 has scales of the largest entry over 448, of each head of a query and each key.
    """
    device, dtype = torch.device(device), getattr(torch, case.dtype)
    rng = torch.Generator(device).manual_seed(seed)
    shapes = (case.batch * case.T, case.heads, case.dim), (case.batch * case.L, case.dim)
    scales: tuple[Tensor | None, ...] = (None, None)
    if whole:
        q, k = (torch.randint(-2, 3, shape, generator=rng, device=device).float().to(dtype) for shape in shapes)
        w = torch.randint(-1, 4, shapes[0][:2], generator=rng, device=device).float()
        if case.dtype == FP8:
            powers = (torch.randint(-1, 2, shape[:-1], generator=rng, device=device) for shape in shapes)
            scales = tuple(torch.exp2(power.float()) for power in powers)
    else:
        q, k = (torch.randn(shape, generator=rng, device=device) for shape in shapes)
        w = torch.rand(shapes[0][:2], generator=rng, device=device)
        if case.dtype == FP8:
            (q, *one), (k, *two) = map(quantised, (q, k))
            scales = (*one, *two)
        q, k = q.to(dtype), k.to(dtype)
    return Inputs(q, k, w, *scales, *_bounds(case))


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [..., D] as float8 and their scales [...], the largest entry over 448."""
    scale = values.abs().amax(-1).clamp(min=1e-30) / FP8_LARGEST
    return (values / scale[..., None]).to(torch.float8_e4m3fn), scale


def _bounds(case: Case) -> tuple[Tensor | None, Tensor | None]:
    """lo and hi of packed sequences, on the host; one sequence has the defaults."""
    if case.batch == 1:
        return None, None
    start = case.L * torch.arange(case.batch).repeat_interleave(case.T)
    return start, start + torch.arange(case.L - case.T + 1, case.L + 1).repeat(case.batch)


def draw_scores(case: Case, device: torch.device | str, seed: int = 0) -> Tensor:
    """[T, L] float32 scores of a case "select".

    "gauss" is normal. "long_tail" is what a few heads with relu give over a text of topics: cubes of what exceeds a
    row's own threshold, times a log-normal factor for each stretch of keys, and exact zeros: 40 % of the first row to
    99.5 % of the last, so that some rows have their cut among zeros.
    """
    rng = torch.Generator(torch.device(device)).manual_seed(seed)
    values = torch.randn(case.T, case.L, generator=rng, device=device)
    if case.scores == "gauss":
        return values
    nonzero = torch.linspace(MOST_NONZERO, LEAST_NONZERO, case.T, dtype=torch.float64)
    threshold = torch.special.ndtri(1 - nonzero).float().to(device)
    factors = torch.randn(case.T, -(-case.L // STRETCH), generator=rng, device=device).mul_(1.5).exp_()
    values.sub_(threshold[:, None]).relu_().pow_(3)
    return values.mul_(factors.repeat_interleave(STRETCH, dim=1)[:, : case.L])
