"""Host side of index selection in Triton: ranges as numbers or tables, blocks of rows, chunks, and direct launches."""

import numpy as np
import pytest
import torch

from qp_kernels import machine
from qp_kernels.pivot import checks, groups, launch, ranges, selection

CPU = torch.device("cpu")


def blocks(of):
    """(first row, rows, list) of every block."""
    if of.table is not None:
        return [tuple(row) for row in of.table[:, :3].tolist()]
    found = []
    for b in range(of.count):
        group, part = divmod(b, of.parts)
        found.append((group * of.per + part * of.size, of.size, group))
    return found


def test_one_sequence_needs_no_table():
    of = ranges.ranges(0, np.arange(5, 13), 4, CPU)
    assert of.table is None and (of.lo, of.hi, of.step, of.limit, of.columns, of.rows) == (0, 5, 1, 4, 12, 8)
    part = of.part(slice(3, 6))
    assert (part.hi, part.rows, part.table) == (8, 3, None) and part.his.tolist() == [8, 9, 10]
    # Groups of 4 with a window of 6.
    hi = np.arange(20, 60, 4)
    of = ranges.ranges(0, hi, 16, CPU, window=hi - 6, last=hi + 3)
    assert of.table is None and (of.step, of.window, of.last) == (4, 14, 23)


@pytest.mark.parametrize(
    "lo, hi, options",
    [
        (np.array([0, 0, 9, 9]), np.array([3, 4, 12, 13]), {}),  # packed sequences
        (0, np.array([9, 8, 7]), {}),  # falling
        (0, np.array([4, 5, 6]), {"window": np.zeros(3, np.int64)}),  # every window starts at lo
        (0, np.array([4, 5, 6]), {"base": 0, "window": np.array([1, 3, 4])}),
        (2, np.array([4, 5, 6]), {"base": 0}),
    ],
)
def test_what_does_not_rise_evenly_is_a_table(lo, hi, options):
    of = ranges.ranges(lo, hi, 4, CPU, **options)
    assert of.table.dtype == torch.int32 and of.table.shape == (len(hi), ranges.FIELDS)
    assert of.table[:, 2].tolist() == hi.tolist()
    assert of.table[:, 1].tolist() == np.broadcast_to(lo, len(hi)).tolist()
    assert of.part(slice(1, 3)).table.equal(of.table[1:3])


def test_no_limit_is_beyond_the_columns():
    assert ranges.ranges(0, np.array([4, 5]), 2**62, CPU).limit == 5
    assert ranges.ranges(0, np.zeros(0, np.int64), 3, CPU).rows == 0


def test_rows_that_are_scanned_together_share_lo():
    of = ranges.ranges(np.array([0] * 5 + [7] * 2), np.array([1, 2, 3, 4, 5, 9, 8]), 4, CPU)
    found = ranges.scan_blocks(of, 4, CPU)
    assert found.table.tolist() == [[0, 4, 0, 0, 4], [4, 1, 0, 0, 5], [5, 2, 1, 7, 9]]


@pytest.mark.parametrize(
    "lo, most",
    [(0, 7), ([0, 9, 18, 27, 36, 45, 54], 1), ([0] * 5 + [7] * 2, 5), ([0, 7, 7, 7, 0, 0, 9], 3), ([3] * 7, 7)],
)
def test_a_tile_has_as_many_rows_as_share_keys(lo, most, monkeypatch):
    """More would be multiplied for nothing: 16 sequences with a proxy each share none."""
    of = ranges.ranges(np.array(lo), np.arange(60, 67), 4, CPU)
    assert ranges.most_sharing(of) == most
    asked = []
    monkeypatch.setattr(launch, "sizes_of", lambda problem, rows: asked.append(rows) or {"ROWS": 4, "BLOCK": 64})
    monkeypatch.setattr(launch, "launch", lambda *arguments, **options: None)
    monkeypatch.setattr(launch, "span_of", lambda *arguments: 64)
    problem = checks.problem(
        torch.zeros(7, 2, 8), torch.zeros(70, 8), torch.zeros(7, 2), 4,
        q_scale=None, k_scale=None, lo=None, hi=None, backend="torch", max_bytes=1,
    )  # fmt: skip
    launch.scan_rows(problem, of)
    assert asked == [most]


def test_rows_of_a_list_are_cut_where_they_are_many():
    starts = np.array([0, 6, 12])
    even = ranges.list_blocks(starts, np.array([6, 12, 15]), 4, CPU)
    assert even.table is None and blocks(even) == [(0, 4, 0), (4, 4, 0), (6, 4, 1), (10, 4, 1), (12, 4, 2), (16, 4, 2)]
    ragged = ranges.list_blocks(starts, np.array([6, 12, 20]), 4, CPU)
    want = [(0, 4, 0), (4, 2, 0), (6, 4, 1), (10, 2, 1), (12, 4, 2), (16, 4, 2)]
    assert blocks(ragged) == want


