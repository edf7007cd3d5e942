"""Losses and answers on selected keys, against what the model itself gives."""

import pytest
import torch

from activations import quality, tasks
from activations.passages import Passage, passage
from activations.selection import Selection
from activations.tasks import Example

N = 40
IDS = torch.randint(3, 90, (3, N), generator=torch.Generator().manual_seed(1))
ALL, FEW = Selection("refine", N + 5), Selection("dense", 4)


@pytest.fixture
def lm(tiny):
    return tiny("llama", initializer_range=0.4)


def logits_of(lm, ids):
    with torch.no_grad():
        return lm.model(ids[None]).logits[0]


def given(first=20):
    return [Passage(ids, torch.tensor([first, 30, 39]), "prose", seed) for seed, ids in enumerate(IDS)]


@pytest.mark.parametrize("selection", [Selection("full"), ALL], ids=["full", "all keys"])
@pytest.mark.parametrize("chunk", [None, 8])
def test_losses_are_those_of_the_model(lm, selection, chunk):
    want = []
    for ids in IDS:
        places = torch.tensor([20, 30, 39])
        want.append(torch.nn.functional.cross_entropy(logits_of(lm, ids)[places - 1], ids[places]).item())
    assert quality.passage_losses(lm, given(), selection, chunk=chunk) == pytest.approx(want, rel=1e-4)


def test_few_keys_change_the_loss_and_rows_do_not(lm, monkeypatch):
    few = quality.passage_losses(lm, given(), FEW)
    full = quality.passage_losses(lm, given(), Selection("full"))
    assert all(abs(one - other) > 1e-3 for one, other in zip(few, full))
    monkeypatch.setattr(quality, "ROWS", 1)
    assert quality.passage_losses(lm, given(), FEW) == pytest.approx(few, rel=1e-5)


def test_the_head_gives_what_the_model_does(tiny):
    for name, more in (("gemma3", {"layer_types": ["full_attention"] * 3}), ("granite", {})):  # a soft cap, a scale
        lm = tiny(name, **more)
        want = torch.nn.functional.cross_entropy(logits_of(lm, IDS[0])[:-1], IDS[0, 1:]).item()
        whole = [Passage(IDS[0], torch.arange(1, N), "prose", 0)]
        assert quality.passage_losses(lm, whole, Selection("full")) == pytest.approx([want], rel=1e-4)


def greedy(lm, ids, count):
    for _ in range(count):
        ids = torch.cat([ids, logits_of(lm, ids)[-1:].argmax(-1)])
    return ids


@pytest.mark.parametrize("selection", [Selection("full"), ALL], ids=["full", "all keys"])
def test_an_answer_is_right_where_greedy_decoding_writes_it(lm, selection):
    right = greedy(lm, IDS[0], 5)
    wrong = right.clone()
    wrong[-1] = (wrong[-1] + 1) % 90
    examples = [Example(ids, N, None, "copying", 0, "", "") for ids in (right, wrong)]
    found = quality.answers(lm, examples, selection, chunk=16)
    assert [one.right for one in found] == [True, False]
    want = torch.nn.functional.cross_entropy(logits_of(lm, right)[N - 1 : -1], right[N:]).item()
    assert found[0].loss == pytest.approx(want, rel=1e-4) and found[1].loss > found[0].loss


def test_of_choices_the_likeliest_is_taken(lm):
    order = logits_of(lm, IDS[0])[-1].argsort(descending=True)
    ids = torch.cat([IDS[0], order[3:4]])  # not what greedy decoding writes
    among = [order[[3, 5, 9]], order[[3, 2, 9]], None]
    found = quality.answers(lm, [Example(ids, N, choices, "x", 0, "", "") for choices in among], Selection("full"))
    assert [one.right for one in found] == [True, False, False]


def test_prompts_are_read_as_prefill_and_answers_as_decode(lm, monkeypatch):
    from activations import selection as module

    real, calls = module.pivot_topk, []
    monkeypatch.setattr(module, "pivot_topk", lambda q, *a, **o: calls.append((len(q), o["phase"])) or real(q, *a, **o))
    example = Example(IDS[0], N - 5, None, "x", 0, "", "")
    quality.answers(lm, [example, example], Selection("reuse", 4), layers=[2], chunk=16)
    one = [(16, "prefill")] * 4 + [(2, "prefill")] * 2 + [(5, "decode")] * 2  # two key heads
    assert calls == one * 2


def test_progress_cancels_and_leaves_the_model_as_it_was(lm):
    before = logits_of(lm, IDS[0])

    def progress(done, total, what):
        if done == 1:
            raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError, match="1 of 3"):
        quality.passage_losses(lm, given(), FEW, progress=progress)
    assert torch.equal(logits_of(lm, IDS[0]), before)


def test_what_is_refused(lm):
    with pytest.raises(ValueError, match="chunk must be a multiple of the 4 tokens of a group, got 10"):
        quality.passage_losses(lm, given(), ALL, chunk=10)
    long = [passage(lm.encode, "prose", 300, 0)]
    with pytest.raises(ValueError, match="300 tokens are more than the 256 that tiny-llama reads"):
        quality.passage_losses(lm, long, FEW)


def test_a_task_counts_from_60_percent():
    answers = [quality.Answer(right, 0.0) for right in (True, True, True, False, False)]
    assert quality.counts(answers) and not quality.counts(answers[1:]) and not quality.counts([])


@pytest.mark.model
def test_the_default_model_finds_a_needle_by_64_keys_and_not_by_one(gemma_lm):
    examples = [tasks.example(gemma_lm.encode, "needle", 1000, seed) for seed in (1, 4)]
    # Beyond the windows of the other layers.
    assert all(len(gemma_lm.encode(one.text[one.text.index("The access code") :])) > 600 for one in examples)
    full, dense, one_key = (
        quality.answers(gemma_lm, examples, Selection(*of)) for of in (("full",), ("dense", 64), ("dense", 1))
    )
    assert [one.right for one in full] == [True, True] == [one.right for one in dense]
    assert [one.right for one in one_key] == [False, False]
    assert all(lost.loss > one.loss + 1 for lost, one in zip(one_key, full))
