"""Indexers as `python -m activations.record indexers` writes them: with recipe, data, quality, terms, and resumable."""

import hashlib
import json

import pytest
import torch

from activations import capture_index, gemma, load_indexer, record, record_indexers, texts
from activations.indexer_file import FOLDER, SCHEMA, layers_in, path_of

TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
PROSE = "the quick brown fox jumps over the lazy dog, again and again. "


@pytest.fixture
def lm(tiny, monkeypatch, empty_cache):
    found = tiny("llama", max_position_embeddings=128)
    monkeypatch.setattr(record, "load", lambda name, device: found)
    monkeypatch.setattr(texts, "training_texts", lambda: [PROSE * 20, PROSE[::-1] * 20])
    monkeypatch.setattr(texts, "measuring_text", lambda: PROSE[7:] * 5)
    return found


SHORT = ["--lengths", "16", "40", "--rows", "12", "--steps", "4", "--layers", "0", "2"]


def sound(path):
    """The provenance of a file, once it is found to be that of this file."""
    provenance = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert provenance["bytes"] == path.stat().st_size and provenance["schema"] == SCHEMA
    meta = load_indexer(path).meta
    assert provenance["meta"] == {name: value for name, value in meta.items() if name != "sketch"}
    assert "Distilled from activations of" in meta["derived"] and meta["recipe"]["lengths"]
    assert {"text", "texts", "last_kl"} <= set(meta["training"])
    return provenance


def test_files_say_what_they_are_and_how_good(lm, tmp_path, capsys):
    record.main(["indexers", *SHORT, "--folder", str(tmp_path / "out")])
    assert capsys.readouterr().out.count("indexer_layer_") == 2
    assert layers_in(tmp_path / "out") == [0, 2]
    for layer in (0, 2):
        provenance = sound(path_of(tmp_path / "out", layer))
        assert provenance["command"] == "python -m activations.record indexers " + " ".join(
            ["--layers", "0", "2", "--lengths", "16", "40", "--steps", "4", "--rows", "12"]
        )
        assert provenance["texts_licence"] == texts.PSF_LICENCE
        assert provenance["notice"] == "data/indexers/NOTICE of the repository"
        assert provenance["licence"] == "that of the model" and provenance["shape"]["heads"] == 8
        quality = provenance["meta"]["quality"]
        assert [(one["tokens"], one["layer"]) for one in quality] == [(16, layer), (40, layer)]
        assert all(0 <= one["recall_attention"] <= 1 and one["kl"] > 0 for one in quality)
    capture = capture_index(lm, "abc", layer=2, source="distilled", indexers=tmp_path / "out")
    assert capture.q.shape == (4, 8, 64)


def test_a_stopped_command_goes_on_where_it_was(lm, tmp_path, empty_cache, monkeypatch):
    record.main(["indexers", *SHORT, "--folder", str(tmp_path / "whole")])
    own = record_indexers.distil

    def stopped(*args, progress, **options):
        def stop(done, total, what):
            progress(done, total, what)
            if done == 3 and "Distilling" in what:
                raise KeyboardInterrupt

        return own(*args, progress=stop, **options)

    monkeypatch.setattr(record_indexers, "distil", stopped)
    with pytest.raises(KeyboardInterrupt):
        record.main(["indexers", *SHORT, "--folder", str(tmp_path / "parts")])
    checkpoint = empty_cache / "distillation" / "tiny-llama.safetensors"
    assert checkpoint.is_file() and not (tmp_path / "parts").exists()
    monkeypatch.setattr(record_indexers, "distil", own)
    with pytest.raises(SystemExit, match="its recipe has steps 4, not 5"):
        record.main(["indexers", *SHORT, "--steps", "5", "--folder", str(tmp_path / "parts")])
    record.main(["indexers", *SHORT, "--folder", str(tmp_path / "parts")])
    assert not checkpoint.exists()
    for layer in (0, 2):
        whole, parts = (load_indexer(path_of(tmp_path / name, layer)) for name in ("whole", "parts"))
        assert whole.meta == parts.meta and whole.shape == parts.shape
        assert all(one.equal(parts.state_dict()[name]) for name, one in whole.state_dict().items())


def test_texts_of_ones_own(lm, tmp_path):
    options = {"texts": [PROSE * 9], "lengths": [16], "steps": 1, "layers": 1}
    (path,) = record_indexers.record_indexers(lm, tmp_path, **options)
    provenance = sound(path)
    assert provenance["texts_licence"] == "that of the texts" and "quality" not in provenance["meta"]
    lm.name, lm.meta = gemma.NAME, {"terms": TERMS}
    (path,) = record_indexers.record_indexers(lm, tmp_path, **options)
    assert sound(path)["licence"] == TERMS and "Q4_K_M" in load_indexer(path).meta["derived"]


def test_other_options_do_not_go_where_the_standard_files_are(capsys):
    with pytest.raises(SystemExit):
        record.main(["indexers", "--steps", "3", "--checkpoint", "mine.safetensors"])
    assert "with --steps 3 say where the files go: --folder (data/indexers has the standard)" in capsys.readouterr().err


def test_what_cannot_be_distilled_is_told_by_the_command(lm, tmp_path):
    with pytest.raises(SystemExit, match="a length is 129 tokens, tiny-llama reads at most 128"):
        record.main(["indexers", "--lengths", "129", "--folder", str(tmp_path)])


def test_the_terms_travel_along():
    notice = (FOLDER / "NOTICE").read_text("utf-8")
    assert notice.startswith(TERMS) and "DERIVED" in notice
    assert "ai.google.dev/gemma/prohibited_use_policy" in notice and "PSF" not in notice
    terms = (FOLDER / "GEMMA_TERMS.txt").read_text("utf-8")
    assert terms == (FOLDER.parent / "captures" / "GEMMA_TERMS.txt").read_text("utf-8")


def test_the_files_of_the_repository_are_those_of_the_default_model():
    """All there are: a clone may have none, since the weights come from a GPU."""
    for layer in layers_in(FOLDER):
        path = path_of(FOLDER, layer)
        provenance = sound(path)
        assert provenance["licence"] == TERMS and provenance["notice"] == "NOTICE" and path.stat().st_size < 4 << 20
        assert provenance["command"].startswith("python -m activations.record indexers")
        assert provenance["meta"]["model"] == gemma.NAME and provenance["meta"]["gguf_sha256"] == gemma.GGUF_SHA256
        assert all(torch.isfinite(one).all() for one in load_indexer(path).state_dict().values())
