"""Captures of small models: the model's own logits, whatever the architecture, the length and the thread."""

import threading

import pytest
import torch

from activations import capture_logits, wrap
from activations import forward as forward_module

ARCHITECTURES = ("llama", "qwen3", "gemma3", "gpt2", "gpt_neox", "granite", "mistral")
TEXT = "to be or not"


def own_logits(lm, ids):
    with torch.no_grad():
        return lm.model(ids[None]).logits[0]


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_the_models_own(tiny, name):
    lm = tiny(name)
    capture = capture_logits(lm, TEXT)
    assert capture.logits().shape == (len(TEXT) + 1, 100)
    torch.testing.assert_close(capture.logits(), own_logits(lm, capture.ids), rtol=1e-5, atol=1e-6)
    assert hooks(lm.model) == 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bf16_models_give_their_own_values_and_finer_ones(tiny_model, characters, name):
    lm = wrap(tiny_model(name).bfloat16(), characters)
    capture = capture_logits(lm, TEXT)
    own = own_logits(lm, capture.ids)
    model = capture.logits(logits_dtype="model")
    assert model.dtype is torch.bfloat16
    torch.testing.assert_close(model, own, rtol=2**-7, atol=2**-9)
    fine = capture.logits()
    assert fine.dtype is torch.float32
    assert not torch.equal(fine, fine.bfloat16().float())
    torch.testing.assert_close(fine, own.float(), rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_layer_goes_through_final_norm_and_head(tiny, name):
    lm = tiny(name)
    whole = capture_logits(lm, TEXT)
    last = capture_logits(lm, TEXT, layer=lm.n_layers)
    assert torch.equal(last.logits(), whole.logits())
    assert last.caption == whole.caption
    assert "layer 3 of 3" in whole.caption
    with torch.no_grad():
        out = lm.model(whole.ids[None], output_hidden_states=True)
        norm = lm.model.transformer.ln_f if name == "gpt2" else lm.model.model.norm
        for layer in range(lm.n_layers):
            expected = lm.model.lm_head(norm(out.hidden_states[layer][0]))
            if name == "gemma3":
                expected = torch.tanh(expected / 0.5) * 0.5
            capture = capture_logits(lm, TEXT, layer=layer)
            torch.testing.assert_close(capture.logits(), expected, rtol=1e-5, atol=1e-6)
            assert f"layer {layer} of 3" in capture.caption


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mamba"])
@pytest.mark.parametrize("layer", [None, 1])
def test_chunks_give_what_one_pass_gives(tiny, name, layer, monkeypatch):
    """Gemma's and Mistral's window of 8 is shorter than a chunk; Mamba's state cannot be continued by chunks."""
    lm = tiny(name)
    ids = torch.randint(3, 90, (100,), generator=torch.Generator().manual_seed(1))
    whole = capture_logits(lm, ids, layer=layer)
    monkeypatch.setattr(forward_module, "CHUNK", 16)
    seen = []
    chunked = capture_logits(lm, ids, layer=layer, progress=lambda *step: seen.append(step))
    torch.testing.assert_close(chunked.logits(), whole.logits(), rtol=1e-4, atol=1e-5)
    steps = [100] if name == "mamba" else [16, 32, 48, 64, 80, 96, 100]
    assert seen == [(done, 100, "Reading the text") for done in [0, *steps]]


def test_packed_texts_run_alone(tiny):
    lm = tiny()
    texts = ["one", "another text", "x"]
    packed = capture_logits(lm, texts)
    alone = [capture_logits(lm, text) for text in texts]
    assert packed.starts.tolist() == [0, 4, 17]
    assert torch.equal(packed.ids, torch.cat([c.ids for c in alone]))
    assert torch.equal(packed.logits(), torch.cat([c.logits() for c in alone]))
    assert torch.equal(packed.next_ids, torch.cat([c.next_ids for c in alone]))
    assert packed.next_ids[[3, 16, 18]].tolist() == [-1, -1, -1]
    assert packed.context(5) == packed.tokens[4:6]
    assert packed.context(-1) == packed.tokens[17:]


def test_ids_texts_and_lists_mean_the_same(tiny):
    lm = tiny()
    expected = capture_logits(lm, TEXT)
    ids = lm.encode(TEXT)
    for given in (ids, ids.tolist(), tuple(ids.tolist()), ids.int().numpy(), [TEXT], [ids], [ids.tolist()]):
        capture = capture_logits(lm, given)
        assert torch.equal(capture.ids, expected.ids)
        assert torch.equal(capture.logits(), expected.logits())


def test_positions_choose_rows(tiny):
    lm = tiny()
    whole = capture_logits(lm, TEXT)
    some = capture_logits(lm, TEXT, positions=[-1, 0, 5])
    last = len(TEXT)
    assert some.positions.tolist() == [last, 0, 5]
    assert torch.equal(some.logits(), whole.logits([last, 0, 5]))
    assert some.next_ids.tolist() == [-1, whole.ids[1].item(), whole.ids[6].item()]
    assert len(some) == 3
    assert len(some.tokens) == last + 1


@pytest.mark.parametrize("logits_dtype", ["float32", "model"])
def test_a_row_has_the_same_bits_whatever_is_asked_with_it(tiny_model, characters, logits_dtype):
    capture = capture_logits(wrap(tiny_model("llama").bfloat16(), characters), "a longer text, for many rows")
    whole = capture.logits(logits_dtype=logits_dtype)
    for row in range(len(capture)):
        assert torch.equal(capture.logits(row, logits_dtype), whole[row])
    assert torch.equal(capture.logits(slice(2, 9), logits_dtype), whole[2:9])
    assert torch.equal(capture.logits([-1, 3, 3], logits_dtype), whole[[-1, 3, 3]])
    assert capture.logits(torch.tensor([4]), logits_dtype).shape == (1, 100)
    assert capture.logits([], logits_dtype).shape == (0, 100)


def test_rows_are_the_callers_to_change(tiny):
    with torch.inference_mode():
        capture = capture_logits(tiny(), TEXT)
        row = capture.logits(0)
    kept = row.clone()
    row[3] = -torch.inf
    assert torch.equal(capture.logits(0), kept)
    assert not row.requires_grad


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        (13, IndexError, "row 13 is not in a capture of 13 rows"),
        ([-14], IndexError, "row -14"),
        ([0.5], ValueError, "rows must be"),
        ([True], ValueError, "rows must be"),
        (True, ValueError, "rows must be"),
        ([[0]], ValueError, "rows must be"),
    ],
)
def test_wrong_rows_are_refused(tiny, rows, kind, words):
    with pytest.raises(kind, match=words):
        capture_logits(tiny(), TEXT).logits(rows)


