"""A logits processor for text generation: a plain callable, which transformers' `generate` takes as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import BACKENDS
from . import checks
from .api import worker


class QritaProcessor:
    """Temperature, then exact top-k and top-p, on the scores of each step.

    Args:
        k: An int, or None / 0 / -1: off.
        p: A number in [0, 1], or None / 1: off.
        temperature: A finite number >= 0; 0 keeps the argmax alone.
        backend: "auto", "triton" or "torch".
    Raises:
        TypeError, ValueError: as `top_k_top_p` and `sample`, at construction.

    Used as `model.generate(..., logits_processor=[QritaProcessor(k=50, p=0.9)], do_sample=True, top_k=0)`.

    >>> QritaProcessor(k=1)(None, torch.tensor([[1.0, 3.0, 2.0]]))
    tensor([[-inf, 3., -inf]])
    """

    def __init__(
        self, k: int | None = None, p: float | None = None, temperature: float = 1.0, *, backend: str = "auto"
    ) -> None:
        for name, value in (("k", k), ("p", p), ("temperature", temperature)):
            if isinstance(value, Tensor):
                raise TypeError(f"{name} must be a number, got a tensor")
        anything = torch.zeros(1)
        checks.limits(anything, k, p)
        checks.temperatures(temperature, anything)
        checks.one_of("backend", backend, BACKENDS)
        self.k, self.p, self.temperature, self.backend = k, p, float(temperature), backend

    def __repr__(self) -> str:
        return f"QritaProcessor(k={self.k}, p={self.p}, temperature={self.temperature})"

    @torch.no_grad()
    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """Scores [B, V] divided by the temperature, with -inf for what is dropped; `scores` is not changed.

        The cut is found on the undivided scores, as `sample` does, so no entries become equal by rounding. Quotients
        beyond the dtype stop at its largest value.
        """
        rows = checks.as_rows(scores)
        greedy = self.temperature == 0
        limits = checks.limits(scores, 1 if greedy else self.k, None if greedy else self.p)
        out = torch.empty_like(rows)
        worker(scores, self.backend).mask(rows, limits, out, 1.0 if greedy else self.temperature)
        if self.temperature not in (0, 1):
            largest = torch.finfo(scores.dtype).max
            heat = max(self.temperature, torch.finfo(torch.float32).tiny)  # torch divides in fp32, where less is 0
            out = torch.where(out > -torch.inf, (out / heat).clamp(-largest, largest), out)
        return out.reshape(scores.shape)
