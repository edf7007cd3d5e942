"""The bench of index selection: cases, inputs, check, records and command line, with made-up times on a CPU."""

import pytest
import torch

from qp_kernels import results, timing
from qp_kernels.bench import __main__ as command
from qp_kernels.bench import case_run as mask_run
from qp_kernels.bench import index
from qp_kernels.bench.index import case_run, check, inputs, providers, rates, table, work
from qp_kernels.index_metrics import speed_up
from qp_kernels.pivot import Crossover, dense_topk
from qp_kernels.pivot.crossover import Point

CPU = torch.device("cpu")
SIZES = {"heads": 2, "dim": 8, "topk": 16, "budget": 32}


def small(kind="prefill", T=8, L=256, dtype="float32", **options):  # noqa: N803
    return index.Case(kind, T, L, dtype, **{**SIZES, **options})


def timed(us):
    return timing.Timing(us, us, us, (us,) * 3, "wall")


def fake(fn, inputs=(), *, repetitions, mode="auto", device=None):
    """Every call takes 7 us, after it was made once."""
    fn(*inputs[:1])
    return timed(7.0)


def run(cases, **options):
    return index.run(cases, device="cpu", repetitions=2, **{"say": None, "timer": fake, **options})


# Cases


def test_the_cases_are_those_of_the_aims():
    names = [case.name for case in index.CASES]
    assert len(set(names)) == len(names) and all(name.startswith("index-") for name in names)
    aims = {(c.name, p): index.target(c, p) for c in index.CASES for p in ("dense", "reuse", "refine", "qp_kernels")}
    assert aims["index-prefill-b1-t1024-l131072-bfloat16", "reuse"].us == 900
    assert aims["index-prefill-b1-t1024-l131072-float8_e4m3fn", "dense"].us == 2200
    assert aims["index-decode-b1-t4-l131072-bfloat16", "refine"].us == 32
    assert aims["index-decode-b16-t4-l131072-bfloat16", "reuse"].over_dense == 1.4
    assert aims["index-select-gauss-b1-t1024-l131072-float32", "qp_kernels"].us == 280
    assert aims["index-scan-b1-t1024-l131072-bfloat16", "qp_kernels"].tflops == 750
    assert aims["index-chunk-b1-t4096-l262144-bfloat16", "dense"].peak_bytes == 768 << 20
    chunk = index.Case("chunk", 4096, 8192)
    assert index.target(chunk, "refine_measured").over_dense == 1.0 and index.target(small(), "dense") == index.Target()
    assert [case.L for case in index.CASES if case.kind == "chunk"] == list(index.PAPER_REFINE)
    assert work.hisa(index.CASES[4]) == {"block": 128, "blocks": 64}
    assert work.misa(index.CASES[4]) == {"heads": 8, "block": 1024}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "sort"}, "kind must be one of select, scan"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"scores": "gauss"}, "scores must be one of gauss, long_tail for a selection alone"),
        ({"T": 6}, "T must be a multiple of g = 4 and at most L, got 6 and 256"),
        ({"T": 512}, "at most L, got 512 and 256"),
    ],
)
def test_cases_that_cannot_be(change, words):
    with pytest.raises(ValueError, match=words):
        run([small()._replace(**change)])


# Inputs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("batch", [1, 3])
def test_inputs_have_the_shapes_and_bounds_of_the_case(dtype, batch):
    case = small(dtype=dtype, batch=batch)
    for whole in (False, True):
        made = inputs.draw(case, "cpu", whole=whole)
        assert made.q.shape == (8 * batch, 2, 8) and made.k.shape == (256 * batch, 8) and made.w.shape == (8 * batch, 2)
        assert made.q.dtype is made.k.dtype is getattr(torch, dtype)
        assert (made.q_scale is None) == (dtype != "float8_e4m3fn")
        assert made.k.float().equal(inputs.draw(case, "cpu", whole=whole).k.float())
        rows = made.rows(slice(4, 8))
        assert rows.hi.tolist() == [253, 254, 255, 256] and rows.lo.tolist() == [0] * 4
        every = dense_topk(made.q, made.k, made.w, 16, **made.options)
        assert dense_topk(rows.q, rows.k, rows.w, 16, **rows.options).equal(every[4:8])
    scores = providers.scores_of(made)
    assert (4 * scores).equal((4 * scores).round()) and scores.abs().max() * 4 < 2**24


