"""The numbers of the pages are those of data/results."""

import re

import pytest


@pytest.fixture
def result_tables(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "docs"))
    import result_tables

    return result_tables


def test_the_page_shows_what_the_files_hold(result_tables):
    text = result_tables.PAGE.read_text("utf-8")
    shown = {match[2] for match in result_tables.PLACE.finditer(text)}
    assert shown == set(result_tables.TABLES)
    assert result_tables.render(text) == text, "python docs/result_tables.py"


def test_a_number_changed_by_hand_is_found(result_tables):
    text = result_tables.PAGE.read_text("utf-8")
    first = result_tables.PLACE.search(text)
    number = re.search(r"\d+(?= %)", first[0])
    place = first.start() + number.start()
    changed = text[:place] + "7" + text[place:]
    assert result_tables.render(changed) == text != changed


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1.0, "100 %"), (0.0, "0 %"), (0.8967, "89.7 %"), (0.99999, "> 99.9 %"), (0.0001, "0.01 %"), (0.5, "50.0 %")],
)
def test_only_what_is_all_or_nothing_looks_so(result_tables, rate, words):
    assert result_tables.share(rate) == words
