"""The indexer itself: its rotation, its scores and the divergence, against loops in float64."""

import math

import pytest
import torch

from activations.indexer import IndexerShape, LightningIndexer, divergence, index_scores
from qp_kernels.pivot import dense_topk


def made(seed=0, **shape):
    indexer = LightningIndexer(IndexerShape(**{"hidden_size": 12, "heads": 3, "dim": 8, "rope_dim": 4, **shape}))
    indexer.start(seed)
    return indexer.requires_grad_(False)


def hidden_of(n, width=12, seed=1):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def turned(x, position, rope_dim, theta):
    """One vector, rotated by complex multiplication."""
    half, out = rope_dim // 2, x.double().clone()
    for i in range(half):
        turn = complex(math.cos(position * theta ** (-i / half)), math.sin(position * theta ** (-i / half)))
        value = complex(out[i], out[half + i]) * turn
        out[i], out[half + i] = value.real, value.imag
    return out


@pytest.mark.parametrize("shape", [{}, {"rope_dim": 0}, {"rope_dim": 8, "rope_theta": 1e6}, {"input_scale": 0.25}])
def test_queries_keys_and_weights_are_what_the_definition_says(shape):
    indexer, hidden = made(**shape), hidden_of(5)
    positions = torch.tensor([0, 1, 2, 700, 30_000])
    q, w = indexer.queries(hidden, positions)
    k = indexer.keys(hidden, positions)
    indexer.k_norm.weight.copy_(torch.linspace(0.5, 1.5, 8))
    indexer.k_norm.bias.copy_(torch.linspace(-1, 1, 8))
    normed = indexer.keys(hidden, positions)
    about = indexer.shape
    for row, position in enumerate(positions.tolist()):
        x = hidden[row].double() * about.input_scale
        for head in range(3):
            plain = indexer.wq.weight[8 * head : 8 * head + 8].double() @ x
            torch.testing.assert_close(
                q[row, head].double(), turned(plain, position, about.rope_dim, about.rope_theta), rtol=0, atol=4e-3
            )
        plain = indexer.wk.weight.double() @ x
        plain = (plain - plain.mean()) / (plain.var(unbiased=False) + 1e-6).sqrt()
        for found, factor, shift in ((k, 1, 0), (normed, torch.linspace(0.5, 1.5, 8), torch.linspace(-1, 1, 8))):
            wanted = turned(plain * factor + shift, position, about.rope_dim, about.rope_theta)
            torch.testing.assert_close(found[row].double(), wanted, rtol=0, atol=4e-3)
        wanted = indexer.weights_proj.weight.double() @ x * (3 * 8) ** -0.5
        torch.testing.assert_close(w[row].double(), wanted, rtol=0, atol=1e-5)


def test_a_rotated_score_depends_on_the_distance_alone():
    indexer, hidden = made(rope_dim=8), hidden_of(2)
    scores = []
    for shift in (0, 5, 100):
        q, w = indexer.queries(hidden[:1], torch.tensor([7 + shift]))
        scores.append(index_scores(q, indexer.keys(hidden[1:], torch.tensor([3 + shift])), w).item())
    assert scores[1] == pytest.approx(scores[0], abs=1e-4) and scores[2] == pytest.approx(scores[0], abs=1e-4)
    q, w = indexer.queries(hidden[:1], torch.tensor([9]))
    assert index_scores(q, indexer.keys(hidden[1:], torch.tensor([3])), w).item() != pytest.approx(scores[0], abs=1e-3)


def test_scores_rank_as_dense_selection_does():
    generator = torch.Generator().manual_seed(3)
    q, k, w = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((6, 3, 4), (20, 4), (6, 3)))
    scores = index_scores(q, k, w)
    by_hand = sum(w[:, j, None] * (q[:, j] @ k.t()).clamp(min=0) for j in range(3))
    assert scores.equal(by_hand)
    hi = torch.full((6,), 20)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :5].sort(1).values
    assert dense_topk(q, k, w, 5, lo=torch.zeros(6, dtype=torch.int64), hi=hi).equal(best.int())


def test_the_divergence_is_that_of_the_books():
    generator = torch.Generator().manual_seed(4)
    target, scores = torch.rand(3, 6, generator=generator), 5 * torch.randn(3, 6, generator=generator)
    hi = torch.tensor([1, 4, 6])
    target[torch.arange(6) >= hi[:, None]] = 0
    target[2, 0] = 0
    found = divergence(target, scores, hi)
    for row, end in enumerate(hi.tolist()):
        p = (target[row, :end] / target[row, :end].sum()).tolist()
        total = sum(math.exp(one) for one in scores[row, :end].tolist())
        log_q = [one - math.log(total) for one in scores[row, :end].tolist()]
        wanted = sum(a * (math.log(a) - b) for a, b in zip(p, log_q) if a)
        assert found[row].item() == pytest.approx(wanted, abs=1e-5)
    assert found[0] == 0
    assert divergence(scores.softmax(1), scores, torch.tensor([6, 6, 6])).abs().max() < 1e-6


def test_the_gradient_is_finite_where_attention_is_zero_and_none_comes_from_later_keys():
    scores = torch.randn(2, 5, requires_grad=True)
    target = torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0]])
    divergence(target, scores, torch.tensor([3, 4])).sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad[0, 3:].any() and not scores.grad[1, 4:].any() and scores.grad[0, :3].all()


def test_the_same_seed_starts_alike():
    assert made(5).wq.weight.equal(made(5).wq.weight) and not made(5).wq.weight.equal(made(6).wq.weight)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"heads": 0}, "heads must be an int of at least 1, got 0"),
        ({"dim": 2.0}, "dim must be an int of at least 1, got 2.0"),
        ({"dim": 257}, "dim must be at most 256, got 257"),
        ({"rope_dim": 3}, "rope_dim must be even and at most dim = 8, got 3"),
        ({"rope_dim": 10}, "rope_dim must be even and at most dim = 8, got 10"),
        ({"hidden_size": True}, "hidden_size must be an int of at least 1, got True"),
        ({"rope_theta": 0.0}, "rope_theta must be a positive number, got 0.0"),
        ({"input_scale": float("nan")}, "input_scale must be a positive number, got nan"),
    ],
)
def test_shapes_that_cannot_be(shape, words):
    with pytest.raises(ValueError, match=words):
        IndexerShape(**{"hidden_size": 12, "dim": 8, "rope_dim": 4, **shape})
