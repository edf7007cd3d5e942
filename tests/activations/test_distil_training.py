"""The steps of a distillation: its pieces of text, what attention gives on them, and gradients by chunks."""

import pytest
import torch

from activations import capture_index, distil
from activations import distil_data as data_module
from activations import distil_training as training_module
from activations import forward as forward_module
from activations.distil_data import Pieces, read_attention
from activations.distil_training import Recipe, learn
from activations.indexer import IndexerShape, LightningIndexer, divergence, index_scores


def ids_of(n, seed):
    return torch.randint(3, 90, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def small(tiny):
    """Weights are large, so that attention is far from even."""
    return lambda name="llama", **more: tiny(name, **{"initializer_range": 0.4, **more})


@pytest.mark.parametrize("rows", [None, 13])
def test_chunks_of_queries_give_the_gradient_of_one_piece(small, rows, monkeypatch):
    """And that of the plain formula, with scores and attention for all queries at once."""
    lm, ids = small("qwen3"), ids_of(50, 3)
    attention = read_attention(lm, ids, [1], lambda: None)[1]
    chosen = torch.arange(50) if rows is None else torch.randperm(50)[:rows].sort().values
    indexer = LightningIndexer(IndexerShape(32, 4, 16, 8))
    indexer.start(0)
    mass = capture_index(lm, ids, layer=1).mass
    k = indexer.keys(attention.hidden, torch.arange(50))
    q, w = indexer.queries(attention.hidden, torch.arange(50))
    kl = divergence(mass, index_scores(q, k, w), torch.arange(1, 51))[chosen]
    wanted = torch.autograd.grad(0.5 * kl.sum(), list(indexer.parameters()))
    for size in (1 << 30, 4 * 4 * 50 * 3, 1):
        monkeypatch.setattr(training_module, "_SCORE_BYTES", size)
        indexer.zero_grad()
        mean = learn(indexer, attention, chosen, 0.5, lambda: None)
        assert mean.item() == pytest.approx(kl.mean().item(), rel=1e-5)
        for parameter, gradient in zip(indexer.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)


def test_no_matrix_of_a_whole_text_is_made(small, monkeypatch):
    """Of 240 tokens, in chunks of 5 queries: nothing of 240 x 240 entries, not even of one head."""
    lm, largest = small(), []
    attention = read_attention(lm, ids_of(240, 3), [1], lambda: None)[1]
    indexer = LightningIndexer(IndexerShape(32, 4, 16, 8))
    indexer.start(0)
    monkeypatch.setattr(training_module, "_SCORE_BYTES", 4 * 4 * 240 * 5)

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest.append(out.numel())
            return out

    with Watch():
        learn(indexer, attention, torch.arange(240), 1.0, lambda: None)
    assert max(largest) < 240 * 240 // 2 and len(largest) > 48


@pytest.mark.parametrize("chunk", [1, 16])
def test_what_attention_reads_is_the_same_by_chunks(small, chunk, monkeypatch):
    lm, ids = small("gemma3", layer_types=["sliding_attention", "full_attention", "full_attention"]), ids_of(40, 3)
    whole = read_attention(lm, ids, [1, 2], lambda: None)
    monkeypatch.setattr(forward_module, "CHUNK", chunk)
    stops = []
    parts = read_attention(lm, ids, [1, 2], lambda: stops.append(1))
    assert len(stops) == -(-40 // chunk)
    rows = torch.tensor([0, 5, 17, 39])
    capture = capture_index(lm, ids, layer=[1, 2])
    for layer in (1, 2):
        for name in ("hidden", "query", "key"):
            torch.testing.assert_close(getattr(parts[layer], name), getattr(whole[layer], name), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(whole[layer].mass(rows), capture[layer - 1].mass[rows], rtol=1e-4, atol=1e-6)


def test_pieces_follow_from_seed_and_step_alone(tiny):
    lm = tiny()
    texts = ["the first text " * 20, "the second " * 30]
    pieces, again = Pieces(lm, texts, (10, 50), 3), Pieces(lm, texts, (10, 50), 3)
    assert [piece.tolist() for piece in pieces.at(7)] == [piece.tolist() for piece in again.at(7)]
    assert pieces.at(7)[1].tolist() != pieces.at(8)[1].tolist() != Pieces(lm, texts, (10, 50), 4).at(8)[1].tolist()
    assert [len(piece) for piece in pieces.at(0)] == [10, 50] and all(piece[0] == 1 for piece in pieces.at(0))
    assert 1 not in pieces.ids and len(pieces.ids) == sum(map(len, texts))
    assert pieces.sha256 == again.sha256 != Pieces(lm, texts[:1], (10, 50), 3).sha256
    rows = pieces.rows(7, 50, 12)
    assert len(rows.unique()) == 12 and rows.equal(rows.sort().values) and rows.equal(again.rows(7, 50, 12))
    assert pieces.rows(7, 50, None).equal(torch.arange(50)) and len(pieces.rows(7, 10, 12)) == 10
    without_bos = Pieces(lm, [torch.arange(3, 80)], (77,), 0)
    assert without_bos.at(0)[0].equal(torch.arange(3, 80))


def test_a_gpu_reads_more_at_once(small, monkeypatch):
    lm, seen = small(), []
    monkeypatch.setattr(data_module, "_CHUNK_ON_GPU", 17)
    monkeypatch.setattr(data_module, "hidden_states", lambda *args, chunk, **_: seen.append(chunk))
    monkeypatch.setattr(type(lm), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: self)
    with pytest.raises(RuntimeError, match="layer 0 of tiny-llama does not attend through transformers"):
        read_attention(lm, ids_of(5, 1), [0], lambda: None)
    assert seen == [17]


def test_the_learning_rate_rises_and_falls():
    recipe = Recipe((0,), (8,), 100, None, 1, 2, 2, (1e4,), 0.01, 0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01]) and max(rates) == pytest.approx(0.01)
    assert rates[4:] == sorted(rates[4:], reverse=True) and rates[-1] == pytest.approx(0.0005, rel=0.05)
    assert Recipe((0,), (8,), 1, None, 1, 2, 2, (1e4,), 0.01, 0).rate(0) == 0.01


def test_a_divergence_that_is_lost_is_told(small, monkeypatch):
    monkeypatch.setattr(training_module, "divergence", lambda *_: divergence(*_) * torch.nan)
    with pytest.raises(RuntimeError, match="step 0: the divergence is .*nan.*a lower learning_rate may help"):
        distil(small(), 1, texts=[ids_of(100, 1)], lengths=[24], heads=2, dim=8, rope_dim=4)
