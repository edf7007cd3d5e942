"""Measures of index selections against Python sets."""

import random

import pytest
import torch

from qp_kernels import index_metrics as metrics
from qp_kernels import pivot
from qp_kernels.pivot import checks, reference


def selections(seed, rows=9, topk=5, keys=12):
    rng = random.Random(seed)
    sets = [set(rng.sample(range(keys), rng.randint(0, topk))) for _ in range(rows)]
    return sets, torch.tensor([sorted(one) + [-1] * (topk - len(one)) for one in sets], dtype=torch.int32)


@pytest.mark.parametrize("seed", range(20))
def test_sets(seed):
    (a, first), (b, second) = selections(seed), selections(seed + 100)
    assert metrics.common(first, second).tolist() == [len(x & y) for x, y in zip(a, b)]
    assert metrics.size(first).tolist() == [len(x) for x in a]
    want = [len(x & y) / len(y) if y else 1.0 for x, y in zip(a, b)]
    assert metrics.recall(first, second).tolist() == pytest.approx(want)
    want = [len(x & y) / max(len(x), len(y)) if x or y else 1.0 for x, y in zip(a, b)]
    assert metrics.overlap(first, second).tolist() == pytest.approx(want)
    far = metrics.overlap_by_distance(first, [1, 4])
    want = [
        sum(metrics.overlap(first[t : t + 1], first[t + d : t + d + 1]).item() for t in range(9 - d)) / (9 - d)
        for d in (1, 4)
    ]
    assert far.tolist() == pytest.approx(want)
    for g in (1, 2, 4):
        joint, union = metrics.joint_and_union(first, g)
        for i in range(9 // g):
            group = a[i * g : i * g + g]
            mean = sum(map(len, group)) / g
            if mean:
                assert float(joint[i]) == pytest.approx(len(set.intersection(*group)) / mean)
                assert float(union[i]) == pytest.approx(len(set.union(*group)) / mean)
    own = torch.arange(9)
    assert metrics.own_kept(first, own).tolist() == [t in a[t] for t in range(9)]


def test_mass_and_regret():
    mass = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.0, 0.0, 0.0, 0.0]])
    best, found = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0, 3], [-1, -1]])
    assert metrics.captured(mass, found).tolist() == [0.625, 0.0]
    assert metrics.regret(mass, found, best).tolist() == pytest.approx([1 - 0.625 / 0.75, 0.0])
    assert metrics.mass_curve(mass)[0].tolist() == [0.5, 0.75, 0.875, 1.0] and (metrics.mass_curve(mass)[1] == 0).all()
    assert metrics.mass_curve(torch.tensor([[1.0, float("nan"), 3.0]])).tolist() == [[0.75, 1.0, 1.0]]
    assert metrics.captured(torch.zeros(2, 0), torch.full((2, 3), -1)).tolist() == [0.0, 0.0]
    assert metrics.by_member(torch.tensor([1.0, 2.0, 3.0, 6.0, 9.0]), 2).tolist() == [2.0, 4.0]


def test_zeros_and_ties():
    scores = torch.tensor([[0.0, 2.0, 2.0, 0.0, 5.0], [0.0, 0.0, float("nan"), 0.0, 0.0]])
    lo, hi = torch.tensor([0, 1]), torch.tensor([4, 4])
    assert metrics.zero_share(scores, lo, hi).tolist() == [0.5, 1.0]
    assert metrics.tie_at(scores, 1, lo, hi).tolist() == [2, 2]
    assert metrics.tie_at(scores, 3, lo, hi).tolist() == [2, 0] and metrics.tie_at(scores, 9, lo, hi).tolist() == [0, 0]


def test_a_dense_selection_has_no_regret_and_full_recall():
    q, k, w = torch.randn(8, 2, 4), torch.randn(40, 4), torch.rand(8, 2)
    options = {"q_scale": None, "k_scale": None, "lo": None, "hi": None, "backend": "auto", "max_bytes": 1 << 20}
    scores = reference.scores(checks.problem(q, k, w, 5, **options))
    dense, refined = pivot.dense_topk(q, k, w, 5), pivot.pivot_topk(q, k, w, 5, guard=False)
    assert (metrics.recall(dense, dense) == 1).all() and (metrics.regret(scores, dense, dense) == 0).all()
    lost = metrics.regret(scores, refined, dense)
    assert (lost >= -1e-6).all() and ((lost > 1e-6) <= (metrics.recall(refined, dense) < 1)).all()


def test_a_fit_needs_as_many_speed_ups_as_lengths():
    with pytest.raises(ValueError, match="as many lengths as speed-ups"):
        metrics.fit_r([1.0], [], group=4, budget=8)
