"""Tokens drawn from what a cut keeps, and how often each came."""

from __future__ import annotations

import torch

from qp_kernels.qrita import sample
from widgets.logit_view import LogitView


class Draws:
    """Sampled tokens under one setting of the odds.

    Attributes:
        counts: Token id -> how often it was drawn. last: The newest one, None before the first.
    """

    def __init__(self):
        self.counts: dict[int, int] = {}
        self.last: int | None = None
        self._setting: tuple | None = None
        self._generator = torch.Generator()  # its own, so that a cell's torch.manual_seed means what it says
        self._generator.seed()

    def use(self, setting: tuple) -> None:
        """Forget what was drawn under another setting."""
        if setting != self._setting:
            self._setting, self.counts, self.last = setting, {}, None

    def draw(self, view: LogitView, backend: str) -> None:
        """Draw one token from the kept prefix, which also serves order="joint"."""
        kept = torch.from_numpy(view.facts.order[: view.kept].copy())
        logits = view.facts.row[kept.to(view.facts.row.device)]
        place = sample(logits, temperature=view.temperature, generator=self._generator, backend=backend)
        self.last = int(kept[int(place)])
        self.counts[self.last] = self.counts.get(self.last, 0) + 1
