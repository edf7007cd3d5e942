"""Selections as bits: every number is the one that `index_metrics` gives for `dense_topk`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from activations import synthetic
from qp_kernels import index_metrics
from qp_kernels.pivot import dense_topk
from qp_kernels.pivot.ranking import rank_keys
from widgets.overlap_measures import Chosen, chance_joint, chance_union
from widgets.ranked_windows import Ranked, window_of


def ranked_of(capture, rows=None):
    rows = range(len(capture)) if rows is None else rows
    part = slice(rows.start, rows.stop)
    bounds = {"lo": capture.lo[part], "hi": capture.hi[part]}
    return Ranked.of(capture, rows, [rank_keys(capture.q[part], capture.k, capture.w[part], **bounds)])


@pytest.fixture(scope="module")
def capture():
    return synthetic.index(24, 300, 2, 16, seed=1, topics=4, integers=True)


@pytest.mark.parametrize("k", [1, 13, 64, 290, 300])
def test_the_numbers_are_those_of_index_metrics(capture, k):
    chosen = Chosen.at(ranked_of(capture), k)
    indices = dense_topk(capture.q, capture.k, capture.w, k, lo=capture.lo, hi=capture.hi)
    for row in (0, 23):
        assert chosen.keys(row).tolist() == indices[row][indices[row] >= 0].tolist()
    assert chosen.size.tolist() == index_metrics.size(indices).tolist()
    expected = index_metrics.overlap_by_distance(indices, range(1, 24)).numpy()
    distances, overlap = chosen.by_distance
    assert distances.tolist() == list(range(1, 24))
    np.testing.assert_allclose(overlap, expected, rtol=1e-12)
    assert chosen.adjacent == pytest.approx(expected[0], rel=1e-12)
    for g in (1, 2, 3, 4, 7, 24):
        joint, union = index_metrics.joint_and_union(indices, g)
        assert chosen.union_and_joint(g) == pytest.approx((float(union.mean()), float(joint.mean())), rel=1e-12)
    assert chosen.over_g[0].tolist() == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24]


def test_a_tie_at_the_cut_is_counted(capture):
    chosen = Chosen.at(ranked_of(capture), 40)
    scores = torch.zeros(24, 300)
    for j in range(2):
        scores += capture.w[:, j, None] * (capture.q[:, j] @ capture.k.T).relu()
    ties = 0
    for row in range(24):
        ordered = scores[row, : int(capture.hi[row])].sort(descending=True).values
        ties += int(ordered[39] == ordered[40])
    assert chosen.tied == ties > 0


def test_packed_sequences_are_not_compared(capture):
    lo = torch.where(torch.arange(24) < 10, 0, 200)
    ranked = ranked_of(replace(capture, lo=lo))
    chosen = Chosen.at(ranked, 20)
    assert chosen.by_distance[0].max() == 13
    pairs = [t for t in range(23) if t != 9]
    assert chosen.adjacent == pytest.approx(np.mean([chosen.overlap[t, t + 1] for t in pairs]))
    assert chosen.groups(4).tolist() == [0, 4, 10, 14, 18]


def test_queries_that_lie_apart_have_distances_and_no_groups(capture):
    positions = torch.arange(24) * 12
    ranked = ranked_of(replace(capture, positions=positions, hi=positions + 1))
    chosen = Chosen.at(ranked, 5)
    assert ranked.step == 12 and chosen.by_distance[0][:3].tolist() == [12, 24, 36]
    assert chosen.adjacent == pytest.approx(chosen.by_distance[1][0])
    assert not len(chosen.groups(2)) and np.isnan(chosen.union_and_joint(2)).all()
    assert chosen.over_g[0].tolist() == [1]


def test_queries_without_a_key_are_left_out(capture):
    q = capture.q.clone()
    q[5] = torch.nan
    chosen = Chosen.at(ranked_of(replace(capture, q=q)), 20)
    assert np.isnan(chosen.overlap[5]).all() and np.isnan(chosen.overlap[:, 5]).all()
    assert chosen.groups(4).tolist() == [0, 8, 12, 16, 20]
    assert chosen.adjacent == pytest.approx(np.mean([chosen.overlap[t, t + 1] for t in range(23) if t not in (4, 5)]))


def test_equal_scores_are_all_alike(capture):
    ranked = ranked_of(replace(capture, q=torch.zeros_like(capture.q)))
    assert ranked.alike == 24 and Chosen.at(ranked, 9).tied == 24 and Chosen.at(ranked, 9).adjacent == 1
    assert ranked_of(capture).alike == 0


def test_chance_is_what_random_selections_do():
    rng, keys, k = np.random.default_rng(0), 400, 60
    rank = np.argsort(np.argsort(rng.random((64, keys)), 1), 1).astype(np.int32)
    whole, bounds = np.full(64, keys), {"lo": np.zeros(64, np.int64), "hi": np.arange(keys - 63, keys + 1)}
    more = {"scores": -rank.astype(np.float32), "positions": np.arange(64)}
    ranked = Ranked(range(64), rank, np.zeros((64, keys), bool), whole, **more, **bounds)
    chosen = Chosen.at(ranked, k)
    assert chosen.share == pytest.approx(0.15)
    assert chosen.adjacent == pytest.approx(chosen.share, abs=0.02)
    for g in (2, 4, 16):
        union, joint = chosen.union_and_joint(g)
        assert union == pytest.approx(float(chance_union(chosen.share, g)), rel=0.03)
        assert joint == pytest.approx(float(chance_joint(chosen.share, g)), abs=0.02)


@pytest.mark.parametrize(
    ("query", "count", "rows"),
    [(0, 1, (0, 1)), (63, 64, (0, 64)), (64, 200, (64, 128)), (199, 200, (136, 200)), (130, 200, (128, 192))],
)
def test_the_window_holds_the_query(query, count, rows):
    assert window_of(query, count) == range(*rows) and query in window_of(query, count)
