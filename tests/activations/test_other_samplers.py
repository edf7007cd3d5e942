"""The recorded rows on which other samplers keep another set: the sets are there, and are what is said of them."""

import sys
from pathlib import Path

import pytest
import torch

from activations import recorded
from activations.recorded import FOLDER

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "qp_kernels"))

import oracle  # noqa: E402


@pytest.fixture(scope="module")
def capture():
    return recorded("other_samplers")


@pytest.fixture(scope="module")
def cases(capture):
    return capture.meta["cases"]


def as_array(capture, case):
    return capture.logits(case["row"], "model").double().numpy()


def test_the_exact_set_is_allowed_and_the_samplers_is_not(capture, cases):
    assert len(cases) >= 5
    for case in cases:
        row, limits = as_array(capture, case), {"k": case["k"], "p": case["p"]}
        oracle.check_kept(row, case["exact"], **limits)
        with pytest.raises(AssertionError):
            oracle.check_kept(row, case["kept"], **limits)


def test_several_samplers_and_cuts(cases):
    assert len({case["sampler"] for case in cases}) >= 2
    assert {"k", "p"} <= {name for case in cases for name in ("k", "p") if case[name] is not None}
    for case in cases:
        assert case["version"] != "unknown" and case["why"] and case["exact"] != case["kept"]


def test_the_file_is_small_and_every_kept_token_has_a_name(capture, cases):
    assert (FOLDER / "other_samplers.safetensors").stat().st_size < 9e6 and len(capture) <= 8
    assert {case["row"] for case in cases} == set(range(len(capture)))
    for case in cases:
        assert not any(text.startswith("<id ") for text in capture.label(case["exact"]))


def test_few_tokens_of_the_text_go_along(capture):
    """The text is not ours: enough to see where a row is from, and how much the model had read."""
    lengths = [len(capture.context(row)) for row in range(len(capture))]
    assert max(lengths) <= 24 and len(capture.meta["context"]) == len(capture)
    assert all(read >= shown for read, shown in zip(capture.meta["context"], lengths, strict=True))
    assert (capture.next_ids == -1).all() and capture.logits(0).dtype is torch.bfloat16
