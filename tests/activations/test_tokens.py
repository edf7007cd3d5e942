"""Ids as text, for several kinds of tokenizer."""

import pytest
import torch

from activations.tokens import TokenText, as_ids, byte_of_char, encode


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE of Hugging Face with three merges and an end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    chars = sorted(byte_of_char())
    vocab = {char: i for i, char in enumerate([*chars, "Ġt", "he", "Ġthe"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "t"), ("h", "e"), ("Ġt", "he")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|reserved_special_token_7|>"])
    eos = backend.token_to_id("<|endoftext|>")
    backend.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", eos)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


def test_byte_level_tokens_read_as_text(byte_level):
    ids = encode(byte_level, "x the\né法")
    text = TokenText(byte_level, 300)
    assert text.label(ids) == ["x", " the", "\n", "\\xc3", "\\xa9", "\\xe6", "\\xb3", "\\x95"]
    assert text.label([byte_level.eos_token_id, 299]) == ["<|endoftext|>", "<id 299>"]


def test_the_byte_table_is_that_of_gpt2():
    table = byte_of_char()
    assert sorted(table.values()) == list(range(256))
    assert (table["Ġ"], table["Ċ"], table["A"], table["é"]) == (0x20, 0x0A, 0x41, 0xE9)


def test_an_appended_end_token_is_dropped_and_a_written_one_stays(byte_level):
    eos = byte_level.eos_token_id
    assert byte_level("ab")["input_ids"][-1] == eos
    assert eos not in encode(byte_level, "ab")
    assert encode(byte_level, "ab<|endoftext|>")[-1] == eos


def test_unused_covers_placeholders_and_ids_beyond_the_tokenizer(byte_level):
    n = len(byte_level)
    unused = TokenText(byte_level, n + 3).unused
    assert unused.nonzero().flatten().tolist() == [n - 1, n, n + 1, n + 2]


def test_a_plain_object_is_enough(characters):
    text = TokenText(characters, 100)
    assert text.label([1, 2, 95]) == ["A", "B", "<id 95>"]
    assert text.unused.tolist() == [False] * 90 + [True] * 10


def test_ids_come_as_anything_with_integers():
    import numpy as np

    for ids in (7, [7], (7,), np.array([7]), torch.tensor([7]), torch.tensor(7, dtype=torch.int32), np.int64(7)):
        assert as_ids(ids, 10) == [7]
    assert as_ids([], 10) == []
    assert as_ids(range(3), 10) == [0, 1, 2]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([10], r"token id 10 is out of the vocabulary \[0, 10\)"),
        ([3, -1], "token id -1 is out"),
        ([0.5], "must be integers, got torch.float32"),
        ([True], "must be integers, got torch.bool"),
        (True, "must be integers"),
        (["a"], "must be integers"),
        (None, "must be integers"),
        ([[1, 2]], r"one-dimensional, got shape \(1, 2\)"),
    ],
)
def test_wrong_ids_are_refused(ids, words):
    with pytest.raises(ValueError, match=words):
        as_ids(ids, 10)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [("", ValueError, "the text is empty"), ("a\ud800", ValueError, "at position 1"), (b"a", TypeError, "got bytes")],
)
def test_wrong_texts_are_refused(characters, text, kind, words):
    with pytest.raises(kind, match=words):
        encode(characters, text)


def test_a_text_without_tokens_is_refused(characters):
    characters.encode = lambda text: []
    with pytest.raises(ValueError, match="makes no token"):
        encode(characters, "\u200b")
