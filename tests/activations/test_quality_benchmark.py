"""benchmarks/quality.py on a small model: what it asks, in which order, and what it records."""

import importlib.util
import time
import types
from pathlib import Path

import pytest

import activations
from activations import quality, wrap
from qp_kernels import results

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "quality.py"
SMALL = ["--device", "cpu", "--lengths", "512", "--topk", "16", "--samples", "3", "--chunk", "128"]


class Words:
    """Words of a fixed vocabulary: lengths are as for a real tokenizer, ids stay below 400."""

    bos_token_id, eos_token_id = 1, 2

    def __len__(self):
        return 400

    def encode(self, text):
        import re

        return [1, *(3 + sum(map(ord, piece)) % 397 for piece in re.findall(r" ?[A-Za-z]+|.|\n", text))]

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.fixture
def bench(tiny_model, monkeypatch):
    lm = wrap(tiny_model("llama", vocab_size=400, max_position_embeddings=2048), Words(), name="small")
    monkeypatch.setattr(activations, "load", lambda name, **options: lm)
    spec = importlib.util.spec_from_file_location("benchmark_quality", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def know(monkeypatch, share):
    """Let full attention answer this share of the examples, and others one fewer."""
    real = quality.answers

    def answers(lm, examples, selection, **options):
        given = real(lm, examples, selection, **options)
        right = round(share * len(given)) - (selection.system != "full")
        return [quality.Answer(i < right, one.loss) for i, one in enumerate(given)]

    monkeypatch.setattr(quality, "answers", answers)


def test_records(bench, monkeypatch, tmp_path, capsys):
    know(monkeypatch, 1.0)
    given = [
        *SMALL,
        "--tasks",
        "copying",
        "--passages",
        "few-shot",
        "prose",
        "--systems",
        "dense",
        "refine + index cache",
    ]
    assert bench.main([*given, "--record", "--folder", str(tmp_path)]) == 0
    read = results.read("quality", folder=tmp_path)
    seen = [(r["name"], r["system"], r["label"]) for r in read.records]
    systems = [("full", "full"), ("dense", "dense"), ("refine + index cache", "refine g4 c32 FFS")]
    assert seen == [(name, *one) for name in ("copying", "few-shot", "prose") for one in systems]
    full, dense = read.records[:2]
    assert (full["right"], full["samples"], full["each"], dense["right"]) == (3, 3, "1 1 1", 2)
    assert dense["accuracy_low"] < 2 / 3 < dense["accuracy_high"] < full["accuracy_high"] == 1
    assert all(r["loss_low"] <= r["loss"] <= r["loss_high"] and r["counts"] for r in read.records)
    assert all(r["more_low"] <= r["more"] <= r["more_high"] for r in read.records)
    assert [r["more"] for r in read.records if r["system"] == "full"] == [0.0] * 3
    assert all(r["more"] != 0 for r in read.records if r["system"] == "dense")
    assert read.command == (
        "python benchmarks/quality.py --device cpu --lengths 512 --topk 16 --samples 3 --chunk 128 --tasks copying "
        "--passages few-shot prose --systems dense 'refine + index cache' --record"
    )
    assert (read.about["layers"], read.about["first_seed"], full["source"]) == ("0 1 2", 0, "attention")
    text = capsys.readouterr().out
    assert "attention, topk 16" in text and "   512  dense" in text and "66.7 [" in text


def test_a_task_that_does_not_count_is_not_asked_of_others(bench, monkeypatch, capsys):
    know(monkeypatch, 0.34)
    assert bench.main([*SMALL, "--tasks", "needle", "--passages", "--systems", "dense"]) == 0
    text = capsys.readouterr().out
    assert "needle at 512 tokens does not count" in text and "dense" not in text


def test_full_attention_is_asked_once_for_every_topk(bench, monkeypatch, tmp_path):
    real, asked = quality.passage_losses, []

    def losses(lm, given, selection, **options):
        asked.append((selection.system, selection.topk))
        return real(lm, given, selection, **options)

    monkeypatch.setattr(quality, "passage_losses", losses)
    given = [*SMALL, "--topk", "16", "32", "512", "--tasks", "--passages", "code", "--systems", "dense"]
    assert bench.main([*given, "--record", "other", "--folder", str(tmp_path)]) == 0
    assert asked == [("full", 16), ("dense", 16), ("dense", 32)]
    read = results.read("other", folder=tmp_path)
    assert [(r["topk"], r["system"]) for r in read.records] == [
        (16, "full"),
        (16, "dense"),
        (32, "full"),
        (32, "dense"),
    ]
    assert read.records[0]["loss"] == read.records[2]["loss"]


def test_the_greedy_pattern_is_found_on_the_training_split(bench, monkeypatch, tmp_path):
    from activations import passages

    real, splits = passages.passage, []

    def passage(encode, kind, length, seed, **options):
        splits.append(options.get("split", "evaluation"))
        return real(encode, kind, length, seed, **options)

    monkeypatch.setattr(passages, "passage", passage)
    monkeypatch.setattr(bench, "CALIBRATION", 1)
    given = [*SMALL, "--tasks", "--passages", "code", "--systems", "index cache greedy"]
    assert bench.main([*given, "--record", "--folder", str(tmp_path)]) == 0
    assert splits == ["training"] * 2 + ["evaluation"] * 3
    read = results.read("quality", folder=tmp_path)
    pattern = read.about["greedy_pattern_attention_16"]
    assert pattern in ("FFS", "FSF") and read.records[1]["label"] == f"dense {pattern}"


def test_a_run_that_ends_early_is_resumed(bench, monkeypatch, tmp_path, capsys):
    real, asked = quality.passage_losses, []

    def losses(lm, given, selection, **options):
        asked.append(selection.system)
        return real(lm, given, selection, **options)

    monkeypatch.setattr(quality, "passage_losses", losses)
    for module in (bench, bench.work):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: float(len(asked))))
    given = [*SMALL, "--tasks", "--passages", "code", "few-shot", "--systems", "dense", "misa"]
    record = ["--record", "--folder", str(tmp_path), "--resume"]
    assert bench.main([*given, *record, "--seconds", "0.5"]) == 0
    text = capsys.readouterr().out
    assert asked == ["full"] and "0.5 seconds are over: --resume goes on" in text
    assert bench.main([*given, *record]) == 0
    assert asked == ["full", "full", "dense", "dense", "misa", "misa"]
    read = results.read("quality", folder=tmp_path)
    assert [(r["name"], r["system"]) for r in read.records] == [
        (name, system) for name in ("code", "few-shot") for system in ("full", "dense", "misa")
    ]
    assert read.command.endswith("--systems dense misa --record") and read.records[1]["more"] != 0
    with pytest.raises(SystemExit, match="quality was made with another first_seed: record under another name"):
        bench.main([*given, *record, "--seed", "7"])
    with pytest.raises(SystemExit, match="say --record too"):
        bench.main([*given, "--resume"])


