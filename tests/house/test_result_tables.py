"""The numbers of the pages are those of data/results."""

import re

import pytest
import torch

from qp_kernels import results, timing
from qp_kernels.bench import index
from qp_kernels.pivot import Crossover
from qp_kernels.pivot.crossover import Point


@pytest.fixture
def result_tables(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "docs"))
    import result_tables

    return result_tables


def test_the_pages_show_what_the_files_hold(result_tables):
    for page, tables in result_tables.PAGES.items():
        text = page.read_text("utf-8")
        shown = {match[2] for match in result_tables.PLACE.finditer(text)}
        recorded = page != result_tables.INDEX_PAGE or "bench_index" in results.names()
        assert shown == (set(tables) if recorded else set()), f"{page.parent.name} lacks places for {set(tables)}"
        assert result_tables.render(text, tables) == text, "python docs/result_tables.py"


def test_a_number_changed_by_hand_is_found(result_tables):
    text = result_tables.PAGE.read_text("utf-8")
    first = result_tables.PLACE.search(text)
    number = re.search(r"\d+(?= %)", first[0])
    place = first.start() + number.start()
    changed = text[:place] + "7" + text[place:]
    assert result_tables.render(changed, result_tables.TABLES) == text != changed


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1.0, "100 %"), (0.0, "0 %"), (0.8967, "89.7 %"), (0.99999, "> 99.9 %"), (0.0001, "0.01 %"), (0.5, "50.0 %")],
)
def test_only_what_is_all_or_nothing_looks_so(result_tables, rate, words):
    assert result_tables.share(rate) == words


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Results of index selection whose every call takes 7 us on a CPU."""

    def timer(fn, inputs=(), **settings):
        fn(*inputs[:1])
        return timing.Timing(7.0, 7.0, 7.0, (7.0,), "wall")

    def crossover(**shape):
        return Crossover(77, (Point("level", 64, 0, 2.0, 4.0, False, True), Point("chunk", 128, 77, 3, 2, True, False)))

    def kernel(module, name):
        if name == "scan":
            return lambda q, k, w, **options: index.providers.scores_of(index.inputs.Inputs(q, k, w))
        return lambda scores, topk: index.providers.selected(scores, topk)

    monkeypatch.setattr(index.providers, "kernel", kernel)
    select = index.SMALL_CASES[0]
    cases = [*index.SMALL_CASES, index.SMALL_CASES[2]._replace(kind="scan"), select._replace(T=8)]
    records, about = index.run(cases, device="cpu", say=None, timer=timer, crossover=crossover)
    (topk,) = [r for r in records if r["case"] == select.name and r["provider"] == "torch_topk"]
    records.append({**topk, "provider": "qp_kernels", "target_us": 280})
    mine = [r for r in records if r["T"] == 16 or r["kind"] == "decode"]
    in_float8 = {"dtype": "float8_e4m3fn", "median_us": 9.0, "late": 2}
    mine += [{**r, **in_float8} for r in mine if r["kind"] in ("scan", "prefill")]
    of_layers = [{"layer": layer, "zero_scores": 0.5, **r} for layer in (3, None) for r in mine]
    shared = {"folder": tmp_path, "device": torch.device("cpu")}
    results.write("bench_index", records, about=about, **shared)
    results.write("captured_index", of_layers, about={**about, "model": "small"}, **shared)
    read = results.read
    monkeypatch.setattr(results, "read", lambda name: read(name, folder=tmp_path))


def test_tables_of_index_selection(result_tables, made_up):
    tables = {name: make() for name, make in result_tables.index_tables.TABLES.items()}
    for text in tables.values():
        head, rule, *body = text.splitlines()
        rows = [line for line in body if line.startswith("|")]
        assert rows and all(line.count("|") == head.count("|") == rule.count("|") for line in rows)
        assert text.count("<sub>") == 1
    assert "| prefill · 16 × 1,024 · float32 | PIVOT-Refine | 7.0 µs |" in tables["index_operator"]
    assert "| decode · 2 × 4 × 1,024 · float32 | dense |" in tables["index_operator"]
    assert "| 1,024 | 7.0 µs | 7.0 µs | 1.00 | 1.00 |" in tables["index_chunks"]
    assert "measured guard 77" in tables["index_chunks"] and "quoted from arXiv 2607.24593" in tables["index_chunks"]
    assert "| ≤ 280 µs | 7.0 µs | read once 7.0 µs |" in tables["index_parts"]
    assert "| scan · 16 × 1,024 · float32 | 7.0 µs, 0 TFLOP/s |" in tables["index_parts"]
    assert "| level | 64 | – | 2.00 ms | 4.00 ms | 0.50 |" in tables["index_crossover"]
    assert "| chunk | 128 | 77 | 3.00 ms | 2.00 ms | 1.50 |" in tables["index_crossover"]
    captured, each = tables["index_captured"], " 7.0 µs |"
    head = (
        "| numbers | dtype | zeros | read once | top-k | torch.topk | scan | dense | Reuse | Refine | decode: dense |"
    )
    assert captured.startswith(head) and "| normal | float32 |" in captured
    assert f"| layer 3 | float32 | 50.0% |{10 * each}" in captured
    assert f"| layer 3 | float8_e4m3fn | 50.0% |{3 * ' – |'}{4 * ' 9.0 µs † |'}{3 * ' – |'}" in captured
    assert "the last group by CUDA graph" in captured and "† The GPU waited" in captured
    text = "a\n<!-- results: index_parts -->\nearlier\n<!-- /results -->\n"
    assert "earlier" not in result_tables.render(text, result_tables.index_tables.TABLES)


LESS = " ".join(["1.75"] * 20)


def test_table_of_quality(result_tables, tmp_path, monkeypatch):
    """Every system has a row for each source, and is bold where it differs from dense selection on the same samples."""

    def record(kind, name, system, each, losses, source="attention"):
        what = {"kind": kind, "name": name, "length": 4096, "topk": 64, "source": source, "system": system}
        return {**what, "label": system, "counts": True, "each": each, "each_loss": losses}

    ones, losses = " ".join("1" * 20), " ".join(["2.0"] * 20)
    wrong, worse = " ".join("0" * 10 + "1" * 10), " ".join(["2.5"] * 20)
    records = [
        record(kind, name, system, each, loss, source)
        for source in ("attention", "distilled")
        for kind, name in (("task", "needle"), ("passage", "code"))
        for system, each, loss in (("full", ones, losses), ("dense", ones, losses), ("hisa", wrong, worse))
    ]
    names, read, make = results.names, results.read, result_tables.quality_tables.quality
    monkeypatch.setattr(results, "names", lambda: names(folder=tmp_path))
    monkeypatch.setattr(results, "read", lambda name: read(name, folder=tmp_path))
    assert make() == result_tables.quality_tables.NOT_RECORDED
    results.write("quality", records[:-1], folder=tmp_path, device="cpu", about={"model": "small"})
    text = make()
    assert text.count("<sub>") == 1 and text.count("| HISA | **50.0 [30, 70]** |") == 2
    assert "**Index of distilled indexers, topk 64 at 4,096 tokens**, small" in text
    assert text.count("| system | tasks, % | code, nats | the paper, % |\n|---|---|---|---|\n") == 2
    assert "| full attention | 100.0 [84, 100] | 0 |  |" in text
    assert "| dense selection | 100.0 [84, 100] | +0.000 [+0.000, +0.000] | 90.45 |" in text
    assert text.count("**+0.500 [+0.500, +0.500]** | 62.46 |") == 1 and text.count("| – | 62.46 |") == 1
    longer = [{**one, "length": 8192} for one in records if one["kind"] == "task"]
    better = [record("passage", "prose", name, "1", loss) for name, loss in (("full", losses), ("dense", LESS))]
    results.write("quality", [*records, *longer, *better], folder=tmp_path, device="cpu", about={"model": "small"})
    text = make()
    assert "| system | tasks, % at 8,192 | code, nats at 4,096 | prose, nats at 4,096 | the paper, % |" in text
    assert "+0.000 [+0.000, +0.000] | **-0.250 [-0.250, -0.250]** | 90.45 |" in text, "each kind by itself"


def test_without_results_it_says_so(result_tables, monkeypatch, tmp_path):
    read = results.read
    monkeypatch.setattr(results, "read", lambda name: read(name, folder=tmp_path))
    for make in result_tables.index_tables.TABLES.values():
        with pytest.raises(ValueError, match="there are no results '(bench|captured)_index'"):
            make()
