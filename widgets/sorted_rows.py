"""Truncation of many rows for many k or p at once, quickly enough for a slider.

`SortedRows` keeps of each row what no slider changes, its sorted logits and its fixed sample, so that a threshold is a
few sums over samples and a count is a binary search. The numbers are those of `qp_kernels.qrita.truncation` applied to
(logits + shift) / temperature; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qp_kernels.qrita import checks, reference
from qp_kernels.qrita import threshold as thresholds
from qp_kernels.qrita.threshold import CANDIDATE_BUFFER

MISS, OVERFLOW, HIT = 0, 1, 2
BLOCK = 64  # masses are summed up to every so many sorted entries; what is between is summed when asked for


@dataclass(frozen=True)
class Rule:
    """How thresholds are set. `over` says whether k or p sets them; the logits are (x + shift) / temperature."""

    over: str = "k"
    margin: float = 0.2
    rule: str = "sigma"
    temperature: float = 1.0
    shift: float = 0.0

    def apply(self, logits):
        """(x + shift) / temperature in float32, of a tensor or an array. Never changes the order of two entries."""
        if isinstance(logits, torch.Tensor):  # numbers as tensors: CUDA multiplies by the inverse of a plain one
            shift, heat = torch.tensor([self.shift, self.temperature], dtype=torch.float32, device=logits.device)
        else:
            shift, heat = np.float32(self.shift), np.float32(self.temperature)
        with np.errstate(over="ignore"):  # a soft mask of -3e38 is -inf at a low temperature
            shifted = logits + shift if self.shift else logits
            return shifted / heat if self.temperature != 1 else shifted


@dataclass(frozen=True)
class Outcome:
    """Truncation of rows and settings, arrays of one shape, named as in `TruncationStats`."""

    threshold: np.ndarray
    kept: np.ndarray
    hit: np.ndarray
    overflow: np.ndarray

    def __getitem__(self, which) -> Outcome:
        return Outcome(self.threshold[which], self.kept[which], self.hit[which], self.overflow[which])

    @property
    def state(self) -> np.ndarray:
        """MISS, OVERFLOW or HIT; a miss that overflows as well counts as a miss."""
        return np.where(~self.hit, MISS, np.where(self.overflow, OVERFLOW, HIT))


class SortedRows:
    """Rows that were read so far, each sorted once.

    Args:
        capacity: How many rows there is room for (4 V bytes each). vocab: V.
    """

    def __init__(self, capacity: int, vocab: int):
        self.vocab = vocab
        self._places: dict[int, int] = {}
        self._keys = np.empty((capacity, vocab), np.float32)  # -logit ascending, NaN last
        self._numbers = np.zeros(capacity, np.int64)  # entries that are not NaN
        self._eligible = np.zeros(capacity, np.int64)  # of these, entries that are not -inf
        self._samples: list[torch.Tensor] = []
        self._moments: dict[int, tuple[tuple, float, float]] = {}  # row -> shift and temperature, mean, std
        self._marks = np.zeros((capacity, vocab // BLOCK + 1), np.int64)  # mass of the first BLOCK * i entries
        self._totals = np.zeros(capacity, np.int64)
        self._weighed: dict[int, tuple] = {}  # row -> shift and temperature of its masses

    def __contains__(self, row: int) -> bool:
        return row in self._places

    def add(self, row: int, logits: torch.Tensor) -> None:
        """Keep a row, float32 [V]; where there is no room, instead of the newest one."""
        place = min(len(self._places), len(self._keys) - 1)
        if place < len(self._samples):
            old = next(r for r, at in self._places.items() if at == place)
            del self._places[old], self._samples[place]
            self._weighed.pop(old, None)
            self._moments.pop(old, None)
        self._samples.insert(place, thresholds.sample_columns(logits[None])[0].cpu())
        self._places[row] = place
        np.subtract(np.float32(0), logits.cpu().numpy(), out=self._keys[place])
        self._keys[place].sort()
        self._numbers[place] = int(np.searchsorted(self._keys[place], np.nan))
        self._eligible[place] = int(np.searchsorted(self._keys[place], np.inf))

    def descending(self, row: int, rule: Rule) -> np.ndarray:
        """The eligible entries of a row as the rule sees them, largest first."""
        place = self._places[row]
        values = rule.apply(0 - self._keys[place, : self._eligible[place]])
        return values[: int(np.searchsorted(-values, np.inf))]  # the rule can make -inf of a finite one

    def moments(self, rows: list[int], rule: Rule) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the samples of some rows, float64."""
        key = (rule.shift, rule.temperature)
        for row in rows:
            if self._moments.get(row, (None,))[0] != key:
                mean, std = thresholds.finite_moments(rule.apply(self._samples[self._places[row]][None]))
                self._moments[row] = (key, float(mean), float(std))
        known = torch.tensor([self._moments[row][1:] for row in rows], dtype=torch.float64)
        return known[:, 0], known[:, 1]

    def outcome(self, rows: list[int], settings: np.ndarray, rule: Rule) -> Outcome:
        """Truncation of each row for each k or p, [rows, settings]; for p the rows must have been weighed."""
        places = np.array([self._places[row] for row in rows])
        mean, std = (part.repeat_interleave(len(settings)) for part in self.moments(rows, rule))
        limits = self._limits(np.tile(settings, len(rows)), rule)
        delta = thresholds.quantile_distance(std, limits, self.vocab)
        cut = thresholds.threshold(mean, std, delta, rule.margin, rule.rule).float()
        if self.vocab <= thresholds.SMALL_VOCABULARY:
            cut = torch.full_like(cut, -np.inf)
        shape = (len(rows), len(settings))
        kept = self._count(places.repeat(len(settings)), cut.numpy(), rule)
        mass = torch.ones(len(kept), dtype=torch.float64)
        if rule.over == "p":
            mass = torch.from_numpy(self._mass(places.repeat(len(settings)), kept, rule))
        hit = thresholds.is_hit(torch.from_numpy(kept), mass, limits, self.vocab).numpy()
        parts = (cut.numpy(), kept, hit, kept > CANDIDATE_BUFFER)
        return Outcome(*(part.reshape(shape) for part in parts))

    def delta(self, rows: list[int], setting: float, rule: Rule) -> np.ndarray:
        """Distance of the threshold from the mean in standard deviations, before the margin."""
        _, std = self.moments(rows, rule)
        return thresholds.quantile_distance(std, self._limits(np.full(len(rows), setting), rule), self.vocab).numpy()

    def _limits(self, settings: np.ndarray, rule: Rule) -> checks.Limits:
        shape_only = torch.empty(len(settings), 1).expand(-1, self.vocab)
        k = torch.from_numpy(settings.astype(np.int64)) if rule.over == "k" else None
        p = torch.from_numpy(settings.astype(np.float64)) if rule.over == "p" else None
        return checks.limits(shape_only, k, p)

    def _count(self, places: np.ndarray, cuts: np.ndarray, rule: Rule) -> np.ndarray:
        """Entries >= cut, by binary search: what the rule makes of sorted entries is sorted."""
        low, high = np.zeros(len(places), np.int64), self._numbers[places]
        while (open_ := low < high).any():
            middle = (low + high) // 2
            above = rule.apply(0 - self._keys[places, np.minimum(middle, self.vocab - 1)]) >= cuts
            low, high = np.where(open_ & above, middle + 1, low), np.where(open_ & ~above, middle, high)
        return low

    def weighed(self, row: int, rule: Rule) -> bool:
        return self._weighed.get(row) == (rule.shift, rule.temperature)

    def weigh(self, row: int, rule: Rule) -> None:
        """Sum the masses of a row as the rule sees it, in fixed point as the kernels do."""
        place = self._places[row]
        keys = self._scaled_keys(np.array([place]), np.arange(self.vocab)[None], rule)
        running = reference.running_mass(keys, -keys[:, :1], self.vocab)[0].numpy()
        self._marks[place, 1:] = running[BLOCK - 1 :: BLOCK]
        self._totals[place] = running[-1]
        self._weighed[row] = (rule.shift, rule.temperature)

    def mass(self, row: int, kept: np.ndarray, rule: Rule) -> np.ndarray:
        """Share of a weighed row's mass in its `kept` largest entries."""
        return self._mass(np.full(len(kept), self._places[row]), kept, rule)

    def nuclei(self, rows: list[int], p: float, rule: Rule) -> np.ndarray:
        """Entries that `top_k_top_p` keeps for p alone, of each weighed row."""
        places = np.array([self._places[row] for row in rows])
        eligible = self._eligible[places]
        if p >= 1:
            return eligible
        target = np.ceil(self._totals[places] * p).astype(np.int64)
        block = np.maximum((self._marks[places] < target[:, None]).sum(1) - 1, 0)
        running = self._marks[places, block][:, None] + self._block(places, block, rule).cumsum(1)
        return np.minimum(block * BLOCK + (running < target[:, None]).sum(1) + 1, eligible)

    def _mass(self, places: np.ndarray, kept: np.ndarray, rule: Rule) -> np.ndarray:
        block, rest = kept // BLOCK, kept % BLOCK
        inside = self._block(places, block, rule) * (np.arange(BLOCK) < rest[:, None])
        return (self._marks[places, block] + inside.sum(1)) / np.maximum(self._totals[places], 1)

    def _block(self, places: np.ndarray, block: np.ndarray, rule: Rule) -> np.ndarray:
        """[n, BLOCK] fixed-point weights of one block of each row's sorted entries."""
        columns = block[:, None] * BLOCK + np.arange(BLOCK)
        keys = self._scaled_keys(places, np.minimum(columns, self.vocab - 1), rule)
        top = -self._scaled_keys(places, np.zeros((len(places), 1), np.int64), rule)
        return reference.fixed_weights(keys, top, self.vocab).numpy() * (columns < self.vocab)

    def _scaled_keys(self, places: np.ndarray, columns: np.ndarray, rule: Rule) -> torch.Tensor:
        """[n, columns] sorted keys as `reference.row_keys` makes them of what the rule sees."""
        keys = np.float32(0) - rule.apply(0 - self._keys[places[:, None], columns])
        return torch.from_numpy(np.where(np.isnan(keys), np.float32(np.inf), keys))
