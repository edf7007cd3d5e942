"""A model on selected keys: all of them give full attention, in one pass, chunks and decode; fewer give just those."""

import copy
from contextlib import ExitStack

import pytest
import torch

from activations import capture_index, forward, index_attention, index_layers
from activations.selected import selected_attention
from activations.selection import Selection, systems
from qp_kernels.pivot import dense_topk

N = 48
GLOBAL = ["full_attention", "sliding_attention", "full_attention"]
# name -> fields; models of three layers with 4 query and 2 key heads, or 1.
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"num_key_value_heads": 1},
    "gemma3": {"layer_types": GLOBAL, "num_key_value_heads": 1},
}
IDS = torch.randint(3, 90, (N,), generator=torch.Generator().manual_seed(1))
ALL = {
    "dense": Selection("dense", N),
    "reuse": Selection("reuse", N),
    "refine": Selection("refine", N, group=2),
    "refine unguarded": Selection("refine", N, guard=False),
    "hisa": Selection("hisa", N),
    "misa": Selection("misa", N),
    "misa rerank": Selection("misa", N, heads=1, rerank=2 * N),
    "shared": Selection("refine", N, pattern="FS"),
}
FEW = {name: Selection(one.system, 8, pattern=one.pattern) for name, one in ALL.items()}


@pytest.fixture
def small(tiny):
    """Weights are large, so that attention is far from even."""
    return lambda name, **more: tiny(name, **{"initializer_range": 0.4, **MODELS[name], **more})


def close(a, b, **tolerance):
    torch.testing.assert_close(a, b, **{"rtol": 1e-3, "atol": 1e-3, **tolerance})


def more(lm, ids, cache=None):
    """Logits [S, V] of further tokens in one call, and the cache."""
    with torch.inference_mode():
        states, cache = forward.continued(lm.model, ids, cache, chunk=len(ids))
        return lm.model.get_output_embeddings()(states), cache


def read(lm, sizes=(N,)):
    """Logits [N, V] of the text, read by so many tokens a call."""
    cache, found = None, []
    for ids in IDS.split(list(sizes)):
        logits, cache = more(lm, ids, cache)
        found.append(logits)
    return torch.cat(found)


def pattern_for(selection, lm):
    """The same selection for as many layers as select."""
    count = len(index_layers(lm))
    letters = None if selection.pattern is None else "F" + "S" * (count - 1)
    return Selection(**{**vars(selection), "pattern": letters})


