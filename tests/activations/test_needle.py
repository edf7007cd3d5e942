"""Needles and what reads them: where they lie, what a full budget gives, where their key stands."""

import pytest
import torch

from activations import forward
from activations.needle import NeedleReader, least_budget, needle
from activations.selected import selected_attention
from activations.selection import Selection
from qp_kernels.pivot import pivot_topk

LENGTH = 128
TEXT = "It is so b."


class Words:
    """A token a word or a line break: BOS first."""

    bos_token_id = 1

    def __init__(self):
        self.known = {}

    def encode(self, text):
        words = text.replace("\n", " \n ").split(" ")
        return [1, *(self.known.setdefault(word, 3 + len(self.known) % 90) for word in words if word)]

    def decode(self, ids):
        return " ".join(str(i) for i in ids)


@pytest.fixture
def lm(tiny):
    return tiny("llama", initializer_range=0.4)


@pytest.mark.parametrize("depth", [0, 0.3, 1])
@pytest.mark.parametrize("length", [64, 128, 512])
def test_a_needle_lies_where_it_is_asked_for(depth, length):
    words = Words()
    encode = lambda text: torch.tensor(words.encode(text))  # noqa: E731
    made = needle(encode, length, 5, depth=depth)
    assert made.prompt == length and len(made.expected) == 1
    line, question = made.ids[made.line.start : made.line.stop], made.ids[made.question.start : made.prompt]
    assert line[: len(question)].equal(question)
    assert made.ids[made.key] == made.expected[0] and made.key in made.line
    assert made.ids[0] == 1 and (made.ids[1:] != 1).all()
    room = length - len(line) - len(question) - 1
    assert abs(made.line.start - 1 - depth * room) <= 10, "a sentence has fewer tokens"
    again, other = (needle(encode, length, seed, depth=depth) for seed in (5, 6))
    assert made.ids.equal(again.ids) and not made.ids.equal(other.ids)


def test_an_answer_of_several_tokens(lm):
    made = needle(lm.encode, LENGTH, 0, sentence="It is  so blue!")
    assert (made.asked, made.answer) == ("It is so", " blue") and len(made.expected) == 5
    assert made.ids[made.key : made.key + 5].equal(made.expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 100}, "length must be a multiple of 16 tokens, got 100"),
        ({"length": 32}, "leave no haystack in 32 tokens"),
        ({"depth": 1.5}, r"depth must be in \[0, 1\], got 1.5"),
        ({"sentence": "one."}, "at least two words, of which the last is asked for, got 'one.'"),
        ({"sentence": ""}, "at least two words"),
    ],
)
def test_what_makes_no_needle(lm, change, words):
    with pytest.raises(ValueError, match=words):
        needle(lm.encode, **{"length": LENGTH, "seed": 0, "sentence": TEXT, **change})


@pytest.mark.parametrize("selection", [Selection("dense", LENGTH), Selection("refine", 8, budget=LENGTH), None])
def test_with_all_keys_it_answers_as_the_model_does(lm, selection):
    """In one pass over prompt and answer, without a cache; with few keys something else."""
    made = needle(lm.encode, LENGTH, 1, sentence="It is so blue.")
    reader = NeedleReader(lm, made)
    with torch.inference_mode():
        logs = lm.model(made.ids[None]).logits[0].log_softmax(-1)[made.prompt - 1 : -1]
    expected = float(logs.gather(1, made.expected[:, None]).sum().exp())
    full = reader.answer(Selection("full"))
    assert full.probability == pytest.approx(expected, rel=1e-3, abs=0) and full.places == {}
    assert len(full.said) == 1 or full.right
    if selection is None:
        assert reader.answer(Selection("dense", 2)).probability != pytest.approx(expected, rel=1e-3, abs=0)
    elif selection.system == "dense":
        assert reader.answer(selection).probability == pytest.approx(expected, rel=1e-3, abs=0)
    else:  # the guard: every query searches by itself
        dense = reader.answer(Selection("dense", 8))
        assert reader.answer(selection).probability == pytest.approx(dense.probability, rel=1e-5, abs=0)
        assert all(place.is_dense and place.candidate for place in reader.answer(selection).places.values())


