"""Finding models: folders, ids, memory; and what is said when there is none."""

import http.server
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from activations import capture_logits, hub, load, models, prepare, wrap

ROOT = Path(__file__).resolve().parents[2]


def silent(done, total, what):
    pass


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "to", "be", "or", "not"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture
def folder(tmp_path, tiny_model, tokenizer):
    path = tmp_path / "my-model"
    tiny_model("llama").bfloat16().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_folder_loads_as_it_is_stored(folder):
    lm = load(folder, device="cpu", progress=silent)
    assert lm.name == "my-model"
    assert (lm.n_layers, lm.vocab_size, lm.context) == (3, 100, 256)
    assert (lm.dtype, lm.head_dtype) == (torch.float32, torch.bfloat16)
    assert lm.device == torch.device("cpu")
    capture = capture_logits(lm, "to be or not")
    assert capture.tokens == ["to", "be", "or", "not"]
    assert "my-model" in capture.caption
    assert "computed in float32" in capture.caption
    assert "bfloat16 (the model's own)" in capture.describe("model")
    assert capture.logits(0, "model").dtype is torch.bfloat16
    assert lm.tokens([7, 99]) == ["<id 7>", "<id 99>"]
    assert lm.unused_ids.tolist() == list(range(7, 100))


def test_the_models_own_logits_are_those_of_the_stored_head(folder):
    """Computing in float32 does not change what "model" means."""
    from safetensors.torch import load_file

    lm = load(str(folder), device="cpu", progress=silent)
    capture = capture_logits(lm, "to be or not")
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert head.dtype is torch.bfloat16
    expected = torch.nn.functional.linear(capture.source.hidden.bfloat16(), head)
    ours = capture.logits(logits_dtype="model")
    # The same products; now and then the order of adding them decides how one is rounded.
    torch.testing.assert_close(ours, expected, rtol=2**-7, atol=2**-14)
    assert (ours == expected).double().mean() > 0.98


@pytest.mark.parametrize(
    ("dtype", "computed", "head"),
    [
        ("auto", torch.float32, torch.bfloat16),
        (torch.float32, torch.float32, torch.bfloat16),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("float16", torch.float16, torch.float16),
    ],
)
def test_dtype_is_what_is_asked_for(folder, dtype, computed, head):
    lm = load(folder, device="cpu", dtype=dtype, progress=silent)
    assert (lm.dtype, lm.head_dtype) == (computed, head)
    assert str(computed).removeprefix("torch.") in lm.caption


def test_a_device_map_is_left_to_accelerate(folder):
    lm = load(folder, device="cpu", device_map={"": "cpu"}, progress=silent)
    assert (lm.dtype, lm.head_dtype) == (torch.float32, torch.bfloat16)
    assert len(capture_logits(lm, "to be")) == 2


def test_a_model_too_large_for_float32_stays_as_stored(folder, monkeypatch):
    monkeypatch.setattr(models, "_fits_in_float32", lambda model: False)
    assert load(folder, device="cpu", progress=silent).dtype is torch.bfloat16


