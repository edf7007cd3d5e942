"""Made-up queries and keys keep what they promise: needles are found, smoothness moves overlap, topics cluster."""

import dataclasses

import pytest
import torch

from activations import IndexCapture, synthetic
from qp_kernels import index_metrics as metrics
from qp_kernels.pivot import checks, dense_topk, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def make(T=32, N=600, H=4, D=16, *, smoothness=0.9, seed=1, **options):  # noqa: N803
    return synthetic.index(T, N, H, D, smoothness=smoothness, seed=seed, **options)


def dense(capture, topk):
    return dense_topk(capture.q, capture.k, capture.w, topk, lo=capture.lo, hi=capture.hi)


def scores(capture):
    options = {"q_scale": None, "k_scale": None, "lo": capture.lo, "hi": capture.hi}
    problem = checks.problem(capture.q, capture.k, capture.w, 1, **options, backend="auto", max_bytes=1 << 30)
    return reference.scores(problem)


def test_the_seed_decides_and_options_change_only_their_own():
    first, again, other = make(), make(), make(seed=2)
    for name in ("q", "k", "w", "lo", "hi", "positions", "ids"):
        assert getattr(first, name).equal(getattr(again, name))
    assert not first.q.equal(other.q) and not first.k.equal(other.k)
    assert first.q.shape == (32, 4, 16) and first.k.shape == (600, 16) and first.w.shape == (32, 4)
    with_needle = make(needles=1)
    assert (with_needle.k == first.k).all(1).sum() == 599 and with_needle.q[4:].equal(first.q[4:])
    assert first.meta["model"] == "synthetic" and "synthetic · synthetic · float32 · cpu" in repr(first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_dtypes_are_rounded_from_float32(dtype):
    assert make(dtype=dtype).k.float().equal(make().k.to(dtype).float())
    assert make(dtype=dtype, integers=True, zeros=0.3).q.float().equal(make(integers=True, zeros=0.3).q)


def test_smoothness_moves_the_overlap_of_neighbours():
    found = []
    for s in (0.0, 0.5, 0.8, 0.95, 0.99, 1.0):
        capture = make(64, 2048, smoothness=s)
        # The same keys for all, so that only the queries differ.
        same = dense_topk(capture.q, capture.k, capture.w, 64, hi=torch.full((64,), 1984))
        found.append(float(metrics.overlap_by_distance(same, [1])))
    assert all(a + 0.01 < b for a, b in zip(found, found[1:])) and found[-1] == 1.0


def test_all_rows_are_equal_at_one():
    capture = make(smoothness=1.0, topics=3)
    assert (capture.q == capture.q[0]).all() and (capture.w == capture.w[0]).all()
    far = metrics.overlap_by_distance(dense(make(256, 4096, smoothness=0.9), 64), [1, 4, 16])
    assert far[0] > far[1] > far[2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("options", [{}, {"topics": 4}, {"zeros": 0.5}, {"smoothness": 0.0}], ids=str)
def test_needles_are_found(dtype, integers, options):
    capture = make(40, 900, needles=5, dtype=dtype, integers=integers, **options)
    found = dense(capture, 5)
    assert len(set(capture.meta["needles"])) == 5
    for place, (start, stop) in zip(capture.meta["needles"], capture.meta["found_by"]):
        assert stop - start == 4 and place < capture.hi.min()
        assert (found[start:stop] == place).any(1).all()
        assert capture.tokens[place].startswith("needle")


def test_topics_cluster_and_have_long_tails():
    plain, capture = make(64, 4096, 16, 32), make(64, 4096, 16, 32, topics=6)
    found = dense(capture, 128).long()
    of_query = torch.tensor(capture.meta["topic_of_query"])
    hits = (capture.ids[found] == of_query[:, None]).double().mean()
    base = (capture.ids == of_query[:, None]).double().mean()
    assert hits > 2 * base and set(capture.ids.tolist()) <= set(range(6))

    def excess(values):
        z = (values - values.mean()) / values.std()
        return float((z**4).mean() - 3)

    def runs(selection):  # neighbours among the selected keys
        return float((selection[:, 1:] == selection[:, :-1] + 1).double().mean())

    assert excess(scores(capture)) > excess(scores(plain)) + 1
    assert runs(found) > 1.5 * runs(dense(plain, 128).long())


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(("heads", "zeros"), [(1, 0.8), (4, 0.5), (16, 0.3)])
def test_exact_zeros(heads, zeros, integers):
    capture = make(64, 4096, heads, 32, smoothness=0.0, zeros=zeros, integers=integers)
    share = metrics.zero_share(scores(capture), capture.lo, capture.hi).mean()
    assert float(share) == pytest.approx(zeros, abs=0.12)


def test_integers_are_whole_and_small():
    capture = make(integers=True, topics=3, needles=2)
    for values, largest in ((capture.q, 4), (capture.k, 8), (capture.w, 4)):
        assert (values == values.round()).all() and values.abs().max() <= largest
    assert (scores(capture) == scores(capture).round()).all()


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((0, 5, 1, 1), {}, "T must be an int of at least 1, got 0"),
        ((6, 5, 1, 1), {}, "T must be <= N, got 6 and 5"),
        ((2, 5, 1, 1), {"smoothness": 1.1}, r"smoothness must be in \[0, 1\], got 1.1"),
        ((2, 5, 1, 1), {"needles": 3}, "needles must be at most T and N - T"),
        ((2, 5, 1, 1), {"zeros": 0.5}, "zeros must be in"),
        ((2, 5, 1, 2), {"zeros": 1.0}, "zeros must be in"),
        ((2, 5, 1, 2), {"topics": -1}, "topics must be an int of at least 0"),
    ],
)
def test_wrong_arguments(sizes, options, words):
    with pytest.raises(ValueError, match=words):
        synthetic.index(*sizes, **{"smoothness": 0.5, "seed": 0, **options})
    with pytest.raises(TypeError, match="dtype must be"):
        synthetic.index(2, 5, 1, 1, smoothness=0.5, seed=0, dtype=torch.int8)


