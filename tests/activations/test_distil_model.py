"""The default model's layers can be distilled: a few steps on short texts do what many do on long ones, in part."""

import pytest

from activations import capture_index, distil, index_layers, texts
from activations.indexer import IndexerShape

pytestmark = [pytest.mark.model, pytest.mark.slow]
N = 256


@pytest.fixture(scope="module")
def runs(gemma_lm):
    """(hardly begun, distilled) on the same texts."""
    options = {"texts": texts.training_texts(100_000), "measure_on": texts.measuring_text()[:4000]}
    options |= {"lengths": (N,), "rows": None}
    begun = distil(gemma_lm, [11, 17], steps=1, learning_rate=1e-6, **options)
    return begun, distil(gemma_lm, [11, 17], steps=16, learning_rate=8e-3, **options)


def test_it_finds_what_the_attention_looks_at_on_an_unseen_text(runs):
    for before, after in zip(*(run.report for run in runs), strict=True):
        assert (before["tokens"], before["layer"]) == (after["tokens"], after["layer"])
        assert after["kl"] < 0.5 * before["kl"]
        assert after["recall_attention"] > 1.5 * before["recall_attention"]
        assert after["mass_dense"] > max(0.6 * after["mass_best"], 1.3 * before["mass_dense"])


def test_neighbours_share_keys_more_than_they_did(runs):
    before, after = (sum(one["adjacent_overlap"] for one in run.report) for run in runs)
    assert after > before + 0.1


def test_the_indexer_is_of_the_sizes_and_the_rotation_that_it_should(gemma_lm, runs):
    indexers = runs[1].indexers
    scale = indexers[17].shape.input_scale
    assert indexers[17].shape == IndexerShape(640, 8, 64, 32, 1e6, scale)
    assert index_layers(gemma_lm, "distilled", indexers=indexers) == [11, 17]
    capture = capture_index(gemma_lm, "Roses are red,", layer=17, source="distilled", indexers=indexers)
    assert capture.q.shape[1:] == (8, 64) and capture.k.shape[1] == 64 and capture.w.shape[1] == 8
    assert capture.meta["gguf_sha256"] == indexers[17].meta["gguf_sha256"]
