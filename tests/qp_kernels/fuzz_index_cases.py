"""One random problem of index selection in small integers: what it is, how it is made again, and what is checked.

Integers make every selection unique, so that the kernels must give the bits of the reference in torch. `LIKE` problems
in a row share what kernels are compiled for: heads, widths, types, the kind of bounds and the remainders of sizes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import torch

from qp_kernels import pivot

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}
# Problems one after the other that share compiled kernels.
LIKE = 16
# (H, D), in turn, and so are types: a product of one head, several chunks of heads, odd widths, the sizes of models.
SHAPES = ((64, 128), (32, 128), (8, 64), (4, 256), (1, 1), (3, 20), (12, 40), (5, 7), (64, 16), (24, 72), (2, 256))
FAMILIES = ("uniform", "sparse", "equal", "rising", "falling", "lump", "one_tile", "wild", "signs")
BOUNDS = ("default", "default", "packed", "packed", "ragged", "windows", "hostile")
SCALES = ("none", "none", "keys", "queries", "both")
CALLS = ("dense", "reuse", "refine", "refine_decode", "hisa", "misa", "misa_rerank")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of a problem: keys, queries, keys selected; and entries of its queries, T * H * D."""

    keys: int
    rows: int
    topk: int
    entries: int


LIMITS = {"cuda": Limits(40_000, 512, 2_048, 1 << 22), "cpu": Limits(1_000, 9, 300, 1 << 11)}


@dataclasses.dataclass
class Case:
    """A problem and the settings of every call, drawn from (seed, index) alone."""

    seed: int
    index: int
    device: str
    family: str
    dtype: str
    bounds: str
    scales: str
    rows: int
    keys: int
    heads: int
    width: int
    topk: int
    max_bytes: int
    settings: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        shape = f"q [{self.rows}, {self.heads}, {self.width}], {self.keys} keys, topk {self.topk}, {self.dtype}"
        return f"{self.family} {shape}, bounds {self.bounds}, scales {self.scales}, max_bytes {self.max_bytes}"


@dataclasses.dataclass
class Fault:
    """A row of a call that differs from the reference."""

    case: Case
    call: str
    row: int
    rows: int
    got: list[int]
    want: list[int]


