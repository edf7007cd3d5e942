"""Captures of real indexers select what the model selects: prefill, cached decode, shared layers."""

import pytest
import torch

from activations import capture_index, index_layers, index_native, wrap
from activations import forward as forward_module
from qp_kernels import index_metrics
from qp_kernels.pivot import dense_topk

MODELS = ("deepseek_v32", "glm_moe_dsa")
TOPK, N = 10, 60
IDS = torch.randint(3, 90, (N,), generator=torch.Generator().manual_seed(1))
SHARED = {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}


def close(a, b, **tolerance):
    torch.testing.assert_close(a, b, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


def varied(lm):
    """Weights large enough, and norms different enough, that every step of the indexer matters."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if "indexer" in name or "q_a_layernorm" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5 + ("norm.weight" in name))
    return lm


@pytest.fixture
def small(tiny):
    return lambda name, **more: varied(tiny(name, **more))


@pytest.fixture(params=MODELS)
def lm(request, small):
    return small(request.param)


def own_selections(lm, ids=IDS, layer=0):
    """What the model's own indexer gives, [N, topk], in one pass without a cache."""
    seen = []
    indexer = index_native.indexer_of(lm.model, layer)[0]
    handle = indexer.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    with torch.no_grad():
        lm.model(ids[None], use_cache=False)
    handle.remove()
    return seen[0]


def scores(capture):
    return torch.einsum("thn,th->tn", torch.einsum("thd,nd->thn", capture.q, capture.k).relu(), capture.w)


def selection(capture, topk=TOPK):
    return dense_topk(capture.q, capture.k, capture.w, topk, lo=capture.lo, hi=capture.hi)


def differing(capture, own):
    """Full rows whose selection is another one, though not by keys that score the same as the last selected."""
    ours, values, rows = selection(capture), scores(capture), []
    for row, t in enumerate(capture.positions.tolist()):
        if t + 1 < TOPK:
            continue  # the model fills such rows with later positions
        a, b = set(ours[row].tolist()), set(own[t].tolist())
        cut = values[row, ours[row].long()].min()
        if any((values[row, s] - cut).abs() > 1e-4 * values[row].abs().max() for s in a ^ b):
            rows.append(t)
    return rows


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_every_full_row_selects_what_the_model_selects(lm, layer):
    capture = capture_index(lm, IDS, layer=layer, source="native")
    assert (capture.q.shape, capture.k.shape, capture.w.shape) == ((N, 8, 16), (N, 16), (N, 8))
    own = own_selections(lm, layer=layer)
    assert own.shape == (N, TOPK) and differing(capture, own) == []
    ours = selection(capture)[TOPK - 1 :].long()
    same = (ours == own[TOPK - 1 :].sort(1).values).all(1)
    assert same.double().mean() > 0.9  # and ties are not what decides


@pytest.mark.parametrize("name", MODELS)
def test_scores_that_tie(small, name):
    """With one head half of all scores are exactly zero, and the cut goes through them."""
    lm = small(name, index_n_heads=1)
    capture = capture_index(lm, IDS, layer=0, source="native")
    cut = index_metrics.tie_at(scores(capture), TOPK, capture.lo, capture.hi)
    assert (cut > 1).any() and differing(capture, own_selections(lm)) == []


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_cached_decode_and_chunks_give_what_prefill_gives(lm, chunk, monkeypatch):
    whole = capture_index(lm, IDS, layer=1, source="native")
    monkeypatch.setattr(forward_module, "CHUNK", chunk)
    chunked = capture_index(lm, IDS, layer=1, source="native")
    for name in ("q", "k", "w", "mass"):
        close(getattr(chunked, name), getattr(whole, name), rtol=1e-3)
    assert differing(chunked, own_selections(lm, layer=1)) == []


@pytest.mark.parametrize("name", MODELS)
def test_bf16(tiny_model, characters, name):
    lm = varied(wrap(tiny_model(name).bfloat16(), characters))
    capture = capture_index(lm, IDS, layer=1, source="native")
    assert capture.q.dtype is capture.k.dtype is torch.bfloat16 and capture.w.dtype is torch.float32
    fields = {name: getattr(capture, name).float() for name in ("q", "k", "w")}
    same = selection(capture)[TOPK - 1 :] == own_selections(lm, layer=1)[TOPK - 1 :].sort(1).values
    assert same.all(1).double().mean() > 0.5 and fields["k"].isfinite().all()


@pytest.fixture
def other_style(monkeypatch):
    """Each model's indexer taken for one with the other's RoPE."""
    from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

    monkeypatch.setattr(glm, "apply_rotary_pos_emb", deepseek.apply_rotary_pos_emb, raising=False)
    swapped = dict(zip(MODELS, (index_native.ROPE[name] for name in reversed(MODELS)), strict=True))
    monkeypatch.setattr(index_native, "ROPE", swapped)


@pytest.mark.usefixtures("other_style")
def test_the_other_rope_style_is_caught(lm, monkeypatch):
    with pytest.raises(RuntimeError, match="keys with .* RoPE are off by up to"):
        capture_index(lm, IDS, layer=1, source="native")
    monkeypatch.setattr(index_native.IndexerRows, "_check_keys", lambda *_: None)
    with pytest.raises(RuntimeError, match="does not select what the captured index selects"):
        capture_index(lm, IDS, layer=1, source="native")


@pytest.mark.usefixtures("other_style")
def test_the_other_rope_style_selects_other_keys(lm, monkeypatch):
    for check in ("_check_keys", "_check_selection"):
        monkeypatch.setattr(index_native.IndexerRows, check, lambda *_: None)
    wrong = capture_index(lm, IDS, layer=1, source="native")
    assert len(differing(wrong, own_selections(lm, layer=1))) > 10


def test_shared_layers_give_the_index_that_they_use(small):
    lm = small("glm_moe_dsa", **SHARED)
    assert index_layers(lm, "native") == [0, 1, 2, 3]
    captures = capture_index(lm, IDS, layer=[0, 1, 2, 3], source="native")
    assert [capture.meta["indexer_layer"] for capture in captures] == [0, 0, 2, 2]
    for full, shared in ((0, 1), (2, 3)):
        assert torch.equal(captures[full].q, captures[shared].q) and torch.equal(captures[full].k, captures[shared].k)
        assert not torch.equal(captures[full].mass, captures[shared].mass)
        assert differing(captures[shared], own_selections(lm, layer=shared)) == []


def test_the_mass_is_that_of_the_whole_attention(small):
    """A model that keeps every key attends with exactly this mass."""
    for name in MODELS:
        lm = small(name, index_topk=N)
        capture = capture_index(lm, IDS, layer=1, source="native")
        lm.model.set_attn_implementation("eager")
        with torch.no_grad():
            own = lm.model(IDS[None], output_attentions=True).attentions[1][0]
        close(capture.mass, own.mean(0))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_computes_as_without_a_capture(lm, implementation):
    lm.model.set_attn_implementation(implementation)
    states, hooks = [], hook_count(lm.model)
    handle = lm.model.model.norm.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    with torch.no_grad():
        lm.model(IDS[None], use_cache=True)
    capture_index(lm, IDS, layer=1, source="native")
    handle.remove()
    assert len(states) == 2 and torch.equal(*states)
    assert hook_count(lm.model) == hooks


def hook_count(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_weights_hold_both_scales(lm):
    seen = []
    handle = lm.model.model.layers[1].self_attn.indexer.weights_proj.register_forward_hook(lambda *a: seen.append(a[2]))
    capture = capture_index(lm, IDS, layer=1, source="native", positions=[3, 40])
    handle.remove()
    close(capture.w, seen[0][0, [3, 40]] * 8**-0.5 * 16**-0.5)


def test_positions_and_what_is_said(lm):
    whole = capture_index(lm, IDS, layer=1, source="native")
    some = capture_index(lm, IDS, layer=1, source="native", positions=[-1, 12, 30], mass=False)
    for name in ("q", "w"):
        close(getattr(some, name), getattr(whole, name)[[59, 12, 30]])
    assert some.mass is None and some.meta["mass"] is None
    assert whole.meta["mass"] == "mean over 4 heads, before the indexer cuts"
    style = "half-split" if "deepseek" in lm.name else "interleaved"
    expected = {"source": "native", "index_topk": TOPK, "rope": f"post, {style} on the first 8 of 16"}
    assert expected.items() <= whole.meta.items()
    assert differing(some, own_selections(lm, layer=1)) == []
    assert len(capture_index(lm, [5], layer=0, source="native")) == 1


def test_what_is_refused(lm, monkeypatch):
    with pytest.raises(ValueError, match="kv_head .* is for source 'attention' alone"):
        capture_index(lm, IDS, layer=0, source="native", kv_head=0)
    monkeypatch.setattr(index_native, "ROPE", {})
    monkeypatch.setattr("activations.index_run.ROPE", {"some": ("", "")})
    with pytest.raises(ValueError, match=f"the indexer of {lm.model.config.model_type} is not known: only some"):
        capture_index(lm, IDS, layer=0, source="native")


def test_attention_of_a_dsa_model_is_an_index_too(lm):
    capture = capture_index(lm, IDS, layer=1, kv_head=3)
    assert capture.q.shape == (N, 1, 16) and capture.meta["heads"] == [3]