def test_all_rows_of_a_long_text_are_refused_by_name(tiny, monkeypatch):
    from activations import capture as capture_module

    capture = capture_logits(tiny(), TEXT)
    monkeypatch.setattr(capture_module, "_MAX_ALL_ROWS_BYTES", 1000)
    with pytest.raises(ValueError, match=r"ask for some, logits\(rows=\.\.\.\)"):
        capture.logits()
    assert capture.logits([0, 1, 2, 3]).shape == (4, 100)


@pytest.mark.parametrize(
    ("given", "arguments", "kind", "words"),
    [
        ("", {}, ValueError, "the text is empty"),
        ([], {}, ValueError, "the list is empty"),
        ([""], {}, ValueError, "the text is empty"),
        ([[]], {}, ValueError, "list of ids is empty"),
        (torch.tensor([], dtype=torch.int64), {}, ValueError, "list of ids is empty"),
        ([100], {}, ValueError, r"token id 100 is out of the vocabulary \[0, 100\)"),
        ([-1], {}, ValueError, "token id -1"),
        (torch.tensor([1.0]), {}, ValueError, "must be integers, got torch.float32"),
        (torch.tensor([[1, 2]]), {}, ValueError, "one-dimensional"),
        ([1, None], {}, ValueError, "must be integers"),
        (None, {}, TypeError, "give a text, ids or a list of texts"),
        (3, {}, TypeError, "give a text"),
        ({"a": 1}, {}, TypeError, "give a text"),
        ("x" * 256, {}, ValueError, "the text has 257 tokens, tiny-llama reads at most 256: shorten it"),
        (TEXT, {"layer": 4}, ValueError, r"layer must be an int in \[0, 3\], got 4"),
        (TEXT, {"layer": -1}, ValueError, r"layer must be an int in \[0, 3\]"),
        (TEXT, {"layer": 1.0}, ValueError, "layer must be an int"),
        (TEXT, {"layer": True}, ValueError, "layer must be an int"),
        (TEXT, {"positions": [13]}, ValueError, "position 13 is not in a text of 13 tokens"),
        (TEXT, {"positions": [-14]}, ValueError, "position -14"),
        (TEXT, {"positions": "all"}, ValueError, "positions must be one or more ints"),
        (TEXT, {"positions": []}, ValueError, "positions must be one or more ints"),
        (TEXT, {"positions": [0.5]}, ValueError, "positions must be"),
        (TEXT, {"positions": [True]}, ValueError, "positions must be"),
        (TEXT, {"logits_dtype": "bfloat16"}, ValueError, "logits_dtype must be one of"),
    ],
)
def test_wrong_input_is_refused_and_the_model_still_works(tiny, given, arguments, kind, words):
    lm = tiny()
    with pytest.raises(kind, match=words):
        capture_logits(lm, given, **arguments)
    assert len(capture_logits(lm, TEXT)) == 13


