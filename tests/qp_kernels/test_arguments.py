"""Errors of the public functions: type, message, and that nothing is changed."""

import math
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest
import torch
from rows_of import random_rows, same_bits

from qp_kernels.qrita import sample, select, top_k_top_p, truncation
from qp_kernels.qrita.overlap import overlaps_itself, share_memory

LOGITS = random_rows(0, 3, 8)
FUNCTIONS = (top_k_top_p, select, sample, truncation)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "torch.Tensor, got list"),
        (np.zeros((2, 3), np.float32), TypeError, "torch.Tensor, got ndarray"),
        (torch.zeros(2, 3, dtype=torch.float64), TypeError, "float32, float16 or bfloat16, got float64"),
        (torch.zeros(2, 3, dtype=torch.int64), TypeError, "got int64"),
        (torch.zeros(2, 3, dtype=torch.bool), TypeError, "got bool"),
        (torch.zeros(2, 3).to_sparse(), TypeError, "dense"),
        (torch.zeros(()), ValueError, r"\[B, V\] or \[V\]"),
        (torch.zeros(2, 3, 4), ValueError, r"got shape \[2, 3, 4\]"),
        (torch.zeros(2, 0), ValueError, "V >= 1"),
        (torch.zeros(0), ValueError, "V >= 1"),
        (torch.zeros(2, 3, device="meta"), RuntimeError, "not supported.*cpu"),
    ],
)
def test_logits(function, logits, error, message):
    with pytest.raises(error, match=message):
        function(logits, 1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (2.0, TypeError, "k must be an int.*got 2.0"),
        (np.float32(2), TypeError, "k must be an int"),
        (True, TypeError, "got True"),
        (np.bool_(True), TypeError, "got np.True_"),
        ("3", TypeError, "got '3'"),
        ([1, 2, 3], TypeError, "integer tensor"),
        (np.array([1, 2, 3]), TypeError, "integer tensor"),
        (math.nan, TypeError, "got nan"),
        (-2, ValueError, "k must be >= -1, got -2"),
        (-(10**30), ValueError, "k must be >= -1"),
        (torch.tensor([1.0, 2.0, 3.0]), TypeError, "got a float32 tensor"),
        (torch.tensor([True, True, False]), TypeError, "got a bool tensor"),
        (torch.tensor([1, 2, 3]).to_sparse(), TypeError, "k must be a dense tensor"),
        (torch.tensor([1, 2]), ValueError, r"k must have shape \[3\], got \[2\]"),
        (torch.tensor([[1], [2], [3]]), ValueError, r"shape \[3\]"),
        (torch.tensor(2), ValueError, r"shape \[3\], got \[\]"),
        (torch.tensor([1, -5, 2]), ValueError, "k must be >= -1, got -5"),
        (torch.tensor([1, 2, 3], device="meta"), ValueError, "k must be on cpu as logits are, got meta"),
    ],
)
def test_k(function, k, error, message):
    with pytest.raises(error, match=message):
        function(LOGITS, k)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("p", "error", "message"),
    [
        (-0.1, ValueError, r"p must be in \[0, 1\], got -0.1"),
        (1.0000001, ValueError, "got 1.0000001"),
        (2, ValueError, "got 2"),
        (math.nan, ValueError, "got nan"),
        (math.inf, ValueError, "got inf"),
        (np.float32(1.5), ValueError, "got 1.5"),
        (True, TypeError, "p must be a number, got True"),
        (np.bool_(False), TypeError, "p must be a number"),
        ("0.9", TypeError, "got '0.9'"),
        (0.5j, TypeError, "got 0.5j"),
        ([0.5] * 3, TypeError, "p must be a number"),
        (torch.tensor([1, 1, 0]), TypeError, "got int64"),
        (torch.tensor([0.5, 0.5]), ValueError, r"p must have shape \[3\], got \[2\]"),
        (torch.tensor([0.5, math.nan, 0.5]), ValueError, "got nan"),
        (torch.tensor([0.5, 0.5, 1.5]), ValueError, "got 1.5"),
        (torch.tensor([0.5, 0.5, -0.5]), ValueError, "got -0.5"),
        (torch.tensor([0.5, 0.5, 0.5], device="meta"), ValueError, "p must be on cpu"),
    ],
)
def test_p(function, p, error, message):
    with pytest.raises(error, match=message):
        function(LOGITS, None, p)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_k_top_p(LOGITS, 2, order="p_then_k"), "order must be one of 'k_then_p', 'joint', got 'p_then_k'"),
        (lambda: top_k_top_p(LOGITS, 2, ties="some"), "ties must be one of 'index', 'all', got 'some'"),
        (lambda: top_k_top_p(LOGITS, 2, ties=None), "got None"),
        (
            lambda: top_k_top_p(LOGITS, 2, backend="cuda"),
            "backend must be one of 'auto', 'triton', 'torch', got 'cuda'",
        ),
        (lambda: select(LOGITS, 2, order="both"), "order must be"),
        (lambda: truncation(LOGITS, 2, rule="gauss"), "rule must be one of 'sigma', 'paper', got 'gauss'"),
        (lambda: truncation(LOGITS, 2, order="x"), "order must be"),
        (lambda: truncation(LOGITS, 2, margin=-0.1), "margin must be finite and >= 0, got -0.1"),
        (lambda: truncation(LOGITS, 2, margin=math.nan), "margin must be finite"),
        (lambda: truncation(LOGITS, 2, margin=math.inf), "margin must be finite"),
        (lambda: select(LOGITS, 2, max_candidates=0), "max_candidates must be >= 1, got 0"),
        (lambda: sample(LOGITS, temperature=-1), "temperature must be finite and >= 0, got -1"),
        (lambda: sample(LOGITS, temperature=math.nan), "temperature must be finite"),
        (lambda: sample(LOGITS, temperature=math.inf), "temperature must be finite"),
        (lambda: sample(LOGITS, temperature=torch.tensor([1.0, math.inf, 1.0])), "got inf"),
        (lambda: sample(LOGITS, temperature=torch.tensor([1.0, -2.0, 1.0])), "got -2.0"),
        (lambda: sample(LOGITS, seeds=torch.tensor([1, 2])), r"seeds must have shape \[3\], got \[2\]"),
        (lambda: sample(LOGITS, seeds=torch.tensor([1, 2, 3], device="meta")), "seeds must be on cpu"),
    ],
)
def test_wrong_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: truncation(LOGITS, 2, margin="wide"), "margin must be a number"),
        (lambda: truncation(LOGITS, 2, margin=True), "margin must be a number"),
        (lambda: select(LOGITS, 2, max_candidates=2.0), "max_candidates must be an int, got 2.0"),
        (lambda: select(LOGITS, 2, max_candidates=True), "max_candidates must be an int"),
        (lambda: sample(LOGITS, temperature="hot"), "temperature must be a number"),
        (lambda: sample(LOGITS, temperature=True), "temperature must be a number"),
        (lambda: sample(LOGITS, temperature=torch.tensor([1, 1, 1])), "got int64"),
        (lambda: sample(LOGITS, seeds=7), "seeds must be an int64 tensor.*got 7"),
        (lambda: sample(LOGITS, seeds=torch.tensor([1, 2, 3], dtype=torch.int32)), "got a int32 tensor"),
        (lambda: sample(LOGITS, generator=7), "generator must be a torch.Generator"),
        (lambda: top_k_top_p(LOGITS, 2, out=LOGITS.numpy()), "out must be a torch.Tensor"),
        (lambda: top_k_top_p(LOGITS, 2, out=LOGITS.double()), "out must be torch.float32"),
        (lambda: top_k_top_p(LOGITS, 2, out=LOGITS.to_sparse()), "out must be a dense"),
    ],
)
def test_wrong_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_what_counts_as_a_number():
    class Three(IntEnum):
        VALUE = 3

    want = top_k_top_p(LOGITS, 3, 0.5)
    for k in (np.int64(3), np.uint8(3), Three.VALUE):
        for p in (np.float64(0.5), np.float16(0.5), Fraction(1, 2)):
            assert same_bits(top_k_top_p(LOGITS, k, p), want)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64):
        assert same_bits(top_k_top_p(LOGITS, torch.tensor([3, 3, 3]).to(dtype), 0.5), want)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert same_bits(top_k_top_p(LOGITS, 3, torch.full((3,), 0.5, dtype=dtype)), want)
    strided = torch.tensor([3, 0, 3, 0, 3, 0])[::2]
    assert same_bits(top_k_top_p(LOGITS, strided, torch.tensor(0.5).expand(3)), want)