def test_prepare_checks_a_folder(folder, capsys):
    assert prepare.main([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder} is ready: 3 layers, vocabulary 100\n"
    (folder / "config.json").unlink()
    for arguments in ([str(folder)], [str(folder), "--where"]):
        assert prepare.main(arguments) == 1
        assert "holds no config.json" in capsys.readouterr().err


def test_a_folder_without_tokenizer_names_wrap(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer \(none of tokenizer.json.*wrap\(model, tokenizer\)"):
        load(folder, progress=silent)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "the model in .* cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"cut"), "the model in .* cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "the tokenizer in .* cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_folder_says_what(folder, damage, words):
    damage(folder)
    with pytest.raises(ValueError, match=words):
        load(folder, progress=silent)


def test_missing_weights_are_not_made_up(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lack 1 weights of the model, lm_head.weight for one"):
        load(folder, progress=silent)


def test_a_folder_with_another_kind_of_model(folder):
    config = {"model_type": "t5", "vocab_size": 100, "d_model": 8}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is not a causal language model"):
        load(folder, progress=silent)


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "~/no-where-at-all", "a/b/c", "C:\\models\\x"])
def test_a_missing_folder_is_not_looked_up_on_the_hub(name, monkeypatch):
    monkeypatch.setattr(models, "read_from_hub", None)
    with pytest.raises(ValueError, match="there is no folder"):
        load(name, progress=silent)


@pytest.mark.parametrize("name", ["gemma", "gemma-3", "gemma3-270m", "Gemma-3-270M"])
def test_a_near_miss_suggests_the_default(name):
    with pytest.raises(ValueError, match="did you mean 'gemma-3-270m'"):
        load(name, progress=silent)


@pytest.mark.parametrize("name", ["no such model!", "-x", "a..b/c", ""])
def test_an_impossible_name(name):
    with pytest.raises(ValueError, match="neither a folder nor a Hugging Face id|name is empty"):
        load(name, progress=silent)


@pytest.mark.parametrize("dtype", ["int8", "float64", 3, None])
def test_a_wrong_dtype(dtype):
    with pytest.raises(ValueError, match="dtype must be 'auto' or one of float32, bfloat16, float16"):
        load(dtype=dtype)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(models, "_cuda_works", lambda: False)
    with pytest.raises(ValueError, match="CUDA does not work here"):
        load(device="cuda")
    with pytest.raises(RuntimeError):
        load(device="toaster")


@pytest.fixture
def endpoint(monkeypatch):
    """Point the hub's library at an address."""
    from huggingface_hub import constants

    def point(url):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", url)

    return point


def test_an_unknown_id_without_a_network_fails_in_seconds(endpoint):
    # A port of this machine that nothing listens on.
    endpoint("http://127.0.0.1:9")
    import transformers  # noqa: F401, its import is not what is timed

    begun = time.monotonic()
    with pytest.raises(ConnectionError, match="'nobody/no-model' is not on this machine.*does not answer.*recorded"):
        load("nobody/no-model", progress=silent)
    assert time.monotonic() - begun < 6


def test_a_network_that_swallows_everything_fails_in_seconds():
    import socket

    with socket.socket() as silent_server:
        silent_server.bind(("127.0.0.1", 0))
        silent_server.listen()
        begun = time.monotonic()
        assert not hub.reachable(f"http://127.0.0.1:{silent_server.getsockname()[1]}", 0.5)
        assert time.monotonic() - begun < 2


def test_offline_mode_is_named(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE is set"):
        load("nobody/no-model", progress=silent)
    with pytest.raises(ConnectionError, match="local_files_only is set"):
        load("nobody/no-model", progress=silent, local_files_only=True)


@pytest.fixture
def refusing_hub(endpoint):
    """A server that answers every question about a repository as the hub does for gated and missing ones."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            gated = "gated" in self.path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_HEAD = do_GET

        def log_message(self, *args):
            """Keep the test's output clean."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint(f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


def test_an_id_that_the_hub_does_not_know(refusing_hub):
    with pytest.raises(ValueError, match="there is no model 'nobody/no-model' on the hub"):
        load("nobody/no-model", progress=silent)


def test_a_gated_id(refusing_hub):
    with pytest.raises(PermissionError, match="'nobody/gated' is gated: accept its terms"):
        load("nobody/gated", progress=silent)


def test_an_id_on_this_machine_needs_no_network(folder, endpoint, tmp_path):
    endpoint("http://127.0.0.1:9")
    snapshot = tmp_path / "hub" / "models--me--mine" / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)
    begun = time.monotonic()
    lm = load("me/mine", cache_dir=tmp_path / "hub", progress=silent)
    assert time.monotonic() - begun < 6
    assert lm.name == "me/mine"
    capture = capture_logits(lm, "to be")
    assert len(capture) == 2
    assert capture.meta["commit"] == snapshot.name
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ConnectionError, match="'me/mine' is not on this machine"):
        load("me/mine", cache_dir=tmp_path / "hub", progress=silent)


def test_wrap_refuses_what_it_cannot_use(tiny_model, characters):
    import transformers as hf

    with pytest.raises(ValueError, match="needs a causal language model of transformers, got Linear"):
        wrap(torch.nn.Linear(2, 2), characters)
    with pytest.raises(ValueError, match="no plain linear output embedding"):
        wrap(tiny_model("llama").model, characters)
    t5 = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=10, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8))
    with pytest.raises(ValueError, match="is an encoder-decoder"):
        wrap(t5, characters)
    with pytest.raises(TypeError, match=r"has no method encode\(\)"):
        wrap(tiny_model("llama"), object())


def test_wrap_names_the_model(tiny_model, characters):
    model = tiny_model("llama")
    assert wrap(model, characters).name == "LlamaForCausalLM"
    model.config._name_or_path = "/models/some-model/"
    assert wrap(model, characters).name == "some-model"
    assert wrap(model, characters, name="mine").name == "mine"
    assert "mine · computed in float32 · cpu" in repr(wrap(model, characters, name="mine"))


def test_the_package_imports_neither_torch_nor_transformers():
    script = "import sys, activations; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0
    script = (
        "import sys; from activations import load, recorded, texts, synthetic; assert 'transformers' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0