def test_cancelling_leaves_no_hook_and_frees_the_model(tiny):
    lm = tiny()

    class Cancelled(Exception):
        pass

    def cancel(done, total, what):
        if done:
            raise Cancelled

    lm.model.train()
    with pytest.raises(Cancelled):
        capture_logits(lm, TEXT, progress=cancel)
    assert hooks(lm.model) == 0
    assert lm.model.training
    assert lm.lock.acquire(blocking=False)


def test_an_error_inside_the_model_removes_the_hooks(tiny):
    lm = tiny()
    capture_logits(lm, TEXT, layer=1)
    before = hooks(lm.model)
    lm.model.model.layers[2].mlp.forward = lambda x: 1 / 0
    for layer in (None, 1):
        with pytest.raises(ZeroDivisionError):
            capture_logits(lm, TEXT, layer=layer)
    assert hooks(lm.model) == before


def test_dropout_is_off_and_each_module_keeps_its_mode(tiny_model, characters):
    model = tiny_model("gpt2")
    lm = wrap(model, characters)
    expected = capture_logits(lm, TEXT).logits()
    model.train()
    model.transformer.h[0].eval()
    assert torch.equal(capture_logits(lm, TEXT).logits(), expected)
    assert model.training
    assert not model.transformer.h[0].mlp.training


def test_a_model_that_does_more_to_its_logits_is_refused(tiny_model, characters):
    model = tiny_model("llama")
    plain = model.forward

    def forward(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = out.logits + 0.01
        return out

    model.forward = forward
    with pytest.raises(RuntimeError, match="does more to its logits than its configuration says.* 0.01"):
        capture_logits(wrap(model, characters), TEXT)


def test_a_model_whose_final_norm_is_not_found_still_gives_its_last_layer(tiny, monkeypatch):
    lm = tiny()
    monkeypatch.setattr(forward_module, "_FINAL_NORMS", {"ln_f"})
    capture_logits(lm, TEXT)
    with pytest.raises(RuntimeError, match="found no final norm"):
        capture_logits(lm, TEXT, layer=1)


def test_changed_weights_make_old_captures_refuse_and_new_ones_right(tiny):
    lm = tiny()
    old = capture_logits(lm, TEXT)
    with torch.no_grad():
        lm.model.lm_head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed since this capture: capture again"):
        old.logits(0)
    new = capture_logits(lm, TEXT)
    torch.testing.assert_close(new.logits(), own_logits(lm, new.ids), rtol=1e-5, atol=1e-6)


def test_a_head_copy_is_made_once_for_a_model(tiny_model, characters):
    model = tiny_model("llama").bfloat16()
    first, second = (capture_logits(wrap(model, characters), TEXT) for _ in range(2))
    assert first.source.head is second.source.head
    assert first.source.head.matrix(torch.float32)[0] is second.source.head.matrix(torch.float32)[0]


def test_threads_do_not_disturb_each_other(tiny):
    lm = tiny()
    texts = [f"text number {i}" for i in range(8)]
    expected = [capture_logits(lm, text, layer=i % 3).logits() for i, text in enumerate(texts)]
    results = [None] * len(texts)

    def work(i):
        results[i] = capture_logits(lm, texts[i], layer=i % 3).logits()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_labels_and_unused(tiny):
    capture = capture_logits(tiny(), TEXT)
    assert capture.label([1, 95]) == ["A", "<id 95>"]
    assert capture.label(torch.tensor([1])) == ["A"]
    assert capture.unused.sum() == 10
    assert capture.tokens == capture.label(capture.ids)


def test_a_head_with_bias(tiny_model, characters):
    model = tiny_model("llama")
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, 100))
    capture = capture_logits(wrap(model, characters), TEXT)
    torch.testing.assert_close(capture.logits(), own_logits(wrap(model, characters), capture.ids), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_on_a_gpu(tiny_model, characters, name):
    model = tiny_model(name).bfloat16()
    cpu = capture_logits(wrap(model, characters), TEXT)
    fine = cpu.logits().clone()
    lm = wrap(model.cuda(), characters)
    capture = capture_logits(lm, TEXT)
    assert capture.logits(0).is_cuda
    torch.testing.assert_close(capture.logits().cpu(), fine, rtol=2**-5, atol=2**-7)
    whole = capture.logits(logits_dtype="model")
    assert all(torch.equal(capture.logits(i, "model"), whole[i]) for i in range(len(capture)))