def draw_case(seed: int, index: int, device: str, limits: Limits | None = None) -> Case:
    limits = limits or LIMITS[torch.device(device).type]
    like = random.Random(f"{seed}:{index // LIKE}")
    pick = random.Random(f"{seed}:{index}")
    turn = seed + index // LIKE
    heads, width = SHAPES[turn % len(SHAPES)]
    if limits.entries < 1 << 14:
        heads, width = min(heads, 5), min(width, 20)
    most_rows = max(1, min(limits.rows, limits.entries // (heads * width)))
    odd_keys, odd_rows = like.choice([0, 0, 5]), like.choice([0, 0, 3])
    low, high = like.choice([(1, 16), (limits.keys // 64, limits.keys // 32), *[(limits.keys // 4, limits.keys)] * 5])
    keys = sized(pick.randint(low, high), odd_keys)
    rows = sized(pick.choice([1, most_rows // 4, *[pick.randint(1, most_rows)] * 6]), odd_rows)
    bounds = like.choice(BOUNDS)
    if bounds == "default":
        rows = min(rows, keys)
    topk = pick.choice([1, 2, limits.topk, limits.topk, pick.randint(1, limits.topk), keys + 3])
    topk = min(topk, 3 * limits.topk)
    return Case(
        seed=seed,
        index=index,
        device=device,
        family=pick.choice(FAMILIES),
        dtype=list(DTYPES)[turn % len(DTYPES)],
        bounds=bounds,
        scales=like.choice(SCALES),
        rows=rows,
        keys=keys,
        heads=heads,
        width=width,
        topk=topk,
        max_bytes=pick.choice([1 << 29] * 6 + [rows * keys // 3 + 1, 1 if rows < 64 else 64 * keys]),
        settings=draw_settings(like, pick, rows, keys, heads, topk, limits),
    )


def sized(number: int, odd: int) -> int:
    """Near a number, with a remainder of 16."""
    return max(1, number // 16 * 16 + odd) if number >= 16 else number


def draw_settings(like, pick, rows: int, keys: int, heads: int, topk: int, limits: Limits) -> dict[str, dict[str, Any]]:
    """The arguments of every call of `CALLS` that is made."""
    group = like.choice([1, 2, 3, 4, 4, 8, rows + 1 if rows < 16 else 16])
    window = pick.choice([group] * 3 + [group + pick.randint(0, 300), keys // 2 + group, keys + group + 1])
    least = topk + window + group - 1
    budget = pick.choice([None, least, least + pick.randint(0, limits.topk), keys + least])
    shared = {"group": group, "guard": pick.choice([True, False, False, keys // 2]), "window": window}
    shared["proxy"] = pick.choice(["mean", "mean", "first", "last"])
    block = pick.choice([1, 7, 16, 64, 128, keys + 1])
    blocks = max(2, math.ceil(topk / block) + 1) + pick.choice([0, 1, 8])
    few = {"heads": pick.choice([1, 2, max(1, heads // 4), heads]), "block": pick.choice([5, 64, 1024])}
    settings = {
        "dense": {},
        "reuse": {**shared, "mode": "reuse"},
        "refine": {**shared, "mode": "refine", "budget": budget},
        "refine_decode": {**shared, "mode": "refine", "phase": "decode", "budget": pick.choice([budget, topk, 1])},
        "hisa": {"block": block, "blocks": blocks},
        "misa": few,
        "misa_rerank": {**few, "rerank": topk + pick.choice([0, 3, topk])},
    }
    # Lists of a row each cost the reference a step a row.
    shares = {"hisa": 0.3, "misa": 0.3, "misa_rerank": 0.15, "refine_decode": 0.5}
    return {name: value for name, value in settings.items() if pick.random() < shares.get(name, 1)}


class Problem:
    """The tensors of a case."""

    def __init__(self, case: Case):
        self.case = case
        self.pick = random.Random(f"{case.seed}:{case.index}:tensors")
        self.rng = torch.Generator(case.device).manual_seed((case.seed << 32) + case.index)
        q, k, w = self._values()
        dtype = DTYPES[case.dtype]
        self.q, self.k, self.w = q.to(dtype), k.to(dtype), w
        self.bounds = self._bounds()
        self.scales = self._scales()

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Of [low, high]."""
        return torch.randint(low, high + 1, shape, generator=self.rng, device=self.case.device).float()

    def _values(self):
        case, integers = self.case, self.integers
        q, k = integers(-2, 2, case.rows, case.heads, case.width), integers(-2, 2, case.keys, case.width)
        w = integers(-1, 3, case.rows, case.heads)
        if case.family == "sparse":  # most scores are exactly 0
            q, k = q * (integers(0, 5, *q.shape) == 0), k * (integers(0, 9, case.keys, 1) == 0)
        elif case.family == "equal":
            k = k[:1].expand_as(k)
        elif case.family in ("rising", "falling"):
            q, k, w = self._steps(case.family == "rising")
        elif case.family in ("lump", "one_tile"):  # the best keys are neighbours
            size = min(case.keys, 3 * case.topk if case.family == "lump" else 4096)
            start = self.pick.randint(0, case.keys - size)
            place = torch.arange(case.keys, device=case.device)[:, None]
            k = k.where((place >= start) & (place < start + size), 0.0)
        elif case.family == "wild":
            q, k, w = (self._wild(values, share) for values, share in ((q, 0.002), (k, 0.001), (w, 0.01)))
        elif case.family == "signs":
            w = integers(-1, 1, *w.shape)
            k = k.where(k != 0, -0.0)
        return q, k, w

    def _steps(self, is_rising: bool):
        """Scores that rise or fall with the position, in steps of one: a head reads a digit of it to the base 16."""
        case = self.case
        digits = min(4, case.heads, case.width)
        place = torch.arange(case.keys, device=case.device)
        place = place if is_rising else case.keys - 1 - place
        k = torch.zeros(case.keys, case.width, device=case.device)
        q, w = torch.zeros(case.rows, case.heads, case.width, device=case.device), torch.zeros(case.rows, case.heads)
        w = w.to(case.device)
        for d in range(digits):
            k[:, d] = (place // 16**d % 16).float()
            q[:, d, d], w[:, d] = 1.0, 16.0**d
        return q, k, w

    def _wild(self, values: torch.Tensor, share: float) -> torch.Tensor:
        values = values.clone()
        is_8_bit = self.case.dtype == "float8"
        largest = 16.0 if is_8_bit else math.inf  # it has no infinity
        none = 0.0 if is_8_bit and self.case.device == "cpu" else math.nan  # Triton's interpreter reads NaN as 480
        chance = torch.rand(values.shape, generator=self.rng, device=values.device)
        for i, value in enumerate((none, largest, -largest)):
            values[(chance >= i * share) & (chance < (i + 1) * share)] = value
        return values

    def _bounds(self) -> dict[str, torch.Tensor]:
        case, pick = self.case, self.pick
        if case.bounds == "default":
            return {}
        lo, hi = [], []
        while len(lo) < case.rows:
            left = case.rows - len(lo)
            if case.bounds == "packed":  # a sequence's last rows
                count = min(left, pick.choice([1, 5, 37, 128, left]))
                start = pick.randint(0, case.keys)
                end = pick.randint(start, case.keys)
                lo += [start] * count
                hi += [max(start, end - count) + 1 + i for i in range(count)]
            elif case.bounds == "ragged":
                count, start, end = (
                    min(left, pick.randint(1, 9)),
                    pick.randint(0, case.keys),
                    pick.randint(0, case.keys),
                )
                lo += [start] * count
                hi += [end + i for i in range(count)]
            elif case.bounds == "windows":
                end = case.keys - left + 1
                lo.append(end - case.keys // 3)
                hi.append(end)
            else:
                wild = [-(2**62), -7, 0, 1, case.keys // 2, case.keys - 1, case.keys, case.keys + 1, 2**62]
                count = min(left, pick.randint(1, 4))
                start, end = pick.choice(wild), pick.choice(wild)
                lo += [start] * count
                hi += [min(end + i, 2**62) for i in range(count)]
        return {"lo": torch.tensor(lo), "hi": torch.tensor(hi)}

    def _scales(self) -> dict[str, torch.Tensor]:
        case, shapes = self.case, {"k_scale": (self.case.keys,), "q_scale": (self.case.rows, self.case.heads)}
        names = {"none": (), "keys": ("k_scale",), "queries": ("q_scale",), "both": tuple(shapes)}[case.scales]
        return {name: torch.exp2(self.integers(-1, 1, *shapes[name])) for name in names}


def check(case: Case, backend: str, device: str = "") -> list[Fault]:
    """Make the problem, make its calls with a back-end (on a device) and with torch, and compare."""
    problem = Problem(case)
    faults = []
    for call, settings in case.settings.items():
        options = {**problem.bounds, **problem.scales, "max_bytes": case.max_bytes, **settings}
        tensors = problem.q, problem.k, problem.w, case.topk
        got = CALLED[call](
            *(to(x, device) for x in tensors), **{n: to(x, device) for n, x in options.items()}, backend=backend
        )
        got = to(got, device and case.device)
        want = REFERENCE[call](*tensors, **{**options, "max_bytes": 1 << 30}, backend="torch")
        if got.shape != want.shape or got.dtype != want.dtype:
            faults.append(Fault(case, call, 0, case.rows, [*got.shape], [*want.shape]))
        elif not torch.equal(got, want):
            rows = (got != want).any(1).nonzero()[:, 0]
            row = int(rows[0])
            faults.append(Fault(case, call, row, len(rows), got[row].tolist(), want[row].tolist()))
    return faults


def to(value: Any, device: str) -> Any:
    """A tensor on a device, if one is named."""
    return value.to(device) if device and isinstance(value, torch.Tensor) else value


REFERENCE = {
    "dense": pivot.dense_topk,
    "reuse": pivot.pivot_topk,
    "refine": pivot.pivot_topk,
    "refine_decode": pivot.pivot_topk,
    "hisa": pivot.hisa_topk,
    "misa": pivot.misa_topk,
    "misa_rerank": pivot.misa_topk,
}
# What is fuzzed; a test breaks one.
CALLED = dict(REFERENCE)
