"""Small models with random weights, a small Gemma in a package of its own, and the real one."""

import os
import sys
import types

import pytest

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES = {"vocab_size": 100, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}


# Two layers of linear attention below one of attention, and experts.
MIXED_SIZES = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Experts and a lightning indexer of 8 heads of 16, half of it rotated, that keeps 10 keys.
DSA_SIZES = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 10,
    "index_head_dim": 16,
    "index_n_heads": 8,
}


class Characters:
    """The least that `wrap` takes for a tokenizer: 90 ids for a head of 100."""

    bos_token_id, eos_token_id = 1, 2

    def __len__(self):
        return 90

    def encode(self, text):
        return [1, *(3 + ord(c) % 87 for c in text)]

    def decode(self, ids):
        return "".join(chr(64 + i) for i in ids)


def make_model(name: str, seed: int = 0, **more):
    """`more`: fields of the configuration besides or instead of those here."""
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    special = {"bos_token_id": 1, "eos_token_id": 2}
    without_head_dim = {key: value for key, value in SIZES.items() if key != "head_dim"}
    without_kv_heads = {key: value for key, value in without_head_dim.items() if key != "num_key_value_heads"}
    gemma = {"sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 0.5}
    dsa = {**without_head_dim, **DSA_SIZES}
    kind, sizes = {
        "llama": (hf.LlamaConfig, SIZES),
        "qwen2": (hf.Qwen2Config, without_head_dim),
        "qwen3": (hf.Qwen3Config, SIZES),
        "mistral": (hf.MistralConfig, {**SIZES, "sliding_window": 8}),
        "gemma2": (hf.Gemma2Config, {**SIZES, **gemma, "attn_logit_softcapping": 0.5}),
        "gemma3": (hf.Gemma3TextConfig, {**SIZES, **gemma}),
        "gpt2": (hf.GPT2Config, {**GPT2_SIZES, **special}),
        "gpt_neox": (hf.GPTNeoXConfig, without_kv_heads),
        "gpt_oss": (hf.GptOssConfig, {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
        "granite": (hf.GraniteConfig, {**without_head_dim, "logits_scaling": 8.0}),
        "mamba": (hf.MambaConfig, {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 3, **special}),
        "qwen3_next": (hf.Qwen3NextConfig, {**SIZES, **MIXED_SIZES}),
        "deepseek_v32": (hf.DeepseekV32Config, dsa),
        "glm_moe_dsa": (hf.GlmMoeDsaConfig, dsa),
    }[name]
    config = kind(**{**sizes, **more})
    return hf.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def tiny_model():
    return make_model


@pytest.fixture
def characters():
    return Characters()


@pytest.fixture
def tiny(tiny_model, characters):
    """A wrapped model of any architecture: tiny("llama")."""
    from activations import wrap

    return lambda name="llama", **kwargs: wrap(tiny_model(name, **kwargs), characters, name=f"tiny-{name}")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """A Gemma 3 of 294 words, written with the gguf package as the real one was."""
    import gguf
    import numpy as np

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "<b>"]
    types_ = [3, 3, 3, 3, 4, 4]
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    types_ += [6] * 256
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz", "th", "the", "▁the", "<unused0>", "<unused1>"]
    words += letters
    types_ += [1] * (len(letters) - 2) + [3, 3]
    hidden, inner, layers, heads, head_dim, generator = 32, 64, 2, 2, 16, np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(8)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(len(words))])
    writer.add_token_types(types_)
    for name, index in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{name}_token_id")(index)

    def add(name, *shape, norm=False):
        values = generator.normal(1.0 if norm else 0.0, 0.1, shape).astype(np.float32)
        if norm:
            writer.add_tensor(name, values)
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    add("token_embd.weight", len(words), hidden)
    add("output_norm.weight", hidden, norm=True)
    for i in range(layers):
        for part, rows, columns in (
            ("attn_q", heads * head_dim, hidden),
            ("attn_k", head_dim, hidden),
            ("attn_v", head_dim, hidden),
            ("attn_output", hidden, heads * head_dim),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            add(f"blk.{i}.{part}.weight", rows, columns)
        for part in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            add(f"blk.{i}.{part}.weight", hidden, norm=True)
        for part in ("attn_q_norm", "attn_k_norm"):
            add(f"blk.{i}.{part}.weight", head_dim, norm=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny_package(tiny_gguf, empty_cache, monkeypatch):
    """The default model's pipeline on the tiny GGUF, into an empty cache. `.assembled` counts its runs."""
    from activations import cache, gemma

    package = types.ModuleType(gemma.PACKAGE)
    package.assembled = 0

    def assemble(path):
        package.assembled += 1
        path.write_bytes(tiny_gguf.read_bytes())

    package.assemble = assemble
    monkeypatch.setitem(sys.modules, gemma.PACKAGE, package)
    monkeypatch.setattr(gemma, "GGUF_SHA256", cache.sha256_of(tiny_gguf))
    monkeypatch.setattr(gemma, "_KNOWN_TEXT", "the cat")
    # BOS, then merged pieces: "the", "▁", "c", "a", "t".
    monkeypatch.setattr(gemma, "_KNOWN_IDS", [2, 290, 262, 265, 263, 282])
    return package


@pytest.fixture(scope="session")
def gemma_lm():
    """The default model as `load()` gives it; tests that use it are marked `model`."""
    from activations import load

    before = os.environ.get("QP_CACHE")
    lm = load(progress=lambda done, total, what: None)
    assert os.environ.get("QP_CACHE") == before
    return lm