def test_averages_are_over_what_every_system_was_asked(bench):
    def record(name, system, right):
        what = {"kind": "task", "name": name, "length": 512, "topk": 16, "source": "attention", "system": system}
        return {**what, "counts": True, "each": right}

    records = [record("needle", "full", "1 1"), record("needle", "dense", "1 0"), record("copying", "full", "0 0")]
    lines = bench.averages(records, "attention", 16).splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["full", "100.0"], ["dense", "50.0"]]


def test_both_sources_of_the_index(bench, tmp_path):
    from activations import distil, texts

    lm = activations.load("small")
    text = lm.encode(texts.builtin_text("zen"))
    distil(lm, [0, 1, 2], texts=[text], lengths=[20], steps=1, heads=3, dim=16, rope_dim=8).save(tmp_path / "indexers")
    given = [*SMALL, "--tasks", "--passages", "code", "--systems", "dense", "--source", "attention", "distilled"]
    given += ["--indexers", str(tmp_path / "indexers"), "--record", "--folder", str(tmp_path)]
    assert bench.main(given) == 0
    read = results.read("quality", folder=tmp_path)
    seen = [(r["source"], r["system"]) for r in read.records]
    assert seen == [(source, name) for source in ("attention", "distilled") for name in ("full", "dense")]
    full, own, again, other = (r["loss"] for r in read.records)
    assert full == again and len({full, own, other}) == 3
    assert "indexers" not in read.command and len(read.about["indexers"]) == 16
    distil(lm, [0, 1, 2], texts=[text], lengths=[20], steps=2, heads=3, dim=16, rope_dim=8).save(tmp_path / "indexers")
    with pytest.raises(SystemExit, match="quality was made with another indexers"):
        bench.main([*given, "--resume"])


def test_further_topk_go_into_the_same_record(bench, tmp_path):
    given = [*SMALL, "--tasks", "--passages", "code", "--systems", "dense", "index cache greedy"]
    record = ["--record", "--folder", str(tmp_path), "--resume"]
    for topk in ("16", "32"):
        assert bench.main([*given, "--topk", topk, *record]) == 0
    read = results.read("quality", folder=tmp_path)
    assert [(r["topk"], r["system"]) for r in read.records] == [
        (topk, system) for topk in (16, 32) for system in ("full", "dense", "index cache greedy")
    ]
    assert {"greedy_pattern_attention_16", "greedy_pattern_attention_32"} <= set(read.about)


class Counting:
    """In place of an asker, in a process of its own."""

    def __init__(self, first):
        self.first = first

    def twice(self, number):
        if number < 0:
            raise ValueError("a negative number")
        time.sleep(0.01)
        return self.first + 2 * number


def test_several_processes_answer_every_call(bench):
    with bench.work.pool_of(2, Counting, (100,)) as pool:
        ask = bench.work.in_processes(pool)
        assert dict(ask("twice", [(i,) for i in range(9)])) == {(i,): 100 + 2 * i for i in range(9)}
        given = []
        with pytest.raises(ValueError, match="a negative number"):
            given.extend(value for _, value in ask("twice", [(-1,), *((i,) for i in range(1000))]))
        assert len(given) < 1000, "what was queued is not begun after an error"


def test_what_others_found_before_an_error_is_given(bench):
    with bench.work.pool_of(1, Counting, (0,)) as pool:
        given = []
        with pytest.raises(ValueError, match="a negative number"):
            for call, value in bench.work.in_processes(pool)("twice", [(1,), (2,), (-1,), (3,)]):
                given.append((call, value))
    assert ((1,), 2) in given and ((2,), 4) in given


@pytest.mark.parametrize("given", [["--folder", "/x", "--workers", "3"], ["--folder=/x", "--resume"]])
def test_places_of_one_machine_are_not_told(bench, given):
    assert bench.told([*given, "--systems", "misa rerank"]) == ["--systems", "'misa rerank'"]


def test_lengths_that_leave_nothing_to_select(bench):
    with pytest.raises(SystemExit, match="every length is at most topk"):
        bench.main([*SMALL, "--topk", "512"])


def test_an_unknown_system(bench):
    with pytest.raises(SystemExit, match="there is no system 'x'; there are full, dense, .*, index cache greedy"):
        bench.main([*SMALL, "--systems", "x"])
