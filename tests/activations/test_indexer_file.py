"""Indexers come back from a file bit by bit, and only for the layer and the model that they are of."""

import dataclasses
import json
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from activations import LightningIndexer, capture_index, index_layers, load_indexer, save_indexer, wrap
from activations import indexer_file as module
from activations.indexer import IndexerShape

IDS = torch.randint(3, 90, (40,), generator=torch.Generator().manual_seed(1))


def made(lm, layer=1, **shape):
    indexer = LightningIndexer(IndexerShape(**{"hidden_size": 32, "heads": 4, "dim": 16, "rope_dim": 8, **shape}))
    indexer.start(layer)
    indexer.meta = {**module.identity(lm, layer), "recipe": {"steps": 3}}
    return indexer.requires_grad_(False)


@pytest.fixture
def lm(tiny):
    return tiny()


@pytest.fixture
def path(lm, tmp_path):
    return save_indexer(made(lm), module.path_of(tmp_path, 1))


def test_a_round_trip_keeps_every_bit(lm, path):
    indexer, back = made(lm), load_indexer(path)
    assert path.name == "indexer_layer_1.safetensors" and [one.name for one in path.parent.iterdir()] == [path.name]
    assert back.meta == indexer.meta and back.shape == indexer.shape and not back.training
    for name, tensor in indexer.state_dict().items():
        assert back.state_dict()[name].equal(tensor)
    captures = [capture_index(lm, IDS, layer=1, source="distilled", indexers=one) for one in (indexer, path)]
    assert captures[0].q.equal(captures[1].q) and captures[0].w.equal(captures[1].w)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9, 1.0])
def test_one_wrong_bit_is_found(path, at):
    whole = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(whole[:8], "little")
    whole[begin + round(at * (len(whole) - 1 - begin))] ^= 1
    path.write_bytes(whole)
    with pytest.raises(
        ValueError, match="indexer_layer_1.safetensors is damaged: what it holds does not have the sha256"
    ):
        load_indexer(path)


def test_what_is_no_file_of_ours(path, tmp_path, lm):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_indexer(path)
    path.write_bytes(pickle.dumps({"wq": [1.0]}))
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_indexer(path)
    (tmp_path / "indexer.pt").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="indexers are .safetensors files, got 'indexer.pt'"):
        load_indexer(tmp_path / "indexer.pt")
    with pytest.raises(FileNotFoundError, match="there is no indexer .*none.safetensors"):
        capture_index(lm, IDS, layer=1, source="distilled", indexers=tmp_path / "none.safetensors")


def changed(path, change):
    """Write the file again with something changed and a sha256 that fits."""
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    content = json.loads(metadata["content"])
    change(tensors, content, metadata)
    metadata["content"] = json.dumps(content)
    save_file(tensors, path, metadata={**metadata, "sha256": module.digest_of(tensors, metadata["content"])})


def test_weights_that_are_float16_numbers_take_half_the_bytes(path, tmp_path):
    whole = load_indexer(path)
    rounded = load_indexer(path).half().float()
    small = save_indexer(rounded, tmp_path / "small.safetensors")
    assert small.stat().st_size < 0.6 * path.stat().st_size
    read = load_indexer(small).state_dict()
    assert all(tensor.equal(read[name]) for name, tensor in rounded.state_dict().items())
    assert not whole.wk.weight.equal(read["wk.weight"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t, c, m: m.update(schema="qp-explorer/lightning-indexer/9"),
            "has the schema .*indexer/9'; this version",
        ),
        (lambda t, c, m: t.pop("wk.weight"), "no sound indexer: its tensors are k_norm.bias"),
        (lambda t, c, m: t.update(more=torch.ones(1)), "no sound indexer: its tensors are k_norm.bias"),
        (
            lambda t, c, m: t.update({"wk.weight": torch.ones(8, 32)}),
            "wk.weight must be float32 or float16 .16, 32. .* got",
        ),
        (lambda t, c, m: t.update({"wk.weight": torch.ones(16, 32).bfloat16()}), "wk.weight must be float32"),
        (lambda t, c, m: t["wk.weight"][0].fill_(torch.nan), "wk.weight holds numbers that are not finite"),
        (lambda t, c, m: c.pop("shape"), "no complete indexer: 'shape' is missing"),
        (lambda t, c, m: c["meta"].pop("layer"), "no complete indexer: 'layer' is missing"),
        (lambda t, c, m: c.update(meta=3), "meta must name the model and the layer"),
        (lambda t, c, m: c["shape"].update(heads=0), "no sound indexer: heads must be an int of at least 1"),
        (lambda t, c, m: c["shape"].update(wings=2), "no sound indexer: .*wings"),
    ],
)
def test_files_that_are_whole_and_wrong(path, change, words):
    changed(path, change)
    with pytest.raises(ValueError, match=words):
        load_indexer(path)


