"""Counted costs: by hand on small cases, and what must hold between the systems."""

import numpy as np
import torch

from qp_kernels.index_metrics import speed_up
from qp_kernels.pivot import cost
from qp_kernels.pivot.groups import cut

SHAPE = cost.Shape(heads=2, dim=4, keys=20, item=4)
HI = np.arange(13, 21)
OPTIONS = {"topk": 2, "budget": 6, "window": 2}


def groups(size):
    return cut(torch.zeros(8, dtype=torch.int64), torch.from_numpy(HI), size)


def test_by_hand():
    one = 2 * (4 + 1)
    assert cost.dense(SHAPE, HI) == (one * 132, 0, 0, 20 * 16 + 8 * 132)
    reuse = cost.pivot(SHAPE, HI, groups(2), mode="reuse", **OPTIONS)
    assert reuse == (one * (13 + 15 + 17 + 19), 8 * one, 0, 20 * 16 + 8 * 64)
    refine = cost.pivot(SHAPE, HI, groups(2), mode="refine", **OPTIONS)
    # The proxy leaves out the two keys of the window; of c = 6 candidates, 3 are of the window.
    assert refine == (one * (64 - 8), 8 * one, one * 8 * 6, (20 + 24) * 16 + 8 * (56 + 48))
    decode = cost.pivot(SHAPE, HI, groups(2), mode="refine", phase="decode", **OPTIONS)
    assert decode.scan == one * 64 and decode.rescore == one * 8 * 9
    first = cost.pivot(SHAPE, HI, groups(2), mode="reuse", proxy="first", **OPTIONS)
    assert first == reuse._replace(choose=0)
    assert cost.hisa(SHAPE, np.array([20, 9, 3]), block=4, blocks=3) == (one * 4, 80, one * 24, 16 * 49 + 8 * 28)
    few = cost.misa(SHAPE, np.array([20, 9]), heads=1, block=8, rerank=5)
    assert few == (5 * 29, 80 + 3 * 8, one * 10, 16 * 32 + 8 * 39)


def test_dense_groups_cost_what_dense_selection_does():
    for size, guard in ((1, False), (3, 20), (8, True)):
        options = {**OPTIONS, "budget": 20, "guard": guard, "mode": "refine"}
        assert cost.pivot(SHAPE, HI, groups(size), **options) == cost.dense(SHAPE, HI)
    assert cost.misa(SHAPE, HI, heads=2, block=4) == cost.dense(SHAPE, HI)


def test_refine_follows_the_cost_model():
    """With long prefixes, a re-scored key as dear as a scanned one: r = 1."""
    shape, hi = cost.Shape(4, 64, 100_000, 2), np.arange(100_000 - 63, 100_001)
    some = cut(torch.zeros(64, dtype=torch.int64), torch.from_numpy(hi), 4)
    found = cost.pivot(shape, hi, some, topk=512, mode="refine", budget=4096, window=4)
    expected = speed_up(100_000, group=4, budget=4096, r=1.0)
    assert abs(cost.dense(shape, hi).operations / found.operations / expected - 1) < 0.01
