"""Captures as files: bit-equal when read back, refused when anything is wrong."""

import errno
import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from activations import capture_logits, load_capture, save_capture, wrap
from activations import storage as storage_module

TEXTS = ["to be or not", "a second text"]


@pytest.fixture
def bf16(tiny_model, characters):
    return wrap(tiny_model("gemma3").bfloat16(), characters, name="tiny")


@pytest.mark.parametrize("head", ["rows", "head", "auto"])
@pytest.mark.parametrize("logits_dtype", ["float32", "model"])
def test_round_trip_is_bit_equal(bf16, tmp_path, head, logits_dtype):
    capture = capture_logits(bf16, TEXTS, positions=[0, 5, -1], logits_dtype=logits_dtype)
    path = save_capture(capture, tmp_path / "c.safetensors", head=head)
    loaded = load_capture(path)
    for name in ("ids", "starts", "positions", "next_ids", "unused"):
        assert torch.equal(getattr(loaded, name), getattr(capture, name)), name
    assert loaded.tokens == capture.tokens
    assert loaded.vocab_size == capture.vocab_size
    assert loaded.label(range(100)) == capture.label(range(100))
    for kind in ("float32", "model", None):
        assert torch.equal(loaded.logits(logits_dtype=kind), capture.logits(logits_dtype=kind))
        assert torch.equal(loaded.logits(1, kind), capture.logits(1, kind))
        assert loaded.logits(1, kind).dtype is capture.logits(1, kind).dtype
    assert loaded.caption == capture.caption + " · recorded"
    assert loaded.meta == {**capture.meta, "recorded": True}
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_computed_in_float32_stored_in_bf16(tiny_model, characters, tmp_path):
    """As `load` does on a CPU: the model's own logits round the hidden state too, and come back all the same."""
    from activations.models import LanguageModel

    lm = LanguageModel(tiny_model("llama").bfloat16().float(), characters, name="up", head_dtype=torch.bfloat16)
    capture = capture_logits(lm, TEXTS)
    for head in ("rows", "head"):
        path = save_capture(capture, tmp_path / f"{head}.safetensors", head=head)
        loaded = load_capture(path)
        for kind in ("float32", "model"):
            assert torch.equal(loaded.logits(logits_dtype=kind), capture.logits(logits_dtype=kind))
    assert load_file(tmp_path / "head.safetensors")["head_weight"].dtype is torch.bfloat16
    assert load_file(tmp_path / "head.safetensors")["hidden"].dtype is torch.float32


def test_auto_takes_the_smaller(bf16, tmp_path):
    few, many = (capture_logits(bf16, text) for text in ("a", "a" * 50))
    assert "rows_float32" in load_file(save_capture(few, tmp_path / "few.safetensors"))
    assert "head_weight" in load_file(save_capture(many, tmp_path / "many.safetensors"))


def test_a_loaded_capture_can_be_saved_again(bf16, tmp_path):
    capture = capture_logits(bf16, TEXTS[0])
    for head in ("rows", "head"):
        first = load_capture(save_capture(capture, tmp_path / "1.safetensors", head=head))
        second = load_capture(save_capture(first, tmp_path / "2.safetensors"))
        assert torch.equal(second.logits(), capture.logits())
        assert torch.equal(second.logits(logits_dtype="model"), capture.logits(logits_dtype="model"))
        assert second.meta == first.meta
    rows_only = load_capture(save_capture(capture, tmp_path / "1.safetensors", head="rows"))
    with pytest.raises(ValueError, match="stored rows only"):
        save_capture(rows_only, tmp_path / "2.safetensors", head="head")


def test_only_the_likeliest_tokens_carry_their_text(bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "_LABELS_PER_ROW", 3)
    capture = capture_logits(bf16, "zz", positions=[-1])
    loaded = load_capture(save_capture(capture, tmp_path / "c.safetensors", head="rows"))
    top = capture.logits(0).topk(3).indices
    assert loaded.label(top) == capture.label(top)
    assert loaded.tokens == capture.tokens
    lowest = capture.logits(0).argmin().item()
    assert loaded.label([lowest]) == [f"<id {lowest}>"]