def test_smallest():
    for options in ({}, {"topics": 1}, {"needles": 1}, {"integers": True, "topics": 5}):
        assert synthetic.index(1, 1, 1, 1, smoothness=0, seed=0, **options).k.shape == (1, 1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q": None}, TypeError, "q must be a torch.Tensor"),
        ({"q": torch.zeros(2, 3)}, ValueError, "q must have 3 dimensions"),
        ({"k": torch.zeros(9, 4, dtype=torch.float16)}, TypeError, "share a dtype"),
        ({"k": torch.zeros(9, 5)}, ValueError, r"k must be \[N, D\]"),
        ({"w": torch.zeros(3, 2)}, ValueError, "w"),
        ({"hi": torch.tensor([1, 10])}, ValueError, "hi must be >= 0 and at most 9, got 1 to 10"),
        ({"lo": torch.tensor([-1, 0])}, ValueError, "lo must be >= 0"),
        ({"lo": torch.tensor([0])}, ValueError, "lo must have 2 entries"),
        ({"positions": torch.tensor([0, 9])}, ValueError, "positions must be >= 0 and at most 8"),
        ({"ids": torch.zeros(9, dtype=torch.int32)}, TypeError, "ids must be int64"),
        ({"tokens": ["a"]}, ValueError, "tokens must be a list of N = 9"),
        ({"mass": torch.zeros(2, 8)}, ValueError, r"mass must be \[T, N\]"),
        ({"meta": None}, TypeError, "meta must be a dict"),
    ],
)
def test_a_capture_checks_what_it_is_made_of(change, error, words):
    good = synthetic.index(2, 9, 2, 4, smoothness=0.5, seed=0)
    assert isinstance(good, IndexCapture) and len(good) == 2
    assert dataclasses.replace(good, mass=torch.zeros(2, 9)).mass.shape == (2, 9)
    with pytest.raises(error, match=words):
        dataclasses.replace(good, **change)
