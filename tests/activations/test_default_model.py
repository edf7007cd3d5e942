"""The real default model: its tokens, its logits, and the numbers that the lessons speak of."""

import inspect
import math

import pytest
import torch

from activations import capture_logits, load_capture, recorded, save_capture
from activations.texts import builtin_text, openers

pytestmark = pytest.mark.model


def nucleus(row, p=0.9):
    """Tokens that top-p keeps, by a float64 sort."""
    mass = row.double().softmax(-1).sort(descending=True).values.cumsum(0)
    return int((mass < p - 1e-6).sum()) + 1


def last_row(lm, text):
    return capture_logits(lm, text, positions=[-1]).logits(0)


@pytest.fixture(scope="module")
def answers(gemma_lm):
    """Last row of each opener: answers[text, logits_dtype]."""
    texts = [text for text, _ in openers]
    packed = capture_logits(gemma_lm, texts)
    ends = [*(packed.starts[1:] - 1).tolist(), len(packed) - 1]
    return {(text, dt): packed.logits(end, dt) for text, end in zip(texts, ends) for dt in ("float32", "model")}


def test_what_it_is(gemma_lm):
    assert (gemma_lm.n_layers, gemma_lm.vocab_size, gemma_lm.context) == (18, 262_144, 32_768)
    assert gemma_lm.head_dtype is torch.bfloat16
    assert len(gemma_lm.unused_ids) == 6_242
    assert gemma_lm.tokens(gemma_lm.unused_ids[:1]) == ["<unused0>"]


def test_its_tokens(gemma_lm):
    assert gemma_lm.encode("The capital of France is").tolist() == [2, 818, 5279, 529, 7001, 563]
    assert gemma_lm.tokens(gemma_lm.encode("a  b\n\n<table> é")) == ["<bos>", "a", "  ", "b", "\n\n", "<table>", " é"]
    text = "Ünï \t 🤖 法国"
    assert gemma_lm.decode(gemma_lm.encode(text)[1:]) == text


@pytest.mark.parametrize(
    ("text", "token", "probability", "kept"),
    [
        ("import numpy as", " np", 0.99, 1),
        ("Roses are red, violets are", " blue", 0.92, 1),
        ("To be, or not to be, that is the", " question", 0.83, 16),
        ("The capital of France is", " the", 0.19, 134),
        ("法国的首都是", "法国", 0.07, 1_560),
    ],
)
@pytest.mark.parametrize("logits_dtype", ["float32", "model"])
def test_what_the_openers_show(gemma_lm, answers, text, token, probability, kept, logits_dtype):
    row = answers[text, logits_dtype]
    probabilities = row.double().softmax(-1)
    assert gemma_lm.tokens(probabilities.argmax()) == [token]
    assert probabilities.max() == pytest.approx(probability, abs=0.02)
    assert nucleus(row) == pytest.approx(kept, rel=0.12, abs=1)


def test_it_reads_code_well(gemma_lm):
    """About 6 over a longer part, more at its start; a model put together wrongly gives hundreds."""
    import torch.nn.functional

    capture = capture_logits(gemma_lm, inspect.getsource(torch.nn.functional)[:1_200])
    rows = list(range(8, len(capture) - 1, 8))
    losses = -capture.logits(rows).log_softmax(-1).gather(1, capture.next_ids[rows, None])
    assert len(rows) > 30
    assert math.exp(losses.mean()) < 40


def test_the_model_dtype_ties(answers):
    row = answers["The capital of France is", "model"]
    assert row.dtype is torch.bfloat16
    assert 300 < len(row.unique()) < 3_000


def test_a_long_text_in_chunks_is_the_same_as_at_once(gemma_lm, monkeypatch):
    """700 tokens: more than a chunk, and more than the window of the local layers."""
    from activations import forward

    ids = gemma_lm.encode(builtin_text("pydoc", 4_000))[:700]
    chunked = capture_logits(gemma_lm, ids, positions=[100, 511, 512, 699])
    monkeypatch.setattr(forward, "CHUNK", 1_000)
    whole = capture_logits(gemma_lm, ids, positions=[100, 511, 512, 699])
    torch.testing.assert_close(chunked.logits(), whole.logits(), rtol=0, atol=0.02)


def test_layers_come_closer_to_the_answer(gemma_lm):
    text = "import numpy as"
    answer = last_row(gemma_lm, text).argmax()
    ranks = []
    for layer in (0, 9, 17, 18):
        row = capture_logits(gemma_lm, text, layer=layer, positions=[-1]).logits(0)
        ranks.append(int((row > row[answer]).sum()))
    assert ranks[-1] == 0
    assert ranks[0] > ranks[2]


def test_round_trip_and_recording_agree_with_the_live_model(gemma_lm, tmp_path):
    capture = capture_logits(gemma_lm, "The capital of France is", positions=[-1])
    loaded = load_capture(save_capture(capture, tmp_path / "c.safetensors"))
    kept = recorded("openers")
    row = next(i for i in range(len(kept)) if "".join(kept.context(i)[1:]) == "The capital of France is")
    for logits_dtype in ("float32", "model"):
        assert torch.equal(loaded.logits(0, logits_dtype), capture.logits(0, logits_dtype))
        # Another machine may add in another order.
        difference = (kept.logits(row, logits_dtype).float() - capture.logits(0, logits_dtype).float().cpu()).abs()
        assert difference.max() < (0.01 if logits_dtype == "float32" else 0.26)


def test_a_text_beyond_the_context(gemma_lm):
    with pytest.raises(ValueError, match="the text has 33,000 tokens, gemma-3-270m reads at most 32,768"):
        capture_logits(gemma_lm, [5] * 33_000)


def test_bf16_computation_is_close(gemma_lm):
    """The dtype belongs in every caption: it moves logits by tenths."""
    from activations import load

    half = load(device="cpu", dtype="bfloat16", progress=lambda done, total, what: None)
    assert "computed in bfloat16" in half.caption
    fine, coarse = (last_row(lm, "The capital of France is").cpu() for lm in (gemma_lm, half))
    assert 0 < (fine - coarse).abs().max() < 1.5