def test_k_beyond_any_integer_type_is_off():
    assert same_bits(top_k_top_p(LOGITS, 10**40), top_k_top_p(LOGITS))
    for k in (torch.full((3,), 2**63 - 1), torch.full((3,), 2**64 - 1, dtype=torch.uint64)):
        assert same_bits(top_k_top_p(LOGITS, k), top_k_top_p(LOGITS))


def test_one_row_takes_one_value():
    row = LOGITS[0]
    want = top_k_top_p(row, 3, 0.5)
    for k, p in ((torch.tensor(3), torch.tensor(0.5)), (torch.tensor([3]), torch.tensor([0.5]))):
        assert same_bits(top_k_top_p(row, k, p), want)
    with pytest.raises(ValueError, match=r"k must have shape \[\] \(0-d\), got \[2\]"):
        top_k_top_p(row, torch.tensor([1, 2]))


@pytest.mark.parametrize(
    ("make_out", "message"),
    [
        (lambda x: torch.empty(3, 9), "out must have shape"),
        (lambda x: torch.empty(24), "out must have shape"),
        (lambda x: torch.empty(3, 8, device="meta"), "out must be on cpu"),
        (lambda x: torch.empty(1, 8).expand(3, 8), "out must not overlap itself"),
        (lambda x: torch.empty(3, 1).expand(3, 8), "out must not overlap itself"),
        (lambda x: torch.empty(30).as_strided((3, 8), (4, 1)), "out must not overlap itself"),
        (lambda x: torch.empty(60).as_strided((3, 8), (6, 3)), "out must not overlap itself"),
    ],
)
def test_out_that_cannot_hold_the_result(make_out, message):
    logits = LOGITS.clone()
    with pytest.raises(ValueError, match=message):
        top_k_top_p(logits, 2, out=make_out(logits))
    assert same_bits(logits, LOGITS)


