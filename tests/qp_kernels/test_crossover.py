"""The measured guard, by made-up times on a CPU, and on a GPU by its own promise."""

import pytest
import torch

from qp_kernels import pivot, timing
from qp_kernels.pivot import crossover

SMALL = {"topk": 16, "budget": 32, "heads": 1, "dim": 2, "rows": 8, "dtype": torch.float32, "longest": 1024}


def timed(us, spread=0.0):
    return timing.Timing(us, us * (1 - spread), us * (1 + spread), (us,), "gpu")


class Clock:
    """Times by the cost model: PIVOT scans for a group of 4 once, and re-scores 100 keys' worth for each row.

    chunk: What PIVOT needs beyond that for rows that are consecutive.
    """

    def __init__(self, extra=100.0, spread=0.0, chunk=0.0):
        self.extra, self.spread, self.chunk, self.calls = extra, spread, chunk, []

    def __call__(self, fn):
        hi, guard = fn.keywords["hi"].double(), fn.keywords.get("guard")
        self.calls.append((fn.func.__name__, int(hi.max()), guard))
        if guard is None:
            return timed(float(hi.sum()), self.spread)
        first = hi.reshape(-1, 4)[:, 0]
        dense = first <= guard
        cost = torch.where(dense, 4 * first, first + 4 * self.extra).sum()
        return timed(float(cost) + self.chunk * float(hi.max() - hi.min() >= 4), self.spread)


def found_by(clock, **changes):
    return pivot.measured_crossover(timer=clock, device="cpu", **{**SMALL, **changes})


def test_the_crossover_of_the_cost_model():
    # Members have n + 1.5 keys on average: 4 n + 6 = n + 400 at n = 131.3. Chunks have 8 rows.
    clock = Clock()
    found = found_by(clock)
    assert found.guard in (136, 144)
    levels = [point for point in found.points if point.kind == "level"]
    assert [point.length for point in levels] == sorted({point.length for point in levels})
    assert {32, 64, 128, 256, 512} <= {point.length for point in levels}
    assert all(point.wins == (point.length > 131) for point in levels)
    assert all(point.guard == 0 for point in levels) and levels[0].dense_ms == pytest.approx(8 * 33.5 / 1e3)
    chunks = [point for point in found.points if point.kind == "chunk"]
    assert [point.length for point in chunks] == [found.guard + n for n in (8, 16)]
    assert not any(point.loses for point in chunks)


def test_a_win_lies_outside_the_spread():
    # Within 10 % on either side: n (1 + e) + ... < 4 n (1 - e) needs a longer prefix.
    assert found_by(Clock(spread=0.1)).guard > 1.15 * found_by(Clock()).guard


def test_it_never_wins_or_always():
    never = found_by(Clock(extra=1e6))
    assert never.guard == crossover.NEVER and {point.kind for point in never.points} == {"level"}
    assert found_by(Clock(extra=1.0)).guard == 32


def test_one_lucky_length_is_no_win():
    clock = Clock()

    def lucky(fn):
        found = clock(fn)
        is_lucky = "guard" in fn.keywords and int(fn.keywords["hi"].min()) == 32
        return timed(1.0) if is_lucky else found

    assert found_by(lucky).guard == found_by(Clock()).guard


def test_chunks_are_all_dense_or_all_pivot():
    clock = Clock()
    found = found_by(clock, rows=64)
    assert found.guard == 192
    sizes = [(last - 63, last) for name, last, guard in clock.calls if guard == found.guard]
    assert sizes == [(193, 256), (257, 320)]


def test_slower_chunks_raise_the_guard():
    plain, found = (found_by(Clock(chunk=chunk), rows=64) for chunk in (0.0, 7e3))
    assert found.guard > plain.guard and found.guard % 64 == 0 and any(point.loses for point in found.points)
    assert not any(point.loses for point in found.points[-2:])
    assert found_by(Clock(chunk=1e9), rows=64).guard == crossover.NEVER


def test_decode_times_no_chunks_and_reuse_starts_at_topk():
    found = found_by(Clock(), phase="decode", mode="reuse")
    assert {point.kind for point in found.points} == {"level"} and found.points[0].length == 16


def test_what_is_called_is_what_is_promised():
    seen = []

    def run(fn):
        seen.append(fn())
        return timed(1.0)

    found_by(run, longest=64)
    assert all(one.shape == (8, 16) and (one >= 0).all() for one in seen)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 6}, "rows must be a multiple of group, 4, got 6"),
        ({"longest": 31}, "longest must be >= 32"),
        ({"group": 1}, "group must be >= 2"),
        ({"mode": "both"}, "mode must be one of"),
        ({"budget": 20}, "budget must be >= topk"),
    ],
)
def test_wrong_arguments(changes, words):
    with pytest.raises(ValueError, match=words):
        found_by(lambda fn: fn() is None or timed(1.0), **changes)


def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match="measured_crossover needs a CUDA device .*leave guard=True"):
        pivot.measured_crossover(device="cpu")


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu():
    found = pivot.measured_crossover(rows=1024, longest=32_768, repetitions=5)
    assert found.guard >= 4096 and found.guard % 1024 == 0 and all(point.dense_ms > 0 for point in found.points)
