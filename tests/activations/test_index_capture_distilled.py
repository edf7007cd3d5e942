"""Captures of a distilled indexer: what the indexer makes of what the layer reads, and the mass of its attention."""

import pytest
import torch

from activations import (
    Selection,
    capture_index,
    distil,
    distilled_indexers,
    index_layers,
    load_capture,
    save_capture,
    selected_attention,
)
from activations import forward as forward_module
from activations.index_capture import IndexCapture
from qp_kernels.pivot import dense_topk

IDS = torch.randint(3, 90, (60,), generator=torch.Generator().manual_seed(1))
GLOBAL = ["sliding_attention", "sliding_attention", "full_attention"]
# Models of three layers, whose last one attends to everything; gpt2 gives its hidden states by position.
MODELS = {
    "llama": {},
    "qwen3": {"num_key_value_heads": 1},
    "gemma3": {"layer_types": GLOBAL, "num_key_value_heads": 1},
    "gpt2": {},
    "gpt_oss": {"layer_types": GLOBAL, "sliding_window": 8},
    "qwen3_next": {},
    "deepseek_v32": {},
}


@pytest.fixture
def distilled(tiny):
    def make(name="llama", layers=2):
        lm = tiny(name, **MODELS[name])
        options = {"texts": [IDS.repeat(3)], "lengths": [20], "steps": 1, "heads": 3, "dim": 16, "rope_dim": 8}
        return lm, distil(lm, layers, **options).indexers

    return make


def input_of_attention(lm, layer):
    """What the layer's attention module is given, by the model's own names."""
    blocks = lm.model.transformer.h if hasattr(lm.model, "transformer") else lm.model.model.layers
    module = getattr(blocks[layer], "self_attn", None) or blocks[layer].attn
    seen = []

    def keep(_module, args, kwargs):
        seen.append(kwargs.get("hidden_states", args[0] if args else None))

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        lm.model(IDS[None], use_cache=False)
    handle.remove()
    return seen[0][0]


@pytest.mark.parametrize("name", MODELS)
def test_the_indexer_reads_what_the_attention_reads(distilled, name):
    lm, indexers = distilled(name)
    capture = capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers)
    assert isinstance(capture, IndexCapture) and capture.q.shape == (60, 3, 16)
    assert capture.k.shape == (60, 16) and capture.w.shape == (60, 3) and capture.w.dtype == torch.float32
    hidden, places = input_of_attention(lm, 2), torch.arange(60)
    q, w = indexers[2].queries(hidden, places)
    for found, wanted in ((capture.q, q), (capture.w, w), (capture.k, indexers[2].keys(hidden, places))):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert capture.mass.equal(capture_index(lm, IDS, layer=2, mass=True).mass)
    assert capture.hi.equal(places + 1) and not capture.lo.any()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next"])
@pytest.mark.parametrize("chunk", [1, 16])
def test_chunks_give_what_one_pass_gives(distilled, name, chunk, monkeypatch):
    lm, indexers = distilled(name)
    options = {"layer": 2, "source": "distilled", "indexers": indexers}
    whole = capture_index(lm, IDS, **options)
    monkeypatch.setattr(forward_module, "CHUNK", chunk)
    chunked = capture_index(lm, IDS, **options)
    for field in ("q", "k", "w", "mass"):
        torch.testing.assert_close(getattr(chunked, field), getattr(whole, field), rtol=1e-3, atol=1e-4)


def test_positions_layers_and_files(distilled, tmp_path):
    lm, indexers = distilled(layers=[0, 2])
    options = {"source": "distilled", "indexers": indexers}
    whole = capture_index(lm, IDS, layer=[2, 0], **options)
    assert [one.meta["layer"] for one in whole] == [2, 0]
    some = capture_index(lm, IDS, layer=0, positions=[-1, 3, 3, 20], mass=False, **options)
    rows = [59, 3, 3, 20]
    assert some.mass is None and some.positions.tolist() == rows and some.k.equal(whole[1].k)
    assert some.q.equal(whole[1].q[rows]) and some.w.equal(whole[1].w[rows])
    back = load_capture(save_capture(whole[0], tmp_path / "index.safetensors"))
    assert back.q.equal(whole[0].q) and back.meta == {**whole[0].meta, "recorded": True}
    topk = dense_topk(back.q, back.k, back.w, 5, lo=back.lo, hi=back.hi)
    assert (topk[4:] >= 0).all() and (topk.long() < back.hi[:, None]).all()


def test_what_the_caption_says(distilled):
    lm, indexers = distilled()
    meta = capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers).meta
    expected = {
        "model": "tiny-llama",
        "layer": 2,
        "source": "distilled",
        "dtype": "float32",
        "w": "weights_proj * scale",
    }
    expected |= {
        "rope": "post, half-split on the first 8 of 16",
        "mass": "mean over 4 heads",
        "scale": (3 * 16) ** -0.5,
    }
    assert expected.items() <= meta.items()
    assert meta["derived"] == "Distilled from activations of tiny-llama" and meta["recipe"]["steps"] == 1


def test_the_indexer_given_stays_as_it_is(distilled):
    lm, indexers = distilled()
    before = {name: tensor.clone() for name, tensor in indexers[2].state_dict().items()}
    lm.model.to(torch.bfloat16)
    capture = capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers)
    assert capture.q.dtype == torch.bfloat16
    assert all(tensor.equal(before[name]) for name, tensor in indexers[2].state_dict().items())
    assert not any(module._forward_pre_hooks for module in lm.model.modules())


def test_what_is_refused(distilled):
    lm, indexers = distilled("gemma3")
    assert index_layers(lm, "distilled", indexers=indexers) == [2]
    with pytest.raises(ValueError, match=r"layer 1 attends to 8 neighbouring tokens only, of 60"):
        capture_index(lm, IDS, layer=1, source="distilled", indexers=indexers)
    with pytest.raises(ValueError, match="kv_head .* is for source 'attention' alone"):
        capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers, kv_head=0)
    with pytest.raises(ValueError, match="indexers are for source 'distilled' alone, not for 'attention'"):
        capture_index(lm, IDS, layer=2, indexers=indexers)


def test_a_layer_that_is_called_without_hidden_states_is_told(distilled, monkeypatch):
    lm, indexers = distilled()
    attention = lm.model.model.layers[2].self_attn
    own = attention.forward
    monkeypatch.setattr(attention, "forward", lambda states, **kwargs: own(hidden_states=states, **kwargs))
    layer = lm.model.model.layers[2]
    called = layer.self_attn.__call__
    monkeypatch.setattr(type(attention), "__call__", lambda self, hidden_states, **k: called(states=hidden_states, **k))
    with pytest.raises(RuntimeError, match=r"layer 2 \(LlamaAttention\) is called without hidden states"):
        capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_model_on_its_selection_selects_what_the_capture_does(distilled, name):
    lm, indexers = distilled(name)
    functions, seen = distilled_indexers(lm, [2], indexers), []
    with selected_attention(lm, Selection("dense", 8), layers=[2], indexers=functions, watch=lambda *a: seen.append(a)):
        with torch.no_grad():
            lm.model(IDS[None])
        capture = capture_index(lm, IDS, layer=2, source="distilled", indexers=indexers)
    (found,) = seen[0][2]
    assert torch.equal(found, dense_topk(capture.q, capture.k, capture.w, 8))
