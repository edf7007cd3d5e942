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


@pytest.fixture(scope="module")
def training():
    return texts.training_texts()


def test_there_is_enough_to_train_on(training):
    assert sum(map(len, training)) > 5_000_000 and training == texts.training_texts()
    for text in training:
        text.encode("utf-8")


@pytest.mark.parametrize("name", texts.builtin_names())
def test_what_is_measured_on_is_not_trained_on(training, name):
    """Neither a text nor a telling paragraph of it; of pydoc that holds for the half that is measured on."""
    measured = texts.measuring_text() if name == "pydoc" else texts.builtin_text(name)
    assert measured not in training
    seen = {paragraph.strip() for text in training for paragraph in text.split("\n\n")}
    telling = {paragraph.strip() for paragraph in measured.split("\n\n") if len(paragraph.strip()) >= 120}
    assert telling and not telling & seen


def test_the_other_half_of_pydoc_is_trained_on_too(training):
    rest = texts.builtin_text("pydoc")[len(texts.measuring_text()) :]
    lines = {line.strip() for text in training for line in text.splitlines()}
    telling = [line.strip() for line in rest.splitlines() if len(line.strip()) >= 60]
    assert sum(line in lines for line in telling) > 0.6 * len(telling)


def test_a_part_of_the_training_texts_is_their_beginning(training):
    part = texts.training_texts(200_000)
    assert part == training[: len(part)] and 200_000 <= sum(map(len, part)) < 1_000_000
    assert sum(map(len, part[:-1])) < 200_000


def test_wrong_arguments():
    with pytest.raises(ValueError, match="there is no built-in text 'x'; there are pydoc"):
        texts.builtin_text("x")
    with pytest.raises(ValueError, match="max_characters must be at least 1, got 0"):
        texts.builtin_text("zen", 0)