def test_quantised_float8_fills_the_range():
    values = torch.randn(5, 3, 16)
    found, scale = inputs.quantised(values)
    assert scale.shape == (5, 3) and (found.float().abs().amax(-1) == 448).all()
    torch.testing.assert_close(found.float() * scale[..., None], values, rtol=2**-4, atol=1e-2)


def test_long_tails_have_zeros_and_a_tail():
    case = small("select", T=64, L=8192, scores="long_tail")
    scores = inputs.draw_scores(case, "cpu")
    zeros = (scores == 0).double().mean(1)
    assert zeros[0] == pytest.approx(0.4, abs=0.03) and zeros[-1] > 0.99 and (scores >= 0).all()
    z = (scores - scores.mean()) / scores.std()
    assert (z**4).mean() > 100
    gauss = inputs.draw_scores(case._replace(scores="gauss"), "cpu")
    assert gauss.shape == (64, 8192) and abs(float(gauss.mean())) < 0.01


# Check


@pytest.mark.parametrize("rows", [4, 8, 24, 28, 64, 1024])
@pytest.mark.parametrize("group", [2, 4, 16])
def test_stretches_keep_whole_groups(rows, group):
    if rows % group:
        return
    found = check.stretches(rows, group)
    assert all(one.start % group == one.stop % group == 0 for one in found)
    assert found[0].start == 0 and found[-1].stop == rows
    assert all(a.stop <= b.start for a, b in zip(found, found[1:]))


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
@pytest.mark.parametrize("case", [small(T=64), small("decode", T=4, batch=16), small("chunk", T=64)])
def test_rows_alone_are_the_rows_of_all(case, dtype):
    for name, one in providers.selections(case._replace(dtype=dtype), 100).items():
        wrong, rows = check.wrong_selections(case._replace(dtype=dtype), one, CPU)
        assert (wrong, rows) == (0, 24), name


def test_wrong_rows_are_seen_and_end_the_run(monkeypatch):
    right = providers.selections

    def off_by_one(case, guard):
        return {"dense": lambda i, backend: right(case, guard)["dense"](i, backend) - int(backend == "auto")}

    monkeypatch.setattr(providers, "selections", off_by_one)
    with pytest.raises(mask_run.WrongResult, match="dense: 8 of 8 rows differ from the reference; nothing is timed"):
        run([small()])
    monkeypatch.setattr(providers, "selections", lambda case, guard: {"dense": lambda i, b: torch.zeros(3, 3)})
    with pytest.raises(ValueError, match=r"a selection must be \[8, 16\]"):
        run([small()])


# Work and floors


def test_work_by_counting():
    case = small(T=8, L=64)
    prefixes = range(57, 65)
    assert work.work(case, "dense").operations == 2 * 8 * 2 * sum(prefixes)
    assert work.work(case, "reuse").operations == 2 * 8 * 2 * (57 + 61)
    assert work.work(case, "refine").operations == 2 * 8 * 2 * (57 + 61 + 8 * 32)
    assert work.work(case, "refine_measured", 57).operations == 2 * 8 * 2 * (57 + 58 + 59 + 60 + 61 + 4 * 32)
    assert work.work(case, "refine_measured", 2**31 - 1) == work.work(case, "dense")
    assert work.work(case._replace(batch=3), "refine").operations == 3 * work.work(case, "refine").operations
    assert work.work(case, "dense").score_bytes == 4 * sum(prefixes)
    assert work.work(case, "misa_rerank").operations > work.work(case, "misa").operations
    assert work.work(small("scan"), "qp_kernels").bytes > 4 * 8 * 249
    assert work.work(small("select", scores="gauss"), "qp_kernels") == (0, 8 * 256 * 4, 0)


def test_floors_are_the_longer_of_products_and_bytes():
    found = rates.Rates(1000.0, 500.0, {"float32": 2.0})
    assert found.floor_us(work.Work(4_000_000, 1_000_000, 0), "float32") == 2.0
    assert found.floor_us(work.Work(4_000_000, 3_000_000, 0), "float32") == 3.0
    assert found.floor_us(work.Work(4_000_000, 3_000_000, 0), "float32", 2.5) == 2.5
    assert found.floor_us(work.Work(1, 1, 0), "bfloat16") is None
    assert found.scores_us(work.Work(0, 0, 1_000_000)) == pytest.approx(3.0)
    assert found.about() == {"read_gbps": 1000.0, "write_gbps": 500.0, "matmul_float32_tflops": 2.0}


