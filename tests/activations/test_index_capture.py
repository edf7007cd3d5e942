"""The index of an attention layer: the layer's own queries, keys and mass, whatever the model and the length."""

import threading

import pytest
import torch

from activations import capture_index, index_layers, load_capture, save_capture, wrap
from activations import forward as forward_module
from activations import index_attention as attention_module
from qp_kernels import index_metrics
from qp_kernels.pivot import dense_topk

GLOBAL = ["sliding_attention", "sliding_attention", "full_attention"]
# name -> what makes its last layer attend to everything, in models of three layers with 4 query and 2 key heads.
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"num_key_value_heads": 1},
    "mistral": {"sliding_window": None},
    "gemma2": {"layer_types": GLOBAL},
    "gemma3": {"layer_types": GLOBAL, "num_key_value_heads": 1},
    "gpt_oss": {"layer_types": GLOBAL, "sliding_window": 8},
    "gpt2": {},
    "gpt_neox": {},
    "granite": {},
    "qwen3_next": {},
}
TEXT = "to be or not to be"
IDS = torch.randint(3, 90, (60,), generator=torch.Generator().manual_seed(1))
FIELDS = ("q", "k", "w", "mass", "lo", "hi", "positions", "ids")


@pytest.fixture
def small(tiny):
    """Weights are large, so that attention is far from even."""
    return lambda name="llama", **more: tiny(name, **{"initializer_range": 0.4, **MODELS.get(name, {}), **more})


def own_attention(lm, ids, layer):
    """The layer's probabilities [Hq, N, N] as the model itself gives them."""
    lm.model.set_attn_implementation("eager")
    with torch.no_grad():
        given = lm.model(ids[None], output_attentions=True).attentions
    return given[layer - lm.n_layers + len(given)][0]  # layers of another kind give none


def close(a, b, **tolerance):
    torch.testing.assert_close(a, b, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


@pytest.mark.parametrize("name", MODELS)
def test_the_mass_is_that_of_the_models_attention(small, name):
    lm = small(name)
    capture = capture_index(lm, IDS, layer=2)
    close(capture.mass, own_attention(lm, IDS, 2).mean(0))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt_oss"])
def test_the_index_holds_the_logits_of_its_heads(small, name):
    """Softmax of what q, k and the scale give is what the model's heads of this key head attend with."""
    lm = small(name)
    config = lm.model.config
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    group = config.num_attention_heads // kv_heads
    for kv_head in range(kv_heads):
        capture = capture_index(lm, IDS, layer=2, kv_head=kv_head)
        logits = torch.einsum("thd,nd->htn", capture.q, capture.k) * capture.meta["scale"]
        if name == "gemma2":
            logits = (logits / 0.5).tanh() * 0.5
        later = torch.arange(60) > torch.arange(60)[:, None]
        ours = logits.masked_fill(later, -torch.inf).softmax(-1)
        heads = slice(kv_head * group, (kv_head + 1) * group)
        close(ours, own_attention(lm, IDS, 2)[heads])
        assert capture.q.shape[1] == group and capture.meta["heads"] == list(range(4))[heads]
        close(capture.w, torch.full((60, group), capture.meta["scale"] / group))


def test_the_scale_is_the_layers_own(small):
    assert capture_index(small("gemma3"), IDS, layer=2).meta["scale"] == pytest.approx(8**-0.5)
    lm = small("gemma3", query_pre_attn_scalar=64)
    assert capture_index(lm, IDS, layer=2).meta["scale"] == 1 / 8
    assert capture_index(small("granite", attention_multiplier=0.25), IDS, layer=0).meta["scale"] == 0.25


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, 16])
def test_chunks_give_what_one_pass_gives(small, name, chunk, monkeypatch):
    lm = small(name)
    whole = capture_index(lm, IDS, layer=2)
    monkeypatch.setattr(forward_module, "CHUNK", chunk)
    monkeypatch.setattr(attention_module, "_LOGITS_BYTES", 4 * 60 * 5)
    seen = []
    chunked = capture_index(lm, IDS, layer=2, progress=lambda *step: seen.append(step[0]))
    for field in FIELDS:
        close(getattr(chunked, field), getattr(whole, field), rtol=1e-3, atol=1e-4)
    assert seen == ([0, 60] if name == "qwen3_next" else [0, *range(chunk, 60, chunk), 60])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_computes_as_without_a_capture(small, implementation):
    lm = small("gemma3")
    lm.model.set_attn_implementation(implementation)
    before, states = [module.config for module in with_config(lm.model)], []
    lm.model.model.norm.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    with torch.no_grad():
        lm.model(IDS[None], use_cache=False)
    capture_index(lm, IDS, layer=2)
    assert len(states) == 2 and torch.equal(*states)
    assert all(module.config is config for module, config in zip(with_config(lm.model), before, strict=True))