def test_the_same_answer_twice_and_the_cache_stays(lm):
    reader = NeedleReader(lm, needle(lm.encode, LENGTH, 1, sentence=TEXT))
    one, other = Selection("refine", 8, 4, 20), Selection("reuse", 8, 8, proxy="last")
    first = reader.answer(one)
    reader.answer(other)
    assert reader.answer(one).probability == first.probability


@pytest.mark.parametrize("proxy", ["mean", "first", "last"])
@pytest.mark.parametrize("group", [2, 4, 8, 16])
def test_the_key_s_place_is_that_of_the_selection(lm, group, proxy):
    """With c = needed the key is a candidate, with one less it is none; what is chosen is what `pivot_topk` gives."""
    made = needle(lm.encode, LENGTH, 2, sentence=TEXT)
    reader = NeedleReader(lm, made, layers=[1])
    least, seen = least_budget(4, group), []
    selection = Selection("refine", 4, group, least, proxy=proxy)
    place = reader.answer(selection).places[1]
    with selected_attention(lm, selection, layers=[1], watch=lambda *call: seen.append(call)), torch.inference_mode():
        _, cache = forward.continued(lm.model, made.ids[:LENGTH], None, chunk=LENGTH)
    chosen = {int(p) for head in seen[0][2] for p in head[-1] if p >= 0}
    assert chosen == set(place.chosen.tolist()), "groups lie as in the prefill of the whole prompt"
    assert place.candidate == (place.needed <= least) and place.cut == least
    if least < place.needed < LENGTH - group:
        for budget, is_candidate in ((place.needed, True), (place.needed - 1, False)):
            there = reader.answer(Selection("refine", 4, group, budget, proxy=proxy)).places[1]
            assert there.candidate == is_candidate


def test_a_key_that_is_no_candidate_is_not_selected():
    """By the public function, on numbers: the first member wants nothing that the second one wants."""
    q = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    k = torch.zeros(40, 2)
    k[:, 0] = torch.arange(40)
    k[3] = torch.tensor([0.0, 9.0])
    w = torch.ones(2, 1)
    budget = least_budget(2, 2)
    options = {"group": 2, "proxy": "first", "guard": False}
    assert 3 not in pivot_topk(q, k, w, 2, budget=budget, **options)[1]
    assert 3 in pivot_topk(q, k, w, 2, budget=40, **options)[1]
    with pytest.raises(ValueError, match=f"budget must be >= topk \\+ window \\+ group - 1, {budget}"):
        pivot_topk(q, k, w, 2, budget=budget - 1, **options)


def test_indexers_know_the_haystack(lm):
    """An indexer that wants the largest position less than 64 finds it, in a cache that it did not fill."""

    def wants(hidden, positions):
        key = torch.where(positions < 64, positions + 1.0, 0.0)[:, None]
        return torch.ones(len(hidden), 1, 1), key, torch.ones(len(hidden), 1)

    made = needle(lm.encode, LENGTH, 2, sentence=TEXT)
    reader = NeedleReader(lm, made, layers=[0, 2], indexers={0: wants, 2: wants})
    for place in reader.answer(Selection("dense", 3)).places.values():
        assert place.chosen.tolist() == [61, 62, 63]


def test_what_cannot_be_read(lm, tiny):
    made = needle(lm.encode, 256, 0, sentence=TEXT)
    with pytest.raises(ValueError, match=r"258 tokens are more than the 256 that .* reads"):
        NeedleReader(lm, made)
    near = tiny("gemma3", layer_types=["sliding_attention"] * 3)
    with pytest.raises(ValueError, match="no layer of .* attends to the whole text"):
        NeedleReader(near, made)
    with pytest.raises(ValueError, match="budget must be >="):
        NeedleReader(lm, needle(lm.encode, LENGTH, 0, sentence=TEXT)).answer(Selection("refine", 8, 4, 10))

    def stop(*_):
        raise InterruptedError("stopped")

    with pytest.raises(InterruptedError, match="stopped"):
        NeedleReader(lm, needle(lm.encode, LENGTH, 0, sentence=TEXT), progress=stop)