def test_out_on_a_part_of_the_input():
    buffer = torch.randn(60)
    before = buffer.clone()
    logits = buffer[:24].view(3, 8)
    for out in (
        buffer[1:25].view(3, 8),
        buffer[23:47].view(3, 8),
        buffer[:24].view(8, 3).t(),
        buffer[:48].view(3, 16)[:, ::2],
    ):
        with pytest.raises(ValueError, match="partly overlaps"):
            top_k_top_p(logits, 2, out=out)
        assert buffer.equal(before)


def test_out_beside_the_input():
    """Halves of one buffer interleave without sharing an address."""
    buffer = torch.randn(3, 16)
    for logits, out in ((buffer[:, :8], buffer[:, 8:]), (buffer[:, ::2], buffer[:, 1::2])):
        before = logits.clone()
        top_k_top_p(logits, 2, 0.9, out=out)
        assert same_bits(logits.contiguous(), before) and same_bits(out, top_k_top_p(before, 2, 0.9))


def test_in_place_through_an_expanded_view_is_refused():
    view = torch.randn(1, 8).expand(3, 8)
    with pytest.raises(ValueError, match="overlap itself"):
        top_k_top_p(view, 2, out=view)


@pytest.mark.parametrize("call", [{"k": -7}, {"p": 3.0}, {"k": 1.5}, {"k": 2, "ties": "?"}, {"k": 2, "backend": "?"}])
def test_nothing_is_written_when_an_error_is_raised(call):
    logits, out = LOGITS.clone(), torch.full((3, 8), 7.0)
    for target in (out, logits):
        with pytest.raises((TypeError, ValueError)):
            top_k_top_p(logits, **call, out=target)
    assert same_bits(logits, LOGITS) and (out == 7.0).all()


def test_overlap_agrees_with_enumeration():
    """All small shapes and strides, against a list of addresses."""
    memory = torch.zeros(64)
    views = [
        memory.as_strided((rows, columns), (s, t), offset)
        for rows in (1, 2, 3)
        for columns in (1, 2, 4)
        for s in (0, 1, 2, 3, 5, 8)
        for t in (0, 1, 2, 3, 7)
        for offset in (0, 3)
    ]
    places = torch.arange(64)
    addresses = [places.as_strided(v.shape, v.stride(), v.storage_offset()).flatten().tolist() for v in views]
    for view, mine in zip(views, addresses):
        assert overlaps_itself(view) == (len(set(mine)) < len(mine))
    for i in range(0, len(views), 7):
        for j in range(0, len(views), 5):
            assert share_memory(views[i], views[j]) == bool(set(addresses[i]) & set(addresses[j]))
