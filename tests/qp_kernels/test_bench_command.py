"""The command line of the bench, end to end on a CPU: what it prints, reads and writes, exit status, `make bench`."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import commands
import environment
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from qp_kernels import bench, results
from qp_kernels.bench import __main__ as command
from qp_kernels.bench import case_run, rows

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--device", "cpu", "--cases", "mask-gauss-b4-v8192-k50-float32", "--providers", "qp_kernels"]


def run(*arguments, **options):
    return command.main([*FEW, "--repetitions", "2", *map(str, arguments)], **options)


def test_end_to_end(tmp_path):
    line = [sys.executable, "-m", "qp_kernels.bench", *FEW, "--quick", "--folder", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "[1/1] mask-gauss-b4-v8192-k50-float32" in done.stdout and "x floor" in done.stdout
    read = results.read("bench", folder=tmp_path)
    assert [record["provider"] for record in read.records] == ["floor_read_write", "qp_kernels"]
    assert all(tuple(record) == bench.FIELDS for record in read.records)
    assert read.command.startswith("python -m qp_kernels.bench --cases") and read.about["backend"] == "torch"
    assert read.records[0]["repetitions"] == command.QUICK_REPETITIONS


def test_without_a_gpu_one_line_says_so(tmp_path, capsys):
    assert run("--folder", tmp_path, "--record", "mine") == 0
    said = capsys.readouterr().out
    assert said.startswith("no CUDA device") or torch.cuda.is_available()
    assert any(line.startswith("mask-gauss-b4-v8192-k50-float32  wall") for line in said.splitlines()[-6:])
    assert json.loads((tmp_path / "mine.json").read_text())["name"] == "mine"


def test_a_function_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "def everything(logits, k, p):\n    return logits.clone()\n\n\nnumber = 3\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert run("--own", "mine:everything", "--folder", ".") == 0
    assert "16 wrong rows" in capsys.readouterr().out
    (record,) = [r for r in results.read("bench", folder=tmp_path).records if r["provider"] == "everything"]
    assert not record["correct"] and record["wrong_rows"] == 16
    for wrong, words in {
        "mine": "needs MODULE:FUNCTION",
        "mine:nothing": "has no attribute 'nothing'",
        "no_such_module:f": "No module named",
        "mine:number": "and a function",
    }.items():
        assert run("--own", wrong) == 2 and words in capsys.readouterr().err


def test_wrong_kernels_end_with_1_and_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(case_run, "wrong_rows", lambda *args: 3)
    assert run("--folder", tmp_path) == 1
    assert "rows break the contract; nothing is timed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_file(tmp_path, capsys):
    live = torch.randn(6, 9000) * 3
    np.save(tmp_path / "rows.npy", live.numpy())
    live_case = ["--cases", "mask-live*", "--folder", tmp_path]
    assert run(*live_case, "--logits", tmp_path / "rows.npy") == 0
    read = results.read("bench", folder=tmp_path)
    assert read.records[0]["rows"] == "live" and read.about["live_rows_distinct"] == 6
    assert "rows.npy" in read.command and str(tmp_path) not in read.command
    assert run(*live_case) == 2 and "no case is left" in capsys.readouterr().err
    assert run(*live_case, "--logits", tmp_path / "absent.npy") == 2
    assert run(*live_case, live=live, about={"model": "mine"}, program="python other.py") == 0
    read = results.read("bench", folder=tmp_path)
    assert read.about["model"] == "mine" and read.command.startswith("python other.py --cases")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_safetensors_are_read_to_the_bit(tmp_path, dtype):
    kept = torch.randn(3, 50).to(dtype)
    save_file({"a": torch.arange(7), "logits": kept, "other": kept * 2}, tmp_path / "rows.safetensors", {"from": "x"})
    read = rows.read(tmp_path / "rows.safetensors")
    assert read.dtype is dtype and read.equal(kept)


def test_files_that_hold_no_logits(tmp_path):
    np.savez(tmp_path / "rows.npz", a=np.zeros(3), b=np.ones((2, 5)))
    assert rows.read(tmp_path / "rows.npz").equal(torch.ones(2, 5))
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "whole.npy", np.zeros((2, 3), dtype=np.int64))
    (tmp_path / "rows.pt").write_bytes(b"")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    for name, words in {
        "flat.npy": "holds no array",
        "whole.npy": "must be float16, float32 or float64, whole.npy has int64",
        "rows.pt": "read from .npy, .npz or .safetensors",
        "broken.safetensors": "is no safetensors file",
    }.items():
        with pytest.raises(ValueError, match=words):
            rows.read(tmp_path / name)


def test_names_of_cases(capsys):
    small = [case.name for case in bench.SMALL_CASES], [case.name for case in bench.index.SMALL_CASES]
    for what, listed in {"qrita": small[0], "index": small[1], "all": small[0] + small[1]}.items():
        assert command.main(["--device", "cpu", "--what", what, "--list"]) == 0
        assert capsys.readouterr().out.split() == listed
    assert command.main(["--device", "cpu", "--cases", "nothing*"]) == 2
    assert "no case is named 'nothing*'; there are: mask-gauss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "extras", "called"),
    [
        ([], [], ["-m", "qp_kernels.bench"]),
        (["--quick", "--cases", "*b1-*"], [], ["-m", "qp_kernels.bench", "--quick", "--cases", "*b1-*"]),
        (["qrita_cpu", "--repeats", "3"], ["model", "dev"], ["benchmarks/qrita_cpu.py", "--repeats", "3"]),
        (["qrita_gpu"], ["model", "dev"], ["benchmarks/qrita_gpu.py"]),
    ],
)
def test_make_bench(monkeypatch, arguments, extras, called):
    seen = []
    monkeypatch.setattr(environment, "ensure", lambda wanted: seen.append(wanted) or SimpleNamespace(python="python"))
    monkeypatch.setattr(commands.subprocess, "call", lambda line, **options: seen.append(line) or 0)
    assert commands.main(["bench", *arguments]) == 0
    assert seen[0] == extras and [part.removeprefix(f"{ROOT}/") for part in seen[1]] == ["python", *called]


def test_make_bench_knows_no_other_names(capsys):
    assert commands.main(["bench", "faster"]) == 1
    said = capsys.readouterr()
    words = "no benchmark is named faster; there are: ablation, captured_index, index_captures, kernel_times, live_rows"
    assert words in said.out + said.err
