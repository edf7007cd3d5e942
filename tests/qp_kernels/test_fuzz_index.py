"""The fuzzer of index selection draws, counts and records; and it finds faults of the kinds it is there for."""

import re

import fuzz_index
import fuzz_index_cases
import pytest
import torch

from qp_kernels import results

CPU = ["--device", "cpu", "--backend", "torch"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One fault is enough, and one thread."""
    monkeypatch.setattr(fuzz_index, "ENOUGH", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(*arguments):
    return fuzz_index.main([*CPU, *map(str, arguments)])


def test_a_small_run_finds_no_difference(capsys):
    assert run("--rows", 1_000, "--seed", 3) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("seed 3, torch on cpu: no difference")


def test_a_case_is_the_same_again_and_all_choices_come_up():
    draw = fuzz_index_cases.draw_case
    cases = [draw(1, i, "cpu", fuzz_index_cases.LIMITS["cuda"]) for i in range(6000)]
    assert cases[7] == draw(1, 7, "cpu", fuzz_index_cases.LIMITS["cuda"])
    one, two = (fuzz_index_cases.Problem(draw(1, 7, "cpu")) for _ in range(2))
    for name in "qkw":
        assert torch.equal(getattr(one, name).float().nan_to_num(), getattr(two, name).float().nan_to_num())
    for field, wanted in (("family", 9), ("dtype", 4), ("bounds", 5), ("scales", 4)):
        assert len({getattr(case, field) for case in cases}) == wanted, field
    assert {(case.heads, case.width) for case in cases} == set(fuzz_index_cases.SHAPES)
    assert {call for case in cases for call in case.settings} == set(fuzz_index_cases.CALLS)
    assert max(case.keys for case in cases) > 39_000 and max(case.rows for case in cases) > 500
    # Short rows, and limits on both sides of what registers hold; more than there is, and one.
    assert {1, 2, 2048} <= {case.topk for case in cases} and any(case.topk > case.keys for case in cases)
    settings = [(case, values) for case in cases for values in case.settings.values() if "group" in values]
    assert {values["proxy"] for _, values in settings} == {"mean", "first", "last"}
    assert any(values["group"] > case.rows for case, values in settings)
    assert any(values["window"] > case.keys for case, values in settings)


def test_problems_in_a_row_are_alike():
    """Kernels are compiled for their heads, widths, types and remainders of sizes."""
    for lot in range(40):
        first, *others = (fuzz_index_cases.draw_case(4, 16 * lot + i, "cpu") for i in range(fuzz_index_cases.LIKE))
        for case in others:
            for field in ("heads", "width", "dtype", "bounds", "scales"):
                assert getattr(case, field) == getattr(first, field)


def test_values_make_every_selection_unique():
    """What rises or falls does so in steps of one; sums of groups and heads stay exact in float32."""
    for index in range(900):
        case = fuzz_index_cases.draw_case(2, index, "cpu")
        if case.family not in ("rising", "falling"):
            continue
        problem = fuzz_index_cases.Problem(case)
        totals = torch.einsum("thd,sd,th->ts", problem.q.double(), problem.k.double(), problem.w.double())
        steps = totals.diff(dim=1) * (1 if case.family == "rising" else -1)
        digits = min(4, case.heads, case.width)
        assert 16**digits < case.keys or (steps == 1).all()
        assert 16 * 16 * 40_000 < 2**24


def last_tie(q, k, w, topk, **options):
    options = {name: value for name, value in options.items() if name not in ("lo", "hi")}
    found = fuzz_index_cases.pivot.dense_topk(
        q, k.flip(0), w, topk, **{**options, "hi": torch.full((len(q),), len(k)), "k_scale": None}
    )
    return torch.where(found < 0, found, len(k) - 1 - found).sort(dim=1, descending=False).values


def forgets_the_bounds(q, k, w, topk, **options):
    rest = {name: value for name, value in options.items() if name not in ("lo", "hi")}
    return fuzz_index_cases.pivot.dense_topk(q, k, w, topk, **rest, hi=torch.full((len(q),), len(k)))


def forgets_the_window(q, k, w, topk, *, window, budget, **options):
    return fuzz_index_cases.pivot.pivot_topk(q, k, w, topk, budget=budget, **options)


def forgets_a_row(q, k, w, topk, **options):
    found = fuzz_index_cases.pivot.hisa_topk(q, k, w, topk, **options)
    found[-1] = -1
    return found


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("dense", last_tie),
        ("dense", forgets_the_bounds),
        ("refine_decode", forgets_the_window),
        ("hisa", forgets_a_row),
    ],
)
def test_finds_a_broken_selection_and_makes_it_again(monkeypatch, capsys, call, wrong):
    monkeypatch.setitem(fuzz_index_cases.CALLED, call, wrong)
    assert run("--rows", 100_000, "--seed", 5, "--seconds", 60) == 1
    said = capsys.readouterr().out
    assert f"DIFFERS: {call} " in said
    again = re.search(r"--replay (\d+:\d+)", said)[1]
    assert run("--replay", again) == 1
    monkeypatch.setitem(fuzz_index_cases.CALLED, call, fuzz_index_cases.REFERENCE[call])
    assert run("--replay", again) == 0


def test_records_what_was_run(tmp_path):
    assert run("--rows", 300, "--seed", 2, "--record", "--folder", tmp_path) == 0
    read = results.read("fuzz_index", folder=tmp_path)
    assert read.about["rows"] == sum(record["rows"] for record in read.records) >= 300
    assert read.about["rows_that_differ"] == 0 and read.about["backend"] == "torch"


def test_processes_share_the_problems(tmp_path):
    assert run("--rows", 200, "--processes", 2, "--record", "--folder", tmp_path) == 0
    assert results.read("fuzz_index", folder=tmp_path).about["rows"] >= 200


def test_a_time_limit_ends_the_run(capsys):
    assert run("--rows", 10**9, "--seconds", 0.2) == 0
    assert "no difference" in capsys.readouterr().out