def test_rates_of_this_machine():
    found = rates.measured(CPU, 2)
    assert found.read_gbps > 0 and found.write_gbps > 0 and found.tflops["float32"] > 0


# Records


def test_records_of_every_kind():
    records, about = run(index.SMALL_CASES)
    assert all(tuple(record) == index.FIELDS for record in records)
    by = {}
    for record in records:
        by.setdefault(record["kind"], []).append(record["provider"])
    assert by["prefill"] == ["dense", "reuse", "refine", "hisa", "misa", "misa_rerank"]
    assert by["decode"] == ["floor_read", "dense", "reuse", "refine"] and by["chunk"] == ["dense", "refine"]
    assert by["select"] == 2 * ["floor_read", "torch_topk"]
    assert all(r["checked_rows"] for r in records if r["provider"] != "floor_read")
    assert all(r["over_dense"] == 1 for r in records if r["kind"] in ("prefill", "decode") and r["operations"])
    assert about["guard_measured"] is None and about["r"] is not None and about["read_gbps"] > 0
    assert all(r["peak_bytes"] is None and r["mode"] == "wall" for r in records)


def test_a_scan_is_left_out_where_there_is_none_and_checked_where_there_is(monkeypatch):
    said = []
    monkeypatch.setattr(
        providers, "kernel", lambda module, name: (_ for _ in ()).throw(providers.Missing(f"no {name}"))
    )
    assert run([small("scan")], say=said.append)[0] == []
    assert any("index-scan-b1-t8-l256-float32 is left out: no scan" in line for line in said)

    def scan(q, k, w, **options):
        fields = {name: options[name] for name in ("q_scale", "k_scale")}
        found = providers.plain.score(q, k, w, *fields.values())
        found[0, -1] = 99.0  # beyond what row 0 may select
        return found

    monkeypatch.setattr(providers, "kernel", lambda module, name: scan)
    ((record,), _) = run([small("scan", dtype="float8_e4m3fn")])
    assert (record["wrong_rows"], record["checked_rows"], record["provider"]) == (0, 8, "qp_kernels")
    monkeypatch.setattr(providers, "kernel", lambda module, name: lambda *a, **o: scan(*a, **o) + 1)
    with pytest.raises(mask_run.WrongResult):
        run([small("scan")])


def test_kernels_that_are_not_there():
    with pytest.raises(providers.Missing, match="qp_kernels.pivot.nothing.at_all is not there"):
        providers.kernel("nothing", "at_all")
    with pytest.raises(providers.Missing, match="no_such_function"):
        providers.kernel("api", "no_such_function")


def test_a_call_that_no_graph_can_hold_is_timed_without(monkeypatch):
    monkeypatch.setattr(case_run, "modes", lambda case, device: ("graph", "wall"))
    said, modes = [], []

    def timer(fn, inputs=(), *, repetitions, mode="auto", device=None):
        modes.append(mode)
        if mode == "graph":
            raise ValueError("mode='graph': this call waits for the GPU")
        return timed(7.0)

    shared = case_run.Run(CPU, rates.Rates(1.0, 1.0, {}), 2, said.append, timer)
    records = index.run_case(small("decode", T=4), shared)
    assert {r["mode"] for r in records} == {"wall"} and "waits for the GPU" in said[0]
    assert records[-1]["floor_us"] is None and records[-1]["times_floor"] is None


def test_r_comes_back_from_made_up_times():
    def record(provider, case, over_dense):
        return {**dict.fromkeys(index.FIELDS), **work.flat(case), "provider": provider, "over_dense": over_dense}

    records = []
    for length in (32_768, 65_536, 262_144):
        case = index.Case("chunk", 4096, length)
        speed = speed_up(length - 2048, group=4, budget=4096, r=2.0)
        records += [record("dense", case, 1.0), record("refine", case, speed)]
    short = record("refine", index.Case("chunk", 4096, 8000), 0.1)  # partly dense: not of the model
    assert index.fitted_r([short, *records]) == pytest.approx(2.0)
    assert index.fitted_r([short]) is None and index.fitted_r([]) is None


