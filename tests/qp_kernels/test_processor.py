"""`QritaProcessor` as `generate` calls it."""

import math

import pytest
import torch
from places import QritaProcessor, divided, top_k_top_p
from rows_of import random_rows, same_bits

from qp_kernels import qrita

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize("limits", [{}, {"k": 5}, {"p": 0.6}, {"k": 5, "p": 0.6}])
def test_temperature_one_is_the_mask(limits):
    scores = random_rows(0, 13, 40)
    before = scores.clone()
    assert same_bits(QritaProcessor(**limits)(None, scores), top_k_top_p(scores, **limits))
    assert same_bits(scores, before)


def test_temperature_scales_before_the_cut():
    scores = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    got = QritaProcessor(k=30, p=0.8, temperature=0.7)(torch.zeros(4, 3, dtype=torch.long), scores)
    assert same_bits(got, top_k_top_p(divided(scores, 0.7), 30, 0.8))
    assert (QritaProcessor(p=0.8, temperature=2.0)(None, scores) > -math.inf).sum() > (got > -math.inf).sum()


def test_temperature_zero_keeps_the_argmax_alone():
    scores = torch.tensor([[1.0, 4.0, 4.0, 2.0]])
    for limits in ({}, {"k": 3}, {"p": 1.0}):
        got = QritaProcessor(**limits, temperature=0)(None, scores)
        assert got.tolist() == [[-math.inf, 4.0, -math.inf, -math.inf]]


def test_a_temperature_that_fp32_rounds_to_zero():
    scores = torch.tensor([[0.0, -1.0, -2.0]])
    got = QritaProcessor(k=2, temperature=1e-300)(None, scores)
    assert got[0, 0] == 0 and -math.inf < got[0, 1] < -1e37 and got[0, 2] == -math.inf


def test_tiny_temperature_leaves_scores_that_softmax_can_take():
    scores = torch.tensor([[-30.0, -20.0, -25.0], [3.0, 90.0, -1.0]])
    for dtype in (torch.float32, torch.float16):
        got = QritaProcessor(k=2, temperature=1e-30)(None, scores.to(dtype))
        assert got.softmax(-1).isfinite().all()


@pytest.mark.plain
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"k": -3}, ValueError),
        ({"k": 2.5}, TypeError),
        ({"k": True}, TypeError),
        ({"p": 1.2}, ValueError),
        ({"p": "all"}, TypeError),
        ({"temperature": -1}, ValueError),
        ({"temperature": math.inf}, ValueError),
        ({"temperature": None}, TypeError),
        ({"k": torch.tensor([1])}, TypeError),
    ],
)
def test_refused_at_construction(arguments, error):
    with pytest.raises(error):
        QritaProcessor(**arguments)


@pytest.mark.plain
def test_refuses_other_scores():
    with pytest.raises(TypeError, match="float32"):
        QritaProcessor(k=2)(None, torch.zeros(1, 4, dtype=torch.float64))


@pytest.mark.plain
def test_repr_reads_as_the_call():
    assert repr(qrita.QritaProcessor(50, 0.9)) == "QritaProcessor(k=50, p=0.9, temperature=1.0)"