WAYS = {"one pass": (N,), "chunks": (16, 16, 16), "steps": (1, 43, *[1] * 4)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_all_keys_are_full_attention(small, name, way):
    lm = small(name)
    full = read(lm, WAYS[way])
    close(full, read(lm))
    for selection in ALL.values():
        with selected_attention(lm, pattern_for(selection, lm)):
            close(read(lm, WAYS[way]), full)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("system", FEW)
def test_few_keys_are_attended_alone(small, name, system):
    """Attention with a mask of what was selected gives the same logits; and it is not full attention."""
    lm, masks = small(name), {}
    selection = pattern_for(FEW[system], lm)
    layers = index_layers(lm)

    def keep(layer, start, found):
        assert start == 0
        masks[layer] = [one.long() for one in found]

    with selected_attention(lm, selection, watch=keep) as run:
        ours = read(lm)
    assert run.layers == layers and set(masks) == set(layers)
    assert all(len(found) == lm.model.config.num_key_value_heads for found in masks.values())
    assert all(int((one >= 0).sum(1).max()) == 8 for found in masks.values() for one in found)

    def masked(layer):
        def attend(own, module, query, key, value, mask, **options):
            heads = query.shape[1] // key.shape[1]
            hidden = torch.full((key.shape[1], N, N + 1), -torch.inf)
            for head, positions in enumerate(masks[layer]):
                hidden[head].scatter_(1, positions.where(positions >= 0, N), 0.0)
            logits = query[0] @ key[0].repeat_interleave(heads, 0).mT * options["scaling"]
            shares = (logits + hidden[:, :, :N].repeat_interleave(heads, 0)).softmax(-1)
            return (shares @ value[0].repeat_interleave(heads, 0)).transpose(0, 1)[None], None

        return attend

    full = read(lm)
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(index_attention.attention_by(lm.model, layer, masked(layer)))
        close(ours, read(lm))
    assert (ours - full).abs().max() > 0.05


def test_a_layer_selects_as_its_captured_index_does(small):
    lm, seen = small("qwen3"), {}
    with selected_attention(lm, Selection("dense", 8), layers=[1], watch=lambda *what: seen.update([(what[0], what)])):
        read(lm)
        capture = capture_index(lm, IDS, layer=1)
    assert list(seen) == [1]
    found = dense_topk(capture.q, capture.k, capture.w, 8)
    assert torch.equal(seen[1][2][0], found)


STEPS = {name: FEW[name] for name in ("dense", "hisa", "misa", "misa rerank")}
STEPS["shared dense"] = Selection("dense", 8, pattern="FS")


@pytest.mark.parametrize("system", STEPS)
def test_decode_selects_as_prefill_does(small, system):
    lm = small("gemma3")
    with selected_attention(lm, pattern_for(STEPS[system], lm)):
        close(read(lm, (44, 1, 1, 1, 1)), read(lm))


@pytest.mark.parametrize("system", FEW)
def test_chunks_of_whole_groups_select_as_one_pass_does(small, system):
    lm = small("gemma3")
    with selected_attention(lm, pattern_for(FEW[system], lm)):
        close(read(lm, (16, 16, 16)), read(lm))


def test_phase_decode_takes_a_call_for_a_group(small, monkeypatch):
    lm, phases = small("llama"), []
    from activations import selection as module

    real = module.pivot_topk
    monkeypatch.setattr(module, "pivot_topk", lambda *a, **o: phases.append(o["phase"]) or real(*a, **o))
    with selected_attention(lm, Selection("refine", 8, guard=False), layers=[2]) as run:
        _, cache = more(lm, IDS[:44])
        run.phase = "decode"
        more(lm, IDS[44:], cache)
        with pytest.raises(ValueError, match="phase must be one of prefill, decode, got 'x'"):
            run.phase = "x"
    assert phases == ["prefill"] * 2 + ["decode"] * 2  # two key heads


def with_config(model):
    return [module for module in model.modules() if hasattr(module, "config")]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_is_as_before_afterwards_and_after_errors(small, implementation):
    lm = small("gemma3")
    lm.model.set_attn_implementation(implementation)
    before, configs = read(lm), [module.config for module in with_config(lm.model)]
    hooks = [len(module._forward_pre_hooks) for module in lm.model.modules()]
    with pytest.raises(KeyboardInterrupt), selected_attention(lm, Selection("dense", 4), indexers=made_up(lm)):
        assert not torch.equal(read(lm), before)
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="budget must be >="), selected_attention(lm, Selection("refine", 4, budget=5)):
        read(lm)
    assert torch.equal(read(lm), before)
    assert all(module.config is config for module, config in zip(with_config(lm.model), configs, strict=True))
    assert hooks == [len(module._forward_pre_hooks) for module in lm.model.modules()]
    with selected_attention(lm, Selection("full")):
        assert torch.equal(read(lm), before)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generate_runs_on_selected_keys(tiny, name):
    lm = tiny(name)
    with torch.inference_mode():
        want = lm.model.generate(IDS[None, :20], max_new_tokens=8, min_new_tokens=8, do_sample=False)
        with selected_attention(lm, Selection("dense", N)):
            assert torch.equal(
                lm.model.generate(IDS[None, :20], max_new_tokens=8, min_new_tokens=8, do_sample=False), want
            )


def made_up(lm, heads=3, width=5, seed=0):
    """Linear indexers of the layers' input, for every layer that selects."""
    generator = torch.Generator().manual_seed(seed)
    hidden = lm.model.config.hidden_size

    def one():
        q, k, w = (torch.randn(hidden, n, generator=generator) for n in (heads * width, width, heads))
        turn = torch.randn(256, width, generator=generator)
        return lambda states, positions: (
            (states @ q).unflatten(1, (heads, width)),
            states @ k + turn[positions],
            (states @ w).relu(),
        )

    return {layer: one() for layer in index_layers(lm)}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("sizes", [(16, 16, 16), (44, *[1] * 4)])
