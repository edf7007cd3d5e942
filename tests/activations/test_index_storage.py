"""Captures of an indexer come back from a file bit by bit, and damaged files say what is wrong."""

import dataclasses

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from activations import LogitCapture, load_capture, save_capture, synthetic

NAMES = ("q", "k", "w", "lo", "hi", "positions", "ids")


def made(**options):
    return synthetic.index(6, 20, 2, 8, smoothness=0.5, seed=1, topics=2, needles=1, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_round_trip_keeps_every_bit(tmp_path, dtype):
    capture = made(dtype=dtype)
    tokens = ["", " a", "法", "<b>\n", *capture.tokens[4:]]
    capture = dataclasses.replace(capture, tokens=tokens, mass=torch.rand(6, 20))
    assert save_capture(capture, tmp_path / "index.safetensors") == tmp_path / "index.safetensors"
    back = load_capture(tmp_path / "index.safetensors")
    for name in (*NAMES, "mass"):
        kept, read = getattr(capture, name), getattr(back, name)
        assert read.dtype is kept.dtype and read.view(torch.uint8).equal(kept.contiguous().view(torch.uint8))
    assert back.tokens == tokens and back.meta == {**capture.meta, "recorded": True}
    assert back.caption.endswith("recorded") and not isinstance(back, LogitCapture)
    save_capture(made(), tmp_path / "index.safetensors")
    assert load_capture(tmp_path / "index.safetensors").mass is None


def test_a_caption_says_what_is_known():
    assert dataclasses.replace(made(), meta={}).caption == "unnamed · float32 · cpu"
    known = {"model": "m", "layer": 5, "source": "attention"}
    assert dataclasses.replace(made(), meta=known).caption == "m · layer 5 · attention · float32 · cpu"


def changed(path, change):
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, m: t.pop("w"), "is no complete capture: 'w' is missing"),
        (lambda t, m: t.update(hi=t["hi"] + 100), "is no sound capture: hi must be"),
        (lambda t, m: t.update(lo=t["lo"].int()), "is no sound capture: lo must be int64"),
        (lambda t, m: t.update(token_ends=t["token_ends"] * 9), "token_ends must rise within"),
        (lambda t, m: t.update(token_ends=t["token_ends"][:-1].clone()), "tokens must be a list of N = 20"),
        (lambda t, m: t.update(token_bytes=t["token_bytes"].int()), "token_ends must be int64 and token_bytes uint8"),
        (lambda t, m: m.update(content='{"meta": 3}'), "meta must be an object"),
        (lambda t, m: m.update(schema="qp-explorer/index-capture/9"), "has the schema 'qp-explorer/index-capture/9'"),
    ],
)
def test_damaged_files_say_what_is_wrong(tmp_path, change, words):
    path = save_capture(made(), tmp_path / "index.safetensors")
    changed(path, change)
    with pytest.raises(ValueError, match=words):
        load_capture(path)


def test_other_names_of_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="captures are .safetensors files, got 'index.pt'"):
        save_capture(made(), tmp_path / "index.pt")
