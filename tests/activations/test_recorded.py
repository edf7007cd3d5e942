"""The recorded captures open anywhere, are what their provenance says, and carry the terms."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from activations import recorded, recorded_names
from activations.recorded import FOLDER

TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def openers():
    return recorded("openers")


def test_every_capture_opens_and_says_where_it_came_from():
    assert "openers" in recorded_names()
    for name in recorded_names():
        path = FOLDER / f"{name}.safetensors"
        provenance = json.loads(path.with_suffix(".json").read_text("utf-8"))
        assert provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert provenance["bytes"] == path.stat().st_size
        assert provenance["licence"] == TERMS
        capture = recorded(name)
        assert provenance["meta"]["model"] == capture.meta["model"]
        assert "derived" in capture.meta
        assert capture.caption.endswith("recorded")


def test_the_terms_travel_along():
    notice = (FOLDER / "NOTICE").read_text("utf-8")
    assert TERMS in notice
    assert "ai.google.dev/gemma/prohibited_use_policy" in notice
    assert "Gemma Terms of Use" in (FOLDER / "GEMMA_TERMS.txt").read_text("utf-8")


def test_openers_are_small_and_few(openers):
    assert (FOLDER / "openers.safetensors").stat().st_size < 6.5e6
    assert len(openers) <= 8
    assert openers.vocab_size == 262_144
    assert openers.unused.sum() == 6_242


def nucleus(row, p=0.9):
    mass = row.double().softmax(-1).sort(descending=True).values.cumsum(0)
    return int((mass < p - 1e-6).sum()) + 1


def test_openers_hold_a_peaked_a_medium_and_wide_rows(openers):
    sizes = {"".join(openers.context(i)[1:]): nucleus(openers.logits(i)) for i in range(len(openers))}
    assert sizes["import numpy as"] == 1
    assert 100 < sizes["The capital of France is"] < 170
    assert 1_200 < sizes["法国的首都是"] < 2_000
    assert sizes["To be, or not to be, that is the"] == pytest.approx(16, abs=3)
    top = openers.label(openers.logits(1).topk(2000).indices)
    assert top[0] == " np"
    assert not any(text.startswith("<id ") for text in top)


def test_the_bf16_head_ties_where_float32_does_not(openers):
    for row in range(len(openers)):
        fine, own = openers.logits(row), openers.logits(row, "model")
        assert own.dtype is torch.bfloat16
        assert len(own.unique()) < 5_000 < 100_000 < len(fine.unique())
        assert (fine - own.float()).abs().max() < 0.5


def test_any_working_directory(tmp_path):
    script = "from activations import recorded; assert len(recorded('openers')) > 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, timeout=60)
    assert run.returncode == 0


@pytest.mark.parametrize("name", ["x", "../openers", "openers.safetensors", ""])
def test_an_unknown_name_lists_those_there_are(name):
    with pytest.raises(ValueError, match="there are: index_layer_5, index_layer_11, index_layer_17, openers"):
        recorded(name)


def test_the_function_is_not_hidden_by_its_module():
    """In a fresh Python: importing a module puts it under its name into its package, once."""
    script = (
        "import sys, activations\n"
        "from importlib import import_module\n"
        "module = import_module('activations.recorded')\n"
        "assert module is sys.modules['activations.recorded'] is not activations.recorded\n"
        "assert activations.recorded is module.recorded\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