def test_an_indexer_selects_for_all_heads_and_keeps_its_keys(small, name, sizes):
    lm = small(name)
    indexers, seen = made_up(lm), []
    with selected_attention(lm, Selection("dense", 8), indexers=indexers, watch=lambda *what: seen.append(what)):
        whole = read(lm)
        assert all(len(found) == 1 and found[0].shape == (N, 8) for _, _, found in seen)
        first = [what for what in seen if what[0] == 0][-1]
        seen.clear()
        close(read(lm, sizes), whole)
        steps = [found[0] for layer, _, found in seen if layer == 0]
        padded = [torch.nn.functional.pad(one, (0, 8 - one.shape[1]), value=-1) for one in steps]
        assert torch.equal(torch.cat(padded), first[2][0])
    with selected_attention(lm, Selection("dense", N), indexers=indexers):
        close(read(lm, sizes), read(small(name)))


def test_the_indexer_is_given_the_input_of_attention(small):
    lm, given, states = small("qwen3"), [], []
    norm = lm.model.model.layers[0].input_layernorm
    norm.register_forward_hook(lambda _m, _i, output: states.append(output[0]))
    indexers = {0: lambda hidden, positions: given.append((hidden, positions)) or made_up(lm)[0](hidden, positions)}
    with selected_attention(lm, Selection("dense", 8), layers=[0], indexers=indexers):
        read(lm, (30, 18))
    assert all(torch.equal(hidden, state) for (hidden, _), state in zip(given, states, strict=True))
    assert torch.equal(torch.cat([positions for _, positions in given]), torch.arange(N))


def test_index_keys_belong_to_their_cache(small):
    lm = small("llama")
    with selected_attention(lm, Selection("dense", 8), indexers=made_up(lm)):
        whole = read(lm)
        _, cache = more(lm, IDS[:40])
        more(lm, IDS.flip(0)[:45])  # another text between
        cache.crop(-8)  # to 32 tokens
        close(more(lm, IDS[32:], cache)[0], whole[32:])
    _, foreign = more(lm, IDS[:40])
    with selected_attention(lm, Selection("dense", 8), indexers=made_up(lm)):
        with pytest.raises(RuntimeError, match="layer 0 continues 40 tokens, of which the indexer has seen 0"):
            more(lm, IDS[40:], foreign)


def test_keys_that_are_given_hold_for_their_cache_alone(small):
    """Another cache, be it of as many tokens or a copy, has none of them; one with too few is refused too."""
    lm, kept = small("llama"), {}
    indexers = made_up(lm)

    def keeping(layer):
        def index(hidden, positions):
            found = indexers[layer](hidden, positions)
            kept[layer] = found[1]
            return found

        return index

    with selected_attention(lm, Selection("dense", 8), indexers=indexers):
        whole = read(lm)
    with selected_attention(lm, Selection("dense", 8), indexers={layer: keeping(layer) for layer in indexers}):
        _, mine = more(lm, IDS[:40])
    keys, spare = dict(kept), copy.deepcopy(mine)
    with selected_attention(lm, Selection("dense", 8), indexers=indexers):
        _, other = more(lm, IDS.flip(0)[:40])
    with selected_attention(lm, Selection("dense", 8), indexers=indexers, earlier=(mine, keys)):
        for unknown in (copy.deepcopy(other), copy.deepcopy(mine)):
            with pytest.raises(RuntimeError, match="layer 0 continues 40 tokens, of which the indexer has seen 0"):
                more(lm, IDS[40:], unknown)
        close(more(lm, IDS[40:44], mine)[0], whole[40:44])
        close(more(lm, IDS[44:], mine)[0], whole[44:])
    fewer = {layer: one[:39] for layer, one in keys.items()}
    for cache, given, lacks in ((spare, fewer, (0, 39)), (other, {0: keys[0]}, (1, 0))):
        with selected_attention(lm, Selection("dense", 8), indexers=indexers, earlier=(cache, given)):
            words = "layer {} continues 40 tokens, of which the indexer has seen {}".format(*lacks)
            with pytest.raises(RuntimeError, match=words):
                more(lm, IDS[40:], cache)