@pytest.mark.parametrize("rows, most", [(1024, 500), (1024, 1024), (7, 3), (1, 1), (4096, 257), (100, 64), (65, 64)])
def test_chunks_are_of_about_the_same_size(rows, most):
    found = launch.evenly(rows, most)
    sizes = [chunk.stop - chunk.start for chunk in found]
    assert sum(sizes) == rows and max(sizes) <= most and found[0].start == 0
    assert len(sizes) <= -(-rows // most) + 1 and max(sizes) - min(sizes[:-1], default=sizes[0]) == 0


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("limit", [1, 64, 2_048, 4_092, 8_192])
@pytest.mark.parametrize("columns", [8_193, 9_000, 32_768, 131_072, 262_144, 524_288, 1_048_576])
def test_what_a_threshold_is_likely_to_leave_fits(columns, limit, few):
    """Samples of random rows leave more than fit registers, or a tile, in few of them, where a line is long enough."""
    runs, run, line, places = selection.plan(columns, limit, few)
    sampled, expected = runs * run, limit * runs * run / columns
    assert sampled <= selection.MOST_SAMPLED and expected < sampled
    left = np.random.default_rng(0).binomial(sampled, limit / columns, 400) / sampled  # what is above the true cut
    wanted = expected + 4 * expected**0.5 + 3
    reached = wanted / sampled * (limit / columns) / np.maximum(left, 1 / sampled) * columns
    if limit <= 4_092:
        assert (reached > line.cap).mean() < 0.1
    assert reached.mean() / columns * selection.TILE < 0.9 * places or places == selection.TILE


def test_groups_in_chunks_have_the_rows_of_all():
    hi = torch.arange(100, 120)
    every = groups.cut(torch.zeros(20, dtype=torch.int64), hi, 3)
    q = torch.zeros(20, 2, 4)
    options = dict.fromkeys(("q_scale", "k_scale", "lo"))
    for max_bytes in (1, 200, 1 << 20):
        problem = launch.checks.problem(
            q, torch.zeros(200, 4), torch.zeros(20, 2), 1, **options, hi=hi, backend="torch", max_bytes=max_bytes
        )
        found = list(launch.over_groups(problem, every, 8))
        assert [row for _, _, rows in found for row in range(rows.start, rows.stop)] == list(range(20))
        for part, some, rows in found:
            assert len(part) == rows.stop - rows.start == some.stop[-1] and some.start[0] == 0
            assert part.hi.equal(hi[rows]) and some.hi.tolist() == hi[rows][some.start].tolist()
        assert len(found) == {1: 7, 200: 7, 1 << 20: 1}[max_bytes]


def test_a_tile_fits_the_shared_memory():
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        for heads, width in ((64, 128), (1, 1), (300, 256), (5, 20)):
            q, k, w = torch.zeros(8, heads, width).to(dtype), torch.zeros(9, width).to(dtype), torch.zeros(8, heads)
            options = dict.fromkeys(("q_scale", "k_scale", "lo", "hi"))
            problem = launch.checks.problem(q, k, w, 1, **options, backend="torch", max_bytes=1)
            sizes = launch.sizes_of(problem, 8)
            held = sizes["ROWS"] * sizes["HEADS"] + sizes["STAGES"] * sizes["BLOCK"]
            assert held * sizes["DEPTH"] * q.element_size() <= machine.HOPPER_BYTES
            assert sizes["ROWS"] * sizes["HEADS"] >= 16 and sizes["DEPTH"] >= max(16, width)


def test_what_a_compilation_takes_from_an_argument():
    """As Triton has it: 1 is a constant, 16 may divide a number or an address, numbers are of 32 or 64 bits."""
    assert machine.kind_of(None) is None and machine.kind_of(1) == 1
    assert len({machine.kind_of(n) for n in (0, 2, 16, 17, 2**31, 2**31 + 1, -5)}) == 4
    memory = torch.zeros(32)
    assert machine.kind_of(memory) == machine.kind_of(torch.zeros(4)) != machine.kind_of(memory[1:])
    assert machine.kind_of(memory) != machine.kind_of(memory.int())


class Counted:
    """A kernel that counts its compilations, as Triton's are called."""

    arg_names = ("a", "n", "SIZE")

    def __init__(self):
        self.compiled = []

    def __getitem__(self, grid):
        def compile_and_run(*arguments, **options):
            self.compiled.append((grid, arguments, options))

        return compile_and_run


def test_nothing_is_kept_of_a_kernel_that_was_not_compiled():
    kernel, tensor = Counted(), torch.zeros(4)
    for _ in range(2):
        machine.run(kernel, (3,), (tensor, 5), {"SIZE": 8}, warps=4, registers=64)
    assert kernel.compiled == [((3,), (tensor, 5), {"SIZE": 8, "num_warps": 4, "maxnreg": 64})] * 2
    assert not any(key[0] is kernel for key in machine.COMPILED)
