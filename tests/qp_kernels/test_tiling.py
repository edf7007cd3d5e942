"""Tiles: the same bits as one step, and no step that waits for another thread."""

import math
import time

import pytest
import torch

from qp_kernels.qrita import sample, select, tiling, top_k_top_p, truncation


def test_exp_has_the_same_bits_everywhere():
    values = torch.cat(
        [-torch.rand(3000, dtype=torch.float64) * 40, torch.tensor([0.0, -0.0, -745.0, -math.inf]).double()]
    )
    alone = torch.stack([tiling.exp(value.reshape(1))[0] for value in values])
    torch.testing.assert_close(alone, values.exp(), rtol=1e-13, atol=0)
    assert alone[-4:].tolist()[:2] == [1.0, 1.0] and alone[-1] == 0
    for start in (0, 1, 3, 17):
        for size in (1, 2, 31, 33, 64, 1000, 2900):
            part = slice(start, start + size)
            assert tiling.exp(values[part]).equal(alone[part])
    assert tiling.exp(values[:3000].view(30, 100).t()).equal(alone[:3000].view(30, 100).t())
    assert tiling.exp(torch.tensor([math.nan], dtype=torch.float64)).isnan().all()


def test_chunks_and_tiles_cover_once():
    for shape in ((0, 5), (1, 1), (3, 7), (500, 90), (70, 40_000)):
        logits = torch.zeros(shape)
        for chunk in tiling.chunks(logits):
            rows = logits[chunk]
            assert len(rows) <= tiling.SEARCH["cpu"]
            for tile in tiling.tiles(rows):
                rows[:, tile] += 1
                assert rows[:, tile].numel() < 1 << 15
        assert (logits == 1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: top_k_top_p(x),
        lambda x: top_k_top_p(x, 50),
        lambda x: top_k_top_p(x, p=0.9),
        lambda x: select(x, p=0.9, max_candidates=512),
        lambda x: sample(x, 50, 0.9, temperature=0.7, seeds=torch.tensor([1])),
        lambda x: truncation(x, 50),
    ],
    ids=["off", "k", "p", "select", "sample", "truncation"],
)
def test_one_row_is_worked_on_by_one_thread(call):
    """Beside a busy browser, each step that is split waits for a time slice."""
    logits = torch.randn(1, 200_000, generator=torch.Generator().manual_seed(0))
    logits[0, :32] += 9
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        call(logits)
        time.sleep(0.3)  # until the other threads have stopped spinning
        whole, mine = time.process_time(), time.thread_time()
        for _ in range(5):
            call(logits)
        mine, whole = time.thread_time() - mine, time.process_time() - whole
    finally:
        torch.set_num_threads(threads)
    assert whole - mine < 0.2 * mine + 2e-3