def test_the_measured_guard_is_used_and_recorded():
    asked, said = [], []

    def crossover(**shape):
        asked.append(shape)
        points = (Point("level", 64, 0, 2.0, 4.0, False, True), Point("chunk", 128, 77, 3.0, 2.0, True, False))
        return Crossover(77, points)

    cases = [small("chunk", T=16, L=128), small("chunk", T=16)]
    records, about = run(cases, crossover=crossover, say=said.append)
    assert len(asked) == 1 and asked[0]["rows"] == 16 and asked[0]["dtype"] is torch.float32
    assert about["guard_measured"] == 77
    measured = [r for r in records if r["provider"] == "refine_measured"]
    assert [r["L"] for r in measured] == [128, 256] and all(r["guard"] == 77 for r in measured)
    points = [r for r in records if r["kind"].startswith("crossover")]
    assert [(r["kind"], r["L"], r["provider"], r["median_us"]) for r in points] == [
        ("crossover level", 64, "dense", 2000.0),
        ("crossover level", 64, "refine", 4000.0),
        ("crossover chunk", 128, "dense", 3000.0),
        ("crossover chunk", 128, "refine", 2000.0),
    ]
    assert all(tuple(record) == index.FIELDS for record in records)
    assert any("level 64, guard 0: dense 2.000 ms, Refine 4.000 ms, slower" in line for line in said)


def test_time_runs_out():
    said = []
    records, _ = run([small(), small(L=128)], seconds=-1.0, say=said.append)
    assert {r["L"] for r in records} == {256} and any("1 cases left out" in line for line in said)


def test_lines_tell_missed_aims():
    record = {**dict.fromkeys(index.FIELDS), "mode": "gpu", "provider": "refine", "version": "triton"}
    record |= {"median_us": 1300.0, "p20_us": 1200.0, "p80_us": 1400.0, "repetitions": 30, "late": 2}
    record |= {"times_floor": 1.5, "tflops": 700.0, "over_dense": 0.9, "paper_over_dense": 0.55, "peak_bytes": 3 << 20}
    record |= {"target_us": 1200, "target_over_dense": 1.0, "target_tflops": 750, "target_peak_bytes": 2 << 20}
    (line,) = table.lines_of([{**record, "wrong_rows": 1, "checked_rows": 24}])
    for words in ("1300.0 us", "1.50 x floor", "0.90 x dense (paper 0.55)", "3.0 MiB", "1 of 24 rows wrong", "in 2 of"):
        assert words in line
    assert line.count("*") == 4 and "* aim 1200 us" in line and "* aim 2 MiB" in line
    good = {**record, "target_us": 1300, "target_over_dense": 0.9, "target_tflops": None, "target_peak_bytes": None}
    assert table.missed(good) == []


# The command line


def test_end_to_end(tmp_path, capsys):
    line = ["--device", "cpu", "--what", "index", "--repetitions", "2", "--folder", str(tmp_path)]
    assert command.main(line) == 0
    read = results.read("bench_index", folder=tmp_path)
    assert read.command == "python -m qp_kernels.bench --what index --repetitions 2"
    assert {r["kind"] for r in read.records} == {"select", "prefill", "decode", "chunk"}
    assert read.about["backend"] == "torch" and read.about["matmul_float32_tflops"] > 0
    assert "[5/5] index-chunk-b1-t64-l1024-float32" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["bench_index.json"]


def test_both_write_a_file_each(tmp_path, capsys):
    line = ["--device", "cpu", "--cases", "*-gauss-b*", "--quick", "--providers", "qp_kernels"]
    line += ["--repetitions", "1", "--folder", str(tmp_path)]
    assert command.main(line) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench_index.json"]
    assert command.main(["--device", "cpu", "--record", "mine"]) == 2
    assert "--record names one results file: add --what" in capsys.readouterr().err


def test_wrong_selections_end_with_1_and_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "_wrong", lambda *args: (1, 8))
    line = ["--device", "cpu", "--what", "index", "--cases", "*prefill*", "--folder", str(tmp_path)]
    assert command.main(line) == 1
    assert "1 of 8 rows differ from the reference" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_quick_leaves_cases_out():
    options = command.parser().parse_args(["--what", "index", "--quick"])
    names = [case.name for case in command._cases(options, torch.device("cuda"))["index"]]
    assert 0 < len(names) < len(index.CASES) and "index-decode-b1-t4-l131072-bfloat16" in names
    assert not any("float8" in name for name in names)


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu():
    said = []
    records, about = index.run([index.CASES[0], index.Case("prefill", 64, 8192)], repetitions=3, say=said.append)
    assert about["matmul_bfloat16_tflops"] > 0 and records
    assert all(r["peak_bytes"] >= 0 for r in records if r["provider"] != "floor_read")
