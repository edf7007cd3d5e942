"""The bench: its cases and rows, its records, who runs, and what stops it."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from qp_kernels import backend, bench
from qp_kernels.bench import case_run, floors, peers, rows, table
from qp_kernels.bench.providers import Call, Provider
from qp_kernels.qrita import top_k_top_p

INF = math.inf
SMALL = bench.Case("gauss", 3, 512, 20, 0.9)


# Cases and rows


def test_the_cases_are_those_of_the_aims():
    assert len({case.name for case in bench.CASES}) == len(bench.CASES)
    aims = {(case.name, mode): bench.target(case, mode) for case in bench.CASES for mode in ("gpu", "graph", "wall")}
    assert aims["mask-live-b1024-v262144-k50-p0.9-float32", "gpu"] == (1.2, None)
    assert aims["mask-gauss-b1-v128256-k50-p0.9-float32", "graph"] == (None, 14)
    assert aims["mask-gauss-b64-v128256-k50-p0.9-float32", "wall"] == (None, 60)
    assert aims["select-gauss-b1024-v128256-k50-p0.9-float32", "gpu"] == (1.5, None)
    assert bench.target(SMALL, "gpu") == (None, None)


def test_floors_bytes_and_modes_of_a_case():
    big = bench.CASES[0]
    half = big._replace(dtype="bfloat16")
    assert big.floor == "floor_read_write" and big.bytes_moved == 2 * 1024 * 128_256 * 4
    assert half.bytes_moved * 2 == big.bytes_moved
    listed = big._replace(operation="select")
    assert listed.floor == "floor_read" and listed.bytes_moved * 2 == big.bytes_moved
    assert [bench.modes(big._replace(batch=b), "cuda") for b in (1, 64, 65, 256, 257)] == [
        ("graph", "wall"),
        ("graph", "wall"),
        ("graph",),
        ("graph",),
        ("gpu",),
    ]
    assert bench.modes(big, "cpu") == ("wall",)


def test_rows_are_distinct_and_the_same_every_time():
    made = bench.make(SMALL, "cpu")
    assert made.equal(bench.make(SMALL, "cpu")) and made.shape == (12, 512)
    assert len(made.unique(dim=0)) == 12 and len(rows.batches(made, SMALL)) == 4
    assert bench.make(SMALL._replace(dtype="bfloat16"), "cpu").dtype is torch.bfloat16


def test_rows_that_shall_miss_miss_or_say_so():
    case = bench.Case("miss", 2, 8192, 50, None)
    assert len(bench.make(case, "cpu")) == 8
    assert len(bench.make(bench.Case("lie", 2, 128_256, 50, None), "cpu")) == 8
    with pytest.raises(ValueError, match="8 of 8 rows hit, and all should miss"):
        bench.make(case._replace(k=3000), "cpu")


def test_live_rows_are_cut_and_repeated():
    live = torch.randn(5, 600)
    case = SMALL._replace(rows="live", batch=4)
    assert bench.make(case, "cpu", live).equal(live[:4, :512])
    assert bench.make(case._replace(batch=7), "cpu", live).equal(live[[0, 1, 2, 3, 4, 0, 1], :512])
    with pytest.raises(ValueError, match="needs rows of a model"):
        bench.make(case, "cpu")
    with pytest.raises(ValueError, match=r"at least 512 logits, got \[5, 100\]"):
        bench.make(case, "cpu", live[:, :100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "sort"}, "operation must be one of mask, select, sample, got 'sort'"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"k": None, "p": None}, "needs k or p"),
        ({"batch": 0}, "batch and vocab"),
        ({"rows": "zipf"}, "rows must be gauss, live, miss or lie to be made, got 'zipf'"),
    ],
)
def test_cases_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        bench.run_case(SMALL._replace(**change))
    with pytest.raises(ValueError, match="needs rows"):
        bench.run_case(SMALL, torch.randn(2, 512))
    with pytest.raises(ValueError, match="needs float32 rows"):
        bench.run_case(SMALL, torch.randn(3, 512, dtype=torch.float64))


# Records


def of(records):
    return {record["provider"]: record for record in records}


@pytest.mark.parametrize("operation", ["mask", "select", "sample"])
def test_records_have_exactly_the_fields(operation):
    case, ticks = SMALL._replace(operation=operation), []
    records = bench.run_case(case, repetitions=2, modes=("wall",), progress=lambda *at: ticks.append(at))
    assert all(tuple(record) == bench.FIELDS for record in records)
    found = of(records)
    floor, ours = found[case.floor], found["qp_kernels"]
    assert (floor["times_floor"], floor["correct"], floor["wrong_rows"]) == (None, True, 0)
    assert ours["times_floor"] == ours["median_us"] / floor["median_us"] and ours["correct"]
    assert (ours["case"], ours["mode"], ours["repetitions"], ours["p"]) == (case.name, "wall", 2, 0.9)
    assert ours["gbps"] == pytest.approx(case.bytes_moved / (ours["median_us"] * 1e-6) / 1e9)
    assert ours["p20_us"] <= ours["median_us"] <= ours["p80_us"]
    assert [done for done, _ in ticks] == list(range(1, len(ticks) + 1)) and ticks[-1][0] == ticks[-1][1]


def test_rows_of_anybody_can_be_named():
    records = bench.run_case(SMALL._replace(rows="mine"), torch.randn(3, 512, device="cpu"), repetitions=1)
    assert of(records)["qp_kernels"]["rows"] == "mine"


def test_a_wrong_function_is_timed_and_told_so():
    own = {"by_threshold": lambda logits, k, p: logits.masked_fill(logits < 1, -INF)}
    records = bench.run([SMALL], own=own, only="qp_kernels", repetitions=2, device="cpu", say=None)
    found = of(records)
    assert found["qp_kernels"]["correct"] and not found["by_threshold"]["correct"]
    assert found["by_threshold"]["wrong_rows"] == 12 and found["by_threshold"]["median_us"] > 0
    assert "!" in table.table(records)


def test_functions_in_place_get_fresh_rows_and_bool_masks_count():
    def in_place(logits, k, p):
        logits.copy_(top_k_top_p(logits.clone(), k, p))

    own = {"in_place": in_place, "kept": lambda logits, k, p: top_k_top_p(logits, k, p) > -INF}
    found = of(bench.run([SMALL], own=own, only="", repetitions=3, device="cpu", say=None))
    assert [found[name]["in_place"] for name in own] == [True, False]
    assert all(found[name]["correct"] for name in own)
    assert set(found) == {"floor_read_write", *own}


def test_wrong_kernels_of_ours_stop_before_anything_is_timed(monkeypatch):
    monkeypatch.setattr(case_run, "measure", lambda *args, **kwargs: pytest.fail("timed"))
    wrong = Provider("qp_kernels", "0", lambda case, device: Call(lambda x: x), must=True)
    with pytest.raises(bench.WrongResult, match="12 of 12 rows break the contract"):
        bench.run_case(SMALL, bench.make(SMALL, "cpu"), {"qp_kernels": wrong})


def test_others_may_fail_and_are_left_out_aloud():
    def broken(x):
        raise RuntimeError("no such instruction\nand more")

    said = []
    others = {"other": Provider("other", "0", lambda case, device: Call(broken))}
    records = bench.run_case(SMALL, bench.make(SMALL, "cpu"), others, repetitions=1, say=said.append)
    assert [r["provider"] for r in records] == ["floor_read_write"] and said == ["  without other: no such instruction"]
    mine = bench.providers("cpu", own={"mine": lambda logits, k, p: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        bench.run_case(SMALL, bench.make(SMALL, "cpu"), mine, repetitions=1)
    with pytest.raises(ValueError, match="mine returned nothing and changed nothing"):
        bench.run([SMALL], own={"mine": lambda logits, k, p: None}, only="", device="cpu", say=None)


def test_progress_may_end_a_case():
    def cancel(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run_case(SMALL, progress=cancel)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_floors_move_what_they_say(device, dtype):
    from qp_kernels.bench.floor_kernels import copy_kernel, read_kernel

    batch = torch.randn(3, 1500, device=device).to(dtype)
    target, largest = torch.zeros_like(batch), torch.full((3,), torch.nan, device=device)
    floors._launch(copy_kernel, batch, target, 2048, 4)(batch)
    floors._launch(read_kernel, batch, largest, 2048, 4)(batch)
    assert target.equal(batch) and largest.max() == batch.max().float()


def test_the_fastest_way_is_the_floor(monkeypatch):
    times = {"slow": 3.0, "fast": 1.0, "middle": 2.0}
    monkeypatch.setitem(floors.WAYS, "floor_read", lambda batch: iter((name, name) for name in times))
    found = floors.fastest("floor_read", torch.ones(1, 1), lambda way: SimpleNamespace(median_us=times[way]))
    assert found[0] == "fast" and floors.number("floor_read", torch.device("cpu")) == 3


# Who runs


def test_providers_of_a_cpu_and_why_others_are_missing():
    found = bench.providers("cpu")
    assert list(found)[0] == "qp_kernels" and {"torch_sort", "torch_topk", "transformers_rule"} <= set(found)
    assert all(provider.version for provider in found.values())
    assert bench.missing("cpu") == dict.fromkeys(("vllm", "flashinfer"), "it needs a CUDA device")
    assert set(bench.providers("cpu", {"mine": print}, only="torch*,vllm")) == {"torch_sort", "torch_topk", "mine"}
    assert set(bench.missing("cpu", only="v*")) == {"vllm"}
    for name in ("qp_kernels", "vllm", "floor_read"):
        with pytest.raises(ValueError, match="a name that is not taken"):
            bench.providers("cpu", own={name: print})
    with pytest.raises(ValueError, match="and a function"):
        bench.providers("cpu", own={"mine": 3})


def test_without_package_and_files_a_peer_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_installed", lambda package, module: (None, ""))
    cuda = torch.device("cuda")
    with pytest.raises(peers.Unavailable, match="vllm is not installed, and there is no topk_topp_triton.py"):
        peers.vllm(cuda, tmp_path)
    with pytest.raises(peers.Unavailable, match="flashinfer is not installed"):
        peers.flashinfer(cuda, tmp_path)
    with pytest.raises(peers.Unavailable, match="transformers is not installed"):
        peers.transformers_warpers()
    (tmp_path / "VERSIONS").write_text("vllm 1.2\n\n")
    assert peers._version_in(tmp_path, "vllm") == "1.2" and peers._version_in(tmp_path, "other") == "unknown"


@pytest.mark.skipif(not backend.has_triton(), reason="triton is not installed")
def test_a_file_of_vllm_finds_what_it_imports_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_installed", lambda package, module: (None, ""))
    (tmp_path / "topk_topp_triton.py").write_text(
        "from vllm.triton_utils import tl, triton\n"
        "from vllm.utils.math_utils import next_power_of_2\n"
        "_TRITON_BUFFER_CACHE = {0: 1}\n"
        "def apply_top_k_top_p_triton(logits, k, p):\n    return next_power_of_2(k)\n"
    )
    (tmp_path / "VERSIONS").write_text("vllm 0.1\n")
    before = {name for name in sys.modules if name.startswith("vllm")}
    found = peers.vllm(torch.device("cuda"), tmp_path)
    assert found.version == "0.1" and found.apply(None, 5, None) == 8
    found.forget()
    assert found.apply.__globals__["_TRITON_BUFFER_CACHE"] == {}
    assert {name for name in sys.modules if name.startswith("vllm")} == before


def test_an_installed_package_that_fails_says_how(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('another libtorch')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(peers.Unavailable, match="broken_peer is installed and cannot be imported: another libtorch"):
        peers._installed("broken_peer", "broken_peer")


def test_torch_and_transformers_are_right_on_rows_without_ties():
    found = of(bench.run([SMALL, SMALL._replace(k=None)], device="cpu", repetitions=1, say=None))
    assert all(record["correct"] for record in found.values()), found
    listed = of(bench.run([SMALL._replace(operation="select")], device="cpu", repetitions=1, say=None))
    assert listed["torch_topk"]["correct"] and set(listed) == {"floor_read", "qp_kernels", "torch_topk"}


def test_16_bit_rows_aim_at_a_part_of_the_float32_time():
    cases = [SMALL, SMALL._replace(dtype="bfloat16")]
    records = bench.run(cases, only="qp_kernels", device="cpu", repetitions=1, say=None)
    full, half = (record for record in records if record["provider"] == "qp_kernels")
    assert half["target_us"] == 0.6 * full["median_us"] and full["target_us"] is None


def test_a_run_without_cases():
    said = []
    with pytest.raises(ValueError, match="no case is left"):
        bench.run([SMALL._replace(rows="live")], device="cpu", say=said.append)
    assert "needs rows of a model: mask-live-b3" in said[0]
    with pytest.raises(ValueError, match="no case is left"):
        bench.run([SMALL._replace(rows="live")], device="cpu", say=said.append, live=torch.randn(4, 100))
    assert "only 100 columns" in said[1]


@pytest.mark.gpu
@pytest.mark.parametrize("operation", ["mask", "select", "sample"])
@pytest.mark.parametrize("batch", [2, 300])
def test_on_a_gpu(batch, operation):
    case = bench.Case("gauss", batch, 8192, 50, 0.9, operation=operation)
    said = []
    records = bench.run_case(case, repetitions=5, say=said.append)
    assert {record["mode"] for record in records} == set(bench.modes(case, "cuda"))
    ours = [record for record in records if record["provider"] == "qp_kernels"]
    assert len(ours) == len(bench.modes(case, "cuda")) and all(r["correct"] and not r["late"] for r in ours)
    assert all(0 <= record["peak_bytes"] <= 64 << 20 for record in ours)
    floors = [record for record in records if record["provider"] == case.floor]
    assert all(0 < record["gbps"] < 50_000 for record in floors)


@pytest.mark.gpu
def test_memory_that_a_function_keeps_or_needs_is_counted():
    kept = {}

    def hungry(logits, k, p):
        kept.setdefault("buffer", torch.empty(8 << 20, dtype=torch.uint8, device=logits.device))
        spare = torch.empty(4 << 20, dtype=torch.uint8, device=logits.device)
        found = top_k_top_p(logits, k, p)
        del spare  # held until the result is there
        return found

    provider = Provider("hungry", "0", lambda case, device: Call(lambda x: hungry(x, 50, None)), kept.clear)
    case = bench.Case("gauss", 4, 8192, 50, None)
    _, record = bench.run_case(case, None, {"hungry": provider}, repetitions=2, modes=("gpu",))
    assert 12 << 20 <= record["peak_bytes"] < 40 << 20