def test_what_is_refused(small, tiny):
    lm = small("gemma3")
    with pytest.raises(ValueError, match=r"layer 1 does not attend to the whole text: layers \[0, 2\] do"):
        with selected_attention(lm, Selection(), layers=[1]):
            pass
    with pytest.raises(ValueError, match=r"there is no layer to select keys for: no layer of tiny-mistral does"):
        with selected_attention(tiny("mistral"), Selection()):
            pass
    with pytest.raises(ValueError, match=r"pattern must be 2 letters F or S"):
        with selected_attention(lm, Selection(pattern="FSF")):
            pass
    with pytest.raises(ValueError, match=r"layer 2 has no indexer: there are some for layers \[0\]"):
        with selected_attention(lm, Selection(), indexers={0: made_up(lm)[0]}):
            pass
    with selected_attention(lm, Selection("dense", 8)), torch.no_grad():
        with pytest.raises(ValueError, match="one sequence at a time, got a batch of 2"):
            lm.model(IDS[None].expand(2, N))
        padding = torch.ones(1, N, dtype=torch.long)
        padding[:, :3] = 0
        with pytest.raises(ValueError, match="the mask of layer 0 hides more than later tokens"):
            lm.model(IDS[None], attention_mask=padding)
        with torch.enable_grad(), pytest.raises(ValueError, match="no gradient passes a selection"):
            lm.model(IDS[None])


@pytest.mark.parametrize("name, words", [("gemma2", "caps its logits"), ("gpt_oss", "has sinks")])
def test_attention_of_another_kind_is_refused(tiny, name, words):
    lm = tiny(name, layer_types=GLOBAL)
    with selected_attention(lm, Selection("dense", 8)), torch.no_grad():
        with pytest.raises(ValueError, match=f"layer 0 {words}"):
            lm.model(IDS[None])


def test_selections():
    with pytest.raises(ValueError, match="system must be one of full, dense, .*, got 'x'"):
        Selection("x")
    with pytest.raises(ValueError, match="topk must be >= 1, got 0"):
        Selection(topk=0)
    with pytest.raises(TypeError, match="group must be an int, got float"):
        Selection(group=2.0)
    with pytest.raises(ValueError, match="full attention selects nothing"):
        Selection("full", pattern="FS")
    with pytest.raises(ValueError, match="the first F"):
        Selection(pattern="SF")
    with pytest.raises(ValueError, match="full attention selects nothing"):
        Selection("full")(*[None] * 3)


def test_the_systems_of_the_paper():
    found = systems(64, 3, greedy="FSF")
    assert found["refine"].label == "refine g4 c128" and found["refine least"].budget == 71
    assert found["refine 4x"].budget == 256 and found["refine g16"].group == 16
    assert (found["index cache"].pattern, found["index cache greedy"].pattern) == ("FFS", "FSF")
    assert found["refine + index cache"] == Selection("refine", 64, pattern="FFS")
    assert found["misa rerank"].rerank == 128 and "index cache greedy" not in systems(64, 3)
    assert all(one.topk == 64 for one in found.values())
    labels = [one.label for one in found.values()]
    assert len(set(labels)) == len(labels)
    q, k, w = torch.randn(20, 4, 8), torch.randn(200, 8), torch.rand(20, 4)
    for name, one in found.items():
        if name != "full":
            assert one(q, k, w).shape == (20, 64)


@pytest.mark.model
def test_the_default_model_on_all_of_its_keys(gemma_lm):
    """Longer than the window of its other layers; prompt in chunks, then token by token."""
    from activations.texts import builtin_text

    ids = gemma_lm.encode(builtin_text("zen"))
    ids = torch.cat([ids, gemma_lm.encode(builtin_text("pydoc", 4000))])[:540]
    full = more(gemma_lm, ids)[0][-8:]
    with selected_attention(gemma_lm, Selection("refine", len(ids))) as run:
        assert run.layers == [5, 11, 17]
        cache, steps = more(gemma_lm, ids[:512])[1], []
        for some in (ids[512:-8], *ids[-8:, None]):
            logits, cache = more(gemma_lm, some, cache)
            steps.append(logits)
    close(torch.cat(steps[1:]), full, atol=5e-3)
    with selected_attention(gemma_lm, Selection("dense", 16)):
        assert (more(gemma_lm, ids)[0][-8:] - full).abs().max() > 0.5