def test_another_layer_or_model_is_refused(lm, tiny, path, tiny_model, characters):
    def refused(words, lm=lm, layer=1, indexers=path):
        with pytest.raises(ValueError, match=words):
            capture_index(lm, IDS, layer=layer, source="distilled", indexers=indexers)

    refused("indexer_layer_1.safetensors is not for layer 2 of tiny-llama: it is of layer 1, not of layer 2", layer=2)
    refused("was distilled from the model tiny-llama, this is tiny-qwen3", tiny("qwen3"))
    refused("the weights of layer 1 are not those that it was distilled from", tiny(seed=3))
    refused("it reads hidden states of 32, those of tiny-llama have 64", tiny(hidden_size=64))
    other = wrap(tiny_model("llama"), characters, name="tiny-llama")
    other.meta = {"gguf_sha256": "b" * 64}
    changed(path, lambda t, c, m: c["meta"].update(gguf_sha256="a" * 64))
    refused("was distilled from the GGUF file with sha256 a{64}, this is b{64}", other)
    other.meta = {"gguf_sha256": "a" * 64}
    assert len(capture_index(other, IDS, layer=1, source="distilled", indexers=path)) == 40
    refused(
        "the indexer given for layer 1 is not for layer 1 of tiny-llama: it is of layer 2", indexers={1: made(lm, 2)}
    )
    refused(r"there is no indexer of layer 0; there are those of layers \[1\]", layer=0, indexers={1: made(lm)})
    refused("the indexer is not for layer 0", layer=0, indexers=made(lm))
    with pytest.raises(TypeError, match="indexers must be files, a folder or LightningIndexer, got Tensor"):
        capture_index(lm, IDS, layer=1, source="distilled", indexers={1: torch.ones(1)})


def test_the_dtype_and_device_a_model_is_loaded_to_do_not_matter(lm, path):
    for dtype in (torch.bfloat16, torch.float16):
        lm.model.to(dtype)
        capture = capture_index(lm, IDS, layer=1, source="distilled", indexers=path)
        assert capture.q.dtype == capture.k.dtype == dtype and capture.w.dtype == torch.float32


def test_a_folder_tells_what_it_has(lm, path, tmp_path, monkeypatch):
    folder = path.parent
    assert index_layers(lm, "distilled", indexers=folder) == [1]
    save_indexer(made(lm, 0), module.path_of(folder, 0))
    (folder / "indexer_layer_x.safetensors").write_bytes(b"")
    assert module.layers_in(folder) == [0, 1] == index_layers(lm, "distilled", indexers=folder)
    with pytest.raises(
        ValueError, match=r"no indexer of layer 2 in .*: there are those of layers \[0, 1\]; activations.d"
    ):
        capture_index(lm, IDS, layer=[0, 2], source="distilled", indexers=folder)
    module.path_of(folder, 0).write_bytes(b"broken")
    assert index_layers(lm, "distilled", indexers=folder) == [1]
    monkeypatch.setattr(module, "FOLDER", tmp_path / "empty")
    assert index_layers(lm, "distilled") == []
    with pytest.raises(ValueError, match="no indexer of layer 1 in .*empty: there is none; .*`make indexers`"):
        capture_index(lm, IDS, layer=1, source="distilled")
    monkeypatch.setattr(module, "FOLDER", folder)
    assert index_layers(lm, "distilled") == [1] and len(capture_index(lm, IDS, layer=1, source="distilled")) == 40


def test_what_is_not_saved(lm, tmp_path):
    with pytest.raises(ValueError, match="indexers are .safetensors files, got 'a.bin'"):
        save_indexer(made(lm), tmp_path / "a.bin")
    nameless = made(lm)
    nameless.meta = {}
    with pytest.raises(ValueError, match="the indexer's meta says nothing of layer, model, sketch"):
        save_indexer(nameless, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
    assert dataclasses.asdict(nameless.shape) == nameless.about()