def test_rows_with_nan_and_infinities_come_back(bf16, tmp_path):
    capture = load_capture(save_capture(capture_logits(bf16, "abc"), tmp_path / "c.safetensors", head="rows"))
    capture.source.float32[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    again = load_capture(save_capture(capture, tmp_path / "d.safetensors"))
    assert torch.equal(again.logits().view(torch.int32), capture.logits().view(torch.int32))


@pytest.mark.parametrize(
    ("path", "head", "words"),
    [("c.pt", "auto", "captures are .safetensors files"), ("c.safetensors", "all", "head must be 'auto', 'rows'")],
)
def test_wrong_arguments_write_nothing(bf16, tmp_path, path, head, words):
    with pytest.raises(ValueError, match=words):
        save_capture(capture_logits(bf16, "a"), tmp_path / path, head=head)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(bf16, tmp_path, monkeypatch):
    import safetensors.torch

    path = save_capture(capture_logits(bf16, "old"), tmp_path / "c.safetensors")
    before = path.read_bytes()

    def full(tensors, name, metadata):
        name.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="cannot write .*c.safetensors: No space left"):
        save_capture(capture_logits(bf16, "new"), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_missing_folder_is_an_os_error(bf16, tmp_path):
    with pytest.raises(OSError, match="cannot write"):
        save_capture(capture_logits(bf16, "a"), tmp_path / "no" / "c.safetensors")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no capture"):
        load_capture(tmp_path / "c.safetensors")


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"\xff" * 100, b"\x80\x04N.", b"\x02\0\0\0\0\0\0\0{}"])
def test_files_that_are_something_else(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.safetensors"):
        load_capture(path)


@pytest.mark.parametrize("keep", [4, 100, 2000, -1])
def test_truncated_files(bf16, tmp_path, keep):
    path = save_capture(capture_logits(bf16, "abc"), tmp_path / "c.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_capture(path)


def rewrite(path, change):
    """Apply `change(tensors, content, metadata)` to a saved capture."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors, content = load_file(path), json.loads(metadata["content"])
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors, content, metadata)
    if "content" in metadata and isinstance(metadata["content"], str):
        metadata["content"] = metadata.pop("raw", None) or json.dumps(content)
    save_file(tensors, path, metadata=metadata)


def setting(where, key, value):
    def change(tensors, content, metadata):
        {"tensor": tensors, "content": content, "meta": content["meta"], "metadata": metadata}[where][key] = value

    return change


HOSTILE = {
    "schema of tomorrow": setting("metadata", "schema", "qp-explorer/logit-capture/2"),
    "no schema": lambda t, c, m: m.pop("schema"),
    "content is no JSON": setting("metadata", "raw", "{"),
    "content is a list": setting("metadata", "raw", "[]"),
    "no ids": lambda t, c, m: t.pop("ids"),
    "no rows": lambda t, c, m: t.pop("rows_float32"),
    "no labels": lambda t, c, m: t.pop("label_bytes"),
    "no meta": lambda t, c, m: c.pop("meta"),
    "meta without model": lambda t, c, m: c["meta"].pop("model"),
    "layer is text": setting("meta", "layer", "<script>"),
    "device is a number": setting("meta", "device", 3),
    "vocab_size is text": setting("content", "vocab_size", "100"),
    "vocab_size is huge": setting("content", "vocab_size", 10**12),
    "vocab_size is zero": setting("content", "vocab_size", 0),
    "logits_dtype": setting("content", "logits_dtype", "int8"),
    "ids beyond the vocabulary": setting("tensor", "ids", torch.tensor([1, 2, 3, 1000])),
    "ids negative": setting("tensor", "ids", torch.tensor([1, 2, 3, -1])),
    "ids are floats": setting("tensor", "ids", torch.ones(4)),
    "ids are empty": setting("tensor", "ids", torch.ones(0, dtype=torch.int64)),
    "position beyond the text": setting("tensor", "positions", torch.tensor([0, 1, 2, 4])),
    "starts fall": setting("tensor", "starts", torch.tensor([0, 2, 1])),
    "starts begin late": setting("tensor", "starts", torch.tensor([1])),
    "rows too short": setting("tensor", "rows_float32", torch.ones(4, 99)),
    "rows are ints": setting("tensor", "rows_float32", torch.ones(4, 100, dtype=torch.int32)),
    "model rows too few": setting("tensor", "rows_model", torch.ones(3, 100, dtype=torch.bfloat16)),
    "label ids beyond": setting("tensor", "label_ids", torch.full((100,), 100, dtype=torch.int32)),
    "label ends fall": setting("tensor", "label_ends", torch.arange(100, 0, -1)),
    "label ends beyond": setting("tensor", "label_ends", torch.arange(100) * 1000),
    "label ends too few": setting("tensor", "label_ends", torch.arange(3)),
    "labels are no UTF-8": setting("tensor", "label_bytes", torch.full((5000,), 255, dtype=torch.uint8)),
    "unused beyond": setting("tensor", "unused_ids", torch.tensor([100])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(bf16, tmp_path, name):
    path = save_capture(capture_logits(bf16, "abc"), tmp_path / "c.safetensors", head="rows")
    rewrite(path, HOSTILE[name])
    with pytest.raises(ValueError, match=r"c\.safetensors"):
        load_capture(path)


ABOUT = {"model_dtype": "bfloat16", "compute_dtype": "bfloat16", "softcap": None, "scale": 1.0}
HOSTILE_HEADS = {
    "no hidden": lambda t, c, m: t.pop("hidden"),
    "hidden too narrow": setting("tensor", "hidden", torch.ones(4, 31)),
    "head too short": setting("tensor", "head_weight", torch.ones(99, 32)),
    "head of ints": setting("tensor", "head_weight", torch.ones(100, 32, dtype=torch.int8)),
    "bias too long": setting("tensor", "head_bias", torch.ones(101)),
    "dtype is a function": setting("content", "head", {**ABOUT, "model_dtype": "load"}),
    "dtype is an int": setting("content", "head", {**ABOUT, "compute_dtype": "int64"}),
    "dtype is unknown": setting("content", "head", {**ABOUT, "model_dtype": "x"}),
    "dtype is a number": setting("content", "head", {**ABOUT, "model_dtype": 16}),
    "scale is text": setting("content", "head", {**ABOUT, "scale": "1"}),
    "softcap is text": setting("content", "head", {**ABOUT, "softcap": "1"}),
    "head is gone": lambda t, c, m: c.pop("head"),
}


@pytest.mark.parametrize("name", HOSTILE_HEADS)
def test_hostile_heads_are_refused(bf16, tmp_path, name):
    path = save_capture(capture_logits(bf16, "abc"), tmp_path / "c.safetensors", head="head")
    rewrite(path, HOSTILE_HEADS[name])
    with pytest.raises(ValueError, match=r"c\.safetensors"):
        load_capture(path)


def test_plain_logits_of_a_file_that_is_no_capture(tmp_path):
    from safetensors.torch import save_file

    from activations import storage

    rows = torch.randn(2, 7)
    save_file({"logits": rows, "other": torch.zeros(1)}, tmp_path / "named.safetensors")
    save_file({"scores": rows}, tmp_path / "only.safetensors")
    save_file({"a": rows, "b": rows.clone()}, tmp_path / "two.safetensors")
    for name in ("named", "only"):
        path = tmp_path / f"{name}.safetensors"
        assert not storage.is_capture(path) and torch.equal(storage.load_logits(path), rows)
    with pytest.raises(ValueError, match="name one of them 'logits'"):
        storage.load_logits(tmp_path / "two.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 40)
    for read in (storage.is_capture, storage.load_logits):
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            read(tmp_path / "broken.safetensors")
