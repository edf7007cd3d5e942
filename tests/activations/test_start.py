"""What a lesson opens, by its argument or the environment."""

import pytest

from activations import LogitCapture, model_or_recorded, models


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Names that would be loaded."""
    names = []
    monkeypatch.setattr(models, "load", lambda name, **options: names.append(name) or name)
    monkeypatch.delenv("QP_MODEL", raising=False)
    return names


@pytest.mark.parametrize("spelling", ["none", "None", "NONE"])
def test_none_in_any_case_opens_what_was_recorded(spelling, asked, monkeypatch):
    assert isinstance(model_or_recorded(spelling), LogitCapture)
    monkeypatch.setenv("QP_MODEL", spelling)
    assert isinstance(model_or_recorded(), LogitCapture)
    assert asked == []


def test_a_lesson_says_what_it_opens_instead(asked):
    assert model_or_recorded("none", instead="sentence_layer_11").meta["layer"] == 11
    both = model_or_recorded("none", instead=["sentence_layer_5", "sentence_layer_17"])
    assert [one.meta["layer"] for one in both] == [5, 17]
    assert model_or_recorded("some/model", instead="sentence_layer_11") == "some/model" and asked == ["some/model"]


def test_the_argument_then_the_environment_then_the_default(asked, monkeypatch):
    model_or_recorded()
    monkeypatch.setenv("QP_MODEL", "some/model")
    model_or_recorded()
    model_or_recorded("another/model")
    assert asked == ["gemma-3-270m", "some/model", "another/model"]


def test_only_the_default_model_may_be_missing(monkeypatch, capsys):
    def missing(name, **options):
        raise ImportError("no package")

    monkeypatch.setattr(models, "load", missing)
    assert isinstance(model_or_recorded(), LogitCapture)
    assert "No live model: no package" in capsys.readouterr().err
    with pytest.raises(ImportError):
        model_or_recorded("some/model")
