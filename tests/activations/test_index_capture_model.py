"""The default model as a laboratory: its three global layers give an index that neighbouring queries share."""

import pytest
import torch

from activations import capture_index, index_layers
from activations.texts import builtin_text
from qp_kernels import index_metrics as metrics
from qp_kernels.pivot import dense_topk, pivot_topk

pytestmark = pytest.mark.model
N, ROWS, TOPK = 1024, 64, 64


@pytest.fixture(scope="module")
def captures(gemma_lm):
    ids = gemma_lm.encode(builtin_text("pydoc", 8 * N))[:N]
    return capture_index(gemma_lm, ids, layer=[5, 11, 17], positions=range(-ROWS, 0))


def test_which_layers_there_are(gemma_lm):
    assert index_layers(gemma_lm) == [5, 11, 17]
    assert index_layers(gemma_lm, n_tokens=512) == list(range(18))
    with pytest.raises(ValueError, match=r"layer 4 attends to 512 .* layers \[5, 11, 17\] attend to all of it"):
        capture_index(gemma_lm, [2] * 513, layer=4)


def test_what_is_captured(captures):
    for capture in captures:
        assert (capture.q.shape, capture.k.shape) == ((ROWS, 4, 256), (N, 256))
        assert (capture.w == 1 / 64).all() and capture.meta["scale"] == 1 / 16  # the mean of four heads
        assert capture.meta["kv_heads"] == 1 and capture.meta["terms"] and capture.tokens[0] == "<bos>"
        torch.testing.assert_close(capture.mass.sum(1), torch.ones(ROWS), rtol=1e-4, atol=0)


def test_neighbours_share_keys_and_refine_finds_them(captures):
    """A capture of random weights shows none of this."""
    for capture in captures:
        given = (capture.q, capture.k, capture.w, TOPK)
        ranges = {"lo": capture.lo, "hi": capture.hi}
        dense = dense_topk(*given, **ranges)
        reuse, refine = (pivot_topk(*given, mode=mode, **ranges) for mode in ("reuse", "refine"))
        assert 0.4 < metrics.overlap(dense[:-1], dense[1:]).mean() < 0.9
        assert metrics.recall(reuse, dense).mean() + 0.1 < metrics.recall(refine, dense).mean()
        assert metrics.recall(refine, dense).mean() > 0.75
        kept = metrics.captured(capture.mass, dense).mean()
        assert kept > 4 * TOPK / N and kept > metrics.captured(capture.mass, reuse).mean()