def with_config(model):
    return [module for module in model.modules() if hasattr(module, "config")]


def test_positions_choose_queries_in_their_order(small):
    lm = small()
    whole = capture_index(lm, IDS, layer=1)
    some = capture_index(lm, IDS, layer=1, positions=[-1, 3, 3, 20])
    assert some.positions.tolist() == [59, 3, 3, 20] and some.hi.tolist() == [60, 4, 4, 21]
    assert some.lo.tolist() == [0] * 4 and torch.equal(some.k, whole.k) and some.tokens == whole.tokens
    for name in ("q", "w", "mass"):
        close(getattr(some, name), getattr(whole, name)[[59, 3, 3, 20]])


def test_layers_of_one_run(small):
    lm = small()
    both = capture_index(lm, IDS, layer=[2, 0, 2])
    assert [capture.meta["layer"] for capture in both] == [2, 0, 2]
    for capture, layer in zip(both, (2, 0, 2)):
        alone = capture_index(lm, IDS, layer=layer)
        assert all(torch.equal(getattr(capture, field), getattr(alone, field)) for field in FIELDS)


def test_mass_is_bounded_and_can_be_left_out(small, monkeypatch):
    lm = small()
    assert capture_index(lm, IDS, layer=0, mass=False).mass is None
    monkeypatch.setattr("activations.index_run.MASS_BYTES", 4 * 60 * 10)
    assert capture_index(lm, IDS, layer=0).mass is None
    assert capture_index(lm, IDS, layer=0, positions=range(10)).mass.shape == (10, 60)
    wanted = capture_index(lm, IDS, layer=0, mass=True)
    assert wanted.meta["mass"] == "mean over 4 heads"
    close(wanted.mass.sum(1), torch.ones(60))
    assert not wanted.mass.triu(1).any()


def test_what_the_capture_says_of_itself(small):
    capture = capture_index(small("qwen3"), TEXT, layer=2, positions=[-1])
    expected = {"model": "tiny-qwen3", "layer": 2, "n_layers": 3, "source": "attention", "dtype": "float32"}
    expected |= {"rope": "post", "kv_head": 0, "kv_heads": 1, "w": "scale / 4", "device": "cpu"}
    assert expected.items() <= capture.meta.items()
    assert capture.caption == "tiny-qwen3 · layer 2 · attention · float32 · cpu"
    assert capture.tokens[0] == "<id 1>" or len(capture.tokens) == len(TEXT) + 1
    assert capture_index(small("gpt2"), IDS, layer=0).meta["rope"] == "none"


def test_bf16_models_keep_their_bits(tiny_model, characters):
    lm = wrap(tiny_model("llama").bfloat16(), characters)
    capture = capture_index(lm, IDS, layer=1)
    assert capture.q.dtype is capture.k.dtype is torch.bfloat16
    assert capture.w.dtype is capture.mass.dtype is torch.float32
    assert dense_topk(capture.q, capture.k, capture.w, 5, lo=capture.lo, hi=capture.hi).shape == (60, 5)


def test_a_round_trip_and_selection(small, tmp_path):
    capture = capture_index(small(), IDS, layer=1)
    back = load_capture(save_capture(capture, tmp_path / "index.safetensors"))
    assert all(torch.equal(getattr(capture, field), getattr(back, field)) for field in FIELDS)
    assert back.meta == {**capture.meta, "recorded": True}
    indices = dense_topk(back.q, back.k, back.w, 60, lo=back.lo, hi=back.hi)
    close(index_metrics.captured(back.mass, indices), torch.ones(60, dtype=torch.float64))


def test_tensors_are_the_callers_to_change(small):
    capture = capture_index(small(), IDS, layer=1)
    for name in ("q", "k", "w", "mass"):
        getattr(capture, name).requires_grad_().sum().backward()


def test_one_token(small):
    capture = capture_index(small(), [5], layer=0)
    assert (len(capture), len(capture.k), capture.hi.tolist(), capture.mass.tolist()) == (1, 1, [1], [[1.0]])


