"""Texts that come with Python, and the openers."""

import pytest

from activations import texts


@pytest.mark.parametrize("name", texts.builtin_names())
def test_built_in_texts(name):
    text = texts.builtin_text(name)
    assert len(text) > 500
    assert texts.builtin_text(name, 100) == text[:100]
    text.encode("utf-8")


def test_pydoc_is_long():
    assert len(texts.builtin_text("pydoc")) > 300_000


def test_the_zen_is_the_poem(capsys):
    poem = texts.builtin_text("zen")
    assert poem.startswith("The Zen of Python, by Tim Peters\n\nBeautiful is better than ugly.")
    assert capsys.readouterr().out == ""


def test_openers_hold_a_chinese_one_and_say_what_to_see():
    assert any(any("\u4e00" <= char <= "\u9fff" for char in text) for text, _ in texts.openers)
    assert len({text for text, _ in texts.openers}) == len(texts.openers)
    assert all(text and note and not text.endswith(" ") for text, note in texts.openers)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="there is no built-in text 'x'; there are pydoc"):
        texts.builtin_text("x")
    with pytest.raises(ValueError, match="max_characters must be at least 1, got 0"):
        texts.builtin_text("zen", 0)
