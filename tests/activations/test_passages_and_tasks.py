"""Generated tasks and passages: as long as asked, made again from a seed, and the answer stands in the prompt."""

import re

import pytest
import torch

from activations import passages, tasks, texts
from activations.tokens import apart


class Pieces:
    """Words and other characters as tokens, after a BOS, as most tokenizers have it; remembers what it has met."""

    def __init__(self):
        self.known = {}

    def encode(self, text):
        found = re.findall(r" ?[A-Za-z]+|.|\n", text)
        return torch.tensor([1, *(self.known.setdefault(piece, 2 + len(self.known)) for piece in found)])

    def decode(self, ids):
        texts = {number: piece for piece, number in self.known.items()}
        return "".join(texts[i] for i in ids.tolist() if i != 1)


@pytest.fixture
def pieces():
    return Pieces()


def bytes_of(text):
    """A tokenizer without BOS."""
    return torch.tensor(list(text.encode("utf-8")))


def test_apart(pieces):
    bos, encode = apart(pieces.encode)
    assert bos.tolist() == [1] and pieces.decode(encode("a 7")) == "a 7"
    bos, encode = apart(bytes_of)
    assert bos.tolist() == [] and encode("a7").tolist() == [97, 55]


@pytest.mark.parametrize("length", [512, 1500])
@pytest.mark.parametrize("task", tasks.TASKS)
def test_examples(pieces, task, length):
    made = [tasks.example(pieces.encode, task, length, seed) for seed in range(12)]
    for one in made:
        assert length - 32 <= len(one.ids) <= length and one.ids[0] == 1 and 1 not in one.ids[1:]
        assert pieces.decode(one.ids[: one.prompt]) == one.text
        assert pieces.decode(one.ids[one.prompt :]) == one.answer
        assert one.answer.strip() in one.text
        again = tasks.example(pieces.encode, task, length, one.seed)
        assert torch.equal(again.ids, one.ids) and again.text == one.text
    assert len({one.text for one in made}) == 12 and len({one.answer for one in made}) > 6
    depths = [one.text.index(one.answer.strip()) / len(one.text) for one in made]
    assert min(depths) < 0.3 and max(depths) > (0.4 if "needle" in task or task == "copying" else 0.3)


def test_a_needle_is_asked_for_by_its_name(pieces):
    for task, count in (("needle", 1), ("multi-key needle", tasks.KEYS)):
        asked = set()
        for seed in range(10):
            one = tasks.example(pieces.encode, task, 700, seed)
            needles = re.findall(r"The access code of (\w+) is (\d{5})\.", one.text)
            city = re.search(r"The access code of (\w+) is$", one.text).group(1)
            assert len(needles) == len(dict(needles)) == count
            assert one.answer == f" {dict(needles)[city]}" and one.choices is None
            asked.add([name for name, _ in needles].index(city))
        assert len(asked) > 1 or count == 1


def test_what_changed_hands_is_tracked(pieces):
    for seed in range(10):
        one = tasks.example(pieces.encode, "variable tracking", 700, seed)
        taken = re.findall(r"(\w+) took the (\w+) from (\w+)\.", one.text)
        (asked,) = re.findall(r"(\w+) now has the$", one.text)
        assert {second: f" {thing}" for second, thing, _ in taken}[asked] == one.answer
        people = [name for second, _, first in taken for name in (second, first)]
        assert len(set(people)) == len(people) == 2 * tasks.CHAINS
        labels = {number: piece for piece, number in pieces.known.items()}
        assert labels[int(one.choices[0])] == one.answer
        assert {labels[i].strip() for i in one.choices.tolist()} == {thing for _, thing, _ in taken}


def test_the_copied_list_goes_on(pieces):
    for seed in range(5):
        one = tasks.example(pieces.encode, "copying", 700, seed)
        (words,) = re.findall(r"The list: ([a-z ]+)\.", one.text)
        shown = re.search(r"The list: ([a-z ]+)$", one.text).group(1)
        assert len(words.split()) == tasks.WORDS and words.endswith(shown + one.answer)


@pytest.mark.parametrize("encode", ["pieces", "bytes"])
@pytest.mark.parametrize("kind", passages.KINDS)
def test_passages(pieces, kind, encode):
    encode = pieces.encode if encode == "pieces" else bytes_of
    for length in (64, 1000):
        made = [passages.passage(encode, kind, length, seed) for seed in range(4)]
        for one in made:
            assert len(one.ids) == length and (one.ids[1:] != 1).all()
            assert 0 < len(one.scored) <= passages.SCORED and (one.scored.diff() > 0).all()
            assert 0 < one.scored[0] and one.scored[-1] < length
            assert torch.equal(one.ids, passages.passage(encode, kind, length, one.seed).ids)
        assert len({tuple(one.ids.tolist()) for one in made}) == 4


def test_what_is_asked_of_few_shot_stood_before(pieces):
    one = passages.passage(pieces.encode, "few-shot", 1000, 3)
    for place in one.scored.tolist():
        before = pieces.decode(one.ids[:place])
        left = before.rsplit("\n", 1)[1].split(" ->")[0]
        right = pieces.decode(one.ids[place : place + 1])
        assert f"\n{left} ->{right}" in before


def test_documents_end_as_they_began(pieces):
    one = passages.passage(pieces.encode, "documents", 2000, 0)
    text = pieces.decode(one.ids)
    quarter = pieces.decode(one.ids[1 : 1 + 499])
    last = pieces.decode(one.ids[one.scored])
    sources = [texts.builtin_text(name) for name in passages.DOCUMENTS]
    (main,) = [source for source in sources if quarter[:300] in source + source]
    assert last in main + main
    others = [source for source in sources if source is not main]
    assert all(any(text[at : at + 60] in source for at in range(len(quarter), len(text), 7)) for source in others)


def test_the_splits_share_nothing(pieces):
    prose = [passages.passage(pieces.encode, "prose", 2000, seed) for seed in range(5)]
    other = [passages.passage(pieces.encode, "prose", 2000, seed, split="training") for seed in range(5)]
    measured = texts.measuring_text()
    assert all(pieces.decode(one.ids)[:500] in measured + measured for one in prose)
    rest = texts.builtin_text("pydoc")[len(measured) :]
    assert all(pieces.decode(one.ids)[:500] in rest + rest for one in other)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda e: tasks.example(e, "x", 512, 0), "task must be one of needle, .*, got 'x'"),
        (lambda e: tasks.example(e, "needle", 511, 0), "length must be at least 512 tokens, got 511"),
        (lambda e: tasks.example(bytes_of, "variable tracking", 5000, 3), "begin alike"),
        (lambda e: passages.passage(e, "x", 100, 0), "kind must be one of"),
        (lambda e: passages.passage(e, "prose", 63, 0), "length must be at least 64 tokens, got 63"),
        (lambda e: passages.passage(e, "code", 100, 0, split="training"), "no code of the split 'training'"),
        (lambda e: passages.passage(e, "code", 100, 0, split="y"), "got 'code' and 'y'"),
    ],
)
def test_what_is_refused(pieces, call, words):
    with pytest.raises(ValueError, match=words):
        call(pieces.encode)