def test_windows(small, monkeypatch):
    lm = small("gemma3")
    assert index_layers(lm) == [2] and index_layers(lm, n_tokens=8) == [0, 1, 2]
    with pytest.raises(
        ValueError, match=r"layer 0 attends to 8 neighbouring tokens only, of 60 .* layers \[2\] attend"
    ):
        capture_index(lm, IDS, layer=0)
    within = capture_index(lm, IDS[:8], layer=0)
    monkeypatch.setattr(forward_module, "CHUNK", 3)
    close(capture_index(lm, IDS[:8], layer=0).mass, within.mass)
    close(within.mass, own_attention(lm, IDS[:8], 0).mean(0))
    lm = small("mistral", sliding_window=8)
    assert index_layers(lm) == []
    with pytest.raises(ValueError, match="no layer of tiny-mistral attends to all of it"):
        capture_index(lm, IDS, layer=1)
    lm.model.config.sliding_window = None  # what the configuration does not tell, the call does
    lm.model.model.layers[1].self_attn.config.sliding_window = 8
    with pytest.raises(ValueError, match="layer 1 attends to 8 neighbouring tokens only"):
        capture_index(lm, IDS, layer=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layer": 3}, r"layer must be an int in \[0, 2\], got 3"),
        ({"layer": -1}, r"layer must be an int in \[0, 2\], got -1"),
        ({"layer": None}, r"layer must be an int in \[0, 2\], got None"),
        ({"layer": "1"}, r"layer must be an int in \[0, 2\], got '1'"),
        ({"layer": [0, True]}, r"layer must be an int in \[0, 2\], got True"),
        ({"layer": []}, "no layer is named"),
        ({"source": "weights"}, "source must be one of"),
        ({"source": "native"}, "layer 0 has no indexer: no layer of tiny-llama has one; source='attention' needs none"),
        ({"kv_head": 2}, r"layer 0 has 2 key heads: kv_head must be in \[0, 1\], got 2"),
        ({"kv_head": -1}, r"kv_head must be in \[0, 1\], got -1"),
        ({"kv_head": 0.5}, "kv_head must be an int"),
        ({"positions": [60]}, "position 60 is not in a text of 60 tokens"),
        ({"positions": [-61]}, "position -61 is not in a text of 60 tokens"),
        ({"positions": []}, "positions must be one or more ints"),
        ({"positions": [0.5]}, "positions must be one or more ints"),
        ({"text_or_ids": []}, "the list is empty"),
        ({"text_or_ids": torch.tensor([], dtype=torch.int64)}, "the list of ids is empty"),
        ({"text_or_ids": ["a", "b"]}, "give one text or its ids, got 2 texts"),
        ({"text_or_ids": "x" * 300}, "the text has 301 tokens, tiny-llama reads at most 256"),
    ],
)
def test_what_is_refused(small, arguments, words):
    with pytest.raises(ValueError, match=words):
        capture_index(small(), **{"text_or_ids": IDS, "layer": 0, **arguments})


def test_layers_of_another_kind(small):
    assert index_layers(small("qwen3_next")) == [2]
    with pytest.raises(ValueError, match=r"layer 1 has no attention .* layers \[2\] have one"):
        capture_index(small("qwen3_next"), IDS, layer=1)


def test_sources_that_are_not_there_have_no_layers(small):
    with pytest.raises(ValueError, match="source must be one of"):
        index_layers(small(), "weights")


def test_a_model_without_attention(small):
    assert index_layers(small("mamba")) == []
    with pytest.raises(ValueError, match="layer 0 has no attention .* no layer of tiny-mamba has one"):
        capture_index(small("mamba"), IDS, layer=0)


def test_attention_past_the_interface_is_told(small, monkeypatch):
    lm = small()
    attention = lm.model.model.layers[0].self_attn
    monkeypatch.setattr(attention, "forward", lambda hidden_states, **_: (hidden_states, None))
    with pytest.raises(RuntimeError, match="layer 0 of tiny-llama does not attend through transformers'"):
        capture_index(lm, IDS, layer=0)


def test_chunks_that_do_not_follow_on_each_other_are_told():
    rows = attention_module.AttentionRows(0, 9, torch.arange(9), None, with_mass=False)
    query, key = torch.zeros(2, 3, 4), torch.zeros(1, 8, 4)
    with pytest.raises(RuntimeError, match="layer 0 attends to 8 keys after 0 tokens were read"):
        rows(torch.nn.Module(), query, key, {})


def test_attention_to_later_tokens_is_refused(small):
    lm = small("gemma3")
    lm.model.model.layers[2].self_attn.is_causal = False
    with pytest.raises(ValueError, match="layer 2 also attends to later tokens"):
        capture_index(lm, IDS, layer=2)


def test_a_cancelled_capture_leaves_the_model_as_it_was(small, monkeypatch):
    lm = small()
    monkeypatch.setattr(forward_module, "CHUNK", 16)
    before = [module.config for module in with_config(lm.model)]

    def stop(done, total, what):
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_index(lm, IDS, layer=1, progress=stop)
    assert all(module.config is config for module, config in zip(with_config(lm.model), before, strict=True))
    assert len(capture_index(lm, IDS, layer=1)) == 60


def test_threads_and_training_mode(small):
    lm = small()
    lm.model.train()
    expected, found = capture_index(lm, IDS, layer=1), []
    threads = [threading.Thread(target=lambda: found.append(capture_index(lm, IDS, layer=1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(torch.equal(one.q, expected.q) for one in found)
    assert lm.model.training
