"""The fuzzer runs, counts and records; and it finds faults of the kinds it is there for."""

import re
import subprocess
import sys
from pathlib import Path

import fuzz
import fuzz_cases
import fuzz_rows
import pytest
import torch

from qp_kernels import results
from qp_kernels.qrita import sample, select, top_k_top_p, truncation

CPU = ["--device", "cpu", "--backend", "torch", "--max-vocab", "600"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One fault is enough, and one thread: beside a busy process, a split step waits for its slowest part."""
    monkeypatch.setattr(fuzz, "ENOUGH", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(*arguments):
    return fuzz.main([*CPU, *map(str, arguments)])


def test_a_small_run_finds_no_difference(capsys):
    assert run("--rows", 10_000, "--seed", 11, "--seconds", 60) == 0
    *table, line = capsys.readouterr().out.splitlines()
    assert line.endswith("no difference") and "seed 11, torch on cpu" in line
    total = int(table[-1].split()[2].replace(",", ""))
    assert table[-1].startswith("all") and total >= 10_000


@pytest.mark.parametrize("family", fuzz_rows.FAMILIES)
@pytest.mark.parametrize("dtype", fuzz_cases.DTYPES.values())
def test_families_have_their_shape_and_dtype_at_any_size(family, dtype):
    rng = torch.Generator().manual_seed(0)
    for batch, vocab in ((1, 1), (3, 7), (0, 5), (2, 8193), (2, 8400)):
        rows = family(rng, batch, vocab, dtype)
        assert rows.shape == (batch, vocab) and rows.dtype == dtype


def test_the_dominating_logit_lies_outside_of_the_sample():
    vocab = 20_000
    rows = fuzz_rows.one_dominates(torch.Generator().manual_seed(0), 50, vocab, torch.float32)
    found = truncation(rows, 1)
    assert (found.mean < 30).all() and (rows.amax(-1) == 60).all() and (found.mean.abs() < 0.5).all()


def test_a_case_is_the_same_again_and_all_choices_come_up():
    cases = [fuzz_cases.draw_case(1, i, "cpu", "torch", 262_147) for i in range(2000)]
    assert cases[7] == fuzz_cases.draw_case(1, 7, "cpu", "torch", 262_147)
    one, two = fuzz_cases.Batch(cases[3]), fuzz_cases.Batch(cases[3])
    assert torch.equal(one.logits.nan_to_num(), two.logits.nan_to_num())
    for field, wanted in (("family", 18), ("dtype", 3), ("layout", 7), ("out", 8), ("k", 3), ("p", 3), ("ties", 2)):
        assert len({getattr(case, field) for case in cases}) == wanted, field
    assert {0, 1, 2, 131, 133, 1025} <= {case.batch for case in cases}
    assert {1, 511, 512, 513, 8191, 8192, 8193, 262_144, 262_147} <= {case.vocab for case in cases}
    assert max(case.batch * case.vocab for case in cases) <= max(fuzz_cases.ENTRIES["cpu"], 262_147)


def last_tie(logits, k=None, p=None, **options):
    """Ties by the highest index."""
    return top_k_top_p(logits.flip(-1), k, p, **options | {"out": None}).flip(-1)


def loose(logits, k=None, p=None, **options):
    """A nucleus of a little more than p."""
    if isinstance(p, torch.Tensor):
        p = torch.where(p < 1, (p.double() + 3e-6).clamp(0, 1), p.double())
    return top_k_top_p(logits, k, p, **options)


def keeps_nan(logits, k=None, p=None, **options):
    result = top_k_top_p(logits, k, p, **options)
    return torch.where(logits.isnan(), logits, result)


def writes_beside(logits, k=None, p=None, *, out=None, **options):
    result = top_k_top_p(logits, k, p, out=out, **options)
    if out is not None and len(out) > 1 and out.stride(1) == 1 < out.shape[1] < out.stride(0):
        out.as_strided((1,), (1,), out.storage_offset() + out.shape[1]).zero_()
    return result


def changes_the_input(logits, k=None, p=None, *, out=None, **options):
    result = top_k_top_p(logits, k, p, out=out, **options)
    if logits.numel():
        logits.view(-1)[:1].neg_() if logits.is_contiguous() else None
    return result


def leaves_poison(logits, k=None, p=None, *, out=None, **options):
    result = top_k_top_p(logits, k, p, out=out, **options)
    if len(result) > 130:
        result[130] = float("nan")
    return result


@pytest.mark.parametrize(
    ("wrong", "family", "words"),
    [
        (last_tie, "few_values", "prefix"),
        (loose, "wide_nuclei", "more than p needs"),
        (keeps_nan, "nans", "eligible"),
        (writes_beside, "gaussian", "not its to write"),
        (changes_the_input, "gaussian", "not its to write"),
        (leaves_poison, "zipf", "changed the bits|eligible"),
    ],
)
def test_finds_a_broken_mask_and_makes_it_again(monkeypatch, capsys, wrong, family, words):
    monkeypatch.setattr(fuzz_cases, "top_k_top_p", wrong)
    assert run("--rows", 100_000, "--seed", 5, "--family", family) == 1
    said = capsys.readouterr().out
    assert re.search(f"DIFFERS: mask .*({words})", said)
    again = re.search(r"--replay (\d+:\d+)", said)[1]
    assert run("--replay", again, "--family", family) == 1
    monkeypatch.setattr(fuzz_cases, "top_k_top_p", top_k_top_p)
    assert run("--replay", again, "--family", family) == 0


def test_the_row_alone_is_made_short(monkeypatch, capsys):
    monkeypatch.setattr(fuzz_cases, "top_k_top_p", last_tie)
    assert run("--rows", 100_000, "--seed", 5, "--family", "constant") == 1
    lengths = [int(v) for v in re.findall(r"shortened to V = (\d+)", capsys.readouterr().out)]
    assert lengths and min(lengths) == 2


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (
            "select",
            lambda *args, **options: select(*args, **options)._replace(count=select(*args, **options).count + 1),
        ),
        ("sample", lambda *args, **options: (sample(*args, **options) - 1).clamp(min=0)),
        (
            "truncation",
            lambda *args, **options: truncation(*args, **options)._replace(hit=~truncation(*args, **options).hit),
        ),
    ],
)
def test_finds_the_other_functions_broken(monkeypatch, capsys, name, wrong):
    monkeypatch.setattr(fuzz_cases, name, wrong)
    assert run("--rows", 100_000, "--seed", 5) == 1
    assert f"DIFFERS: {name}" in capsys.readouterr().out


def test_finds_rows_that_depend_on_their_batch(monkeypatch, capsys):
    def shaky(logits, k=None, p=None, **options):
        if logits.stride(-1) != 1 and isinstance(p, torch.Tensor):
            p = torch.where((p > 1e-3) & (p < 1), p.double() - 5e-7, p.double())  # within the tolerance
        return top_k_top_p(logits, k, p, **options)

    monkeypatch.setattr(fuzz_cases, "top_k_top_p", shaky)
    monkeypatch.setattr(fuzz, "ENOUGH", 6)
    assert run("--rows", 200_000, "--seed", 5, "--family", "gaussian") == 1
    assert "DIFFERS: again depends on the batch" in capsys.readouterr().out


def test_records_what_was_run(tmp_path, capsys):
    assert run("--rows", 3000, "--seed", 2, "--record", "--folder", tmp_path) == 0
    read = results.read("fuzz", folder=tmp_path)
    assert read.about["rows"] == sum(record["rows"] for record in read.records) >= 3000
    assert read.about["rows_that_differ"] == 0 and read.about["backend"] == "torch"
    assert {"family", "dtype", "rows_select"} <= set(read.records[0])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("--device cuda --backend triton", "make fuzz-gpu ARGS='--rows 2000000 --seed 1 --processes 6 --record'"),
        (
            "--device cuda --rows 9 --seed 4 --seconds 430",
            "make fuzz-gpu ARGS='--rows 9 --seed 4 --seconds 430 --processes 6 --record'",
        ),
        (
            "--device cuda --backend torch --max-vocab 77 --max-entries 5000 --family nans",
            "make fuzz-gpu ARGS='--rows 2000000 --seed 1 --processes 6 --max-vocab 77 --max-entries 5000 --family nans"
            " --device cuda --backend torch --record'",
        ),
        (
            "--device cpu --seconds 0.5",
            "python tests/qp_kernels/fuzz.py --rows 2000000 --seed 1 --seconds 0.5 --processes 6 --device cpu"
            " --backend auto --record",
        ),
    ],
)
def test_the_command_says_which_batches_were_taken(arguments, command):
    options = fuzz.parser().parse_args([*arguments.split(), "--processes", "6"])
    options.max_vocab = options.max_vocab or fuzz.MAX_VOCAB[options.device]
    assert fuzz.command_of(options) == command


def test_a_recorded_run_is_made_again_by_its_command(tmp_path, capsys):
    assert run("--rows", 500, "--seed", 2, "--seconds", 60, "--record", "--folder", tmp_path) == 0
    first = results.read("fuzz", folder=tmp_path)
    assert "--seconds 60 --processes 1 --max-vocab 600" in first.command
    again = first.command.removeprefix("python tests/qp_kernels/fuzz.py ").split()
    assert fuzz.main([*again, "--folder", str(tmp_path)]) == 0
    assert results.read("fuzz", folder=tmp_path).records == first.records


def test_the_script_for_the_sanitizer_runs():
    """In a process of its own: it switches torch's allocator."""
    script = Path(fuzz.__file__).with_name("sanitize.py")
    command = [sys.executable, str(script), "--device", "cpu", "--backend", "torch", "--most", "513"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("20 batches through the four functions: no difference\n")
    assert "14 calls of index selection and sparse attention\n" in done.stdout


def test_a_time_limit_ends_the_run(capsys):
    assert run("--rows", 10**9, "--seconds", 0.2) == 0
    assert "no difference" in capsys.readouterr().out


def test_processes_share_the_batches(tmp_path):
    """The batches of two processes are those of one, and are counted together."""
    arguments = [*CPU, "--seed", "5", "--rows", "600", "--max-entries", "2000", "--record", "--folder"]
    command = [sys.executable, fuzz.__file__, *arguments, tmp_path, "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("no difference") == 1
    assert results.read("fuzz", folder=tmp_path).about["rows"] >= 600
