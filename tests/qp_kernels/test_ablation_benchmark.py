"""benchmarks/ablation.py on tiny rows: its records are those that the figure reads, and say what differs."""

import sys

import pytest
import scripts
import torch

from qp_kernels import results, timing
from qp_kernels.bench import Case, WrongResult, make
from qp_kernels.qrita import ablation

DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.interpreted),
]
CASE = Case("gauss", 2, 601, 20, 0.9)
# What widgets/timing_ablation.py reads.
FIELDS = {"run", "label", "rows", "batch", "vocab", "k", "p", "median_us", "p20_us", "p80_us", "repetitions"}
FIELDS |= {"times_floor", "paper_ms", "exact", "rows_differ", "hits"}


@pytest.fixture(scope="module")
def script():
    return scripts.load("ablation")


def test_runs_and_times_of_the_paper(script):
    assert script.CASE[1:5] == (1024, 128_256, 50, 0.9)
    assert set(script.PAPER_MS) == set(ablation.RUNS) - {"H"}


@pytest.mark.parametrize("device", DEVICES)
def test_records(script, device, tmp_path):
    said = []
    records = script.ablate(CASE, make(CASE, device), ("A", "D", "J", "ours"), repetitions=2, say=said.append)
    assert [record["run"] for record in records] == ["A", "D", "J", "ours"] and len(said) == 5
    assert all(set(record) >= FIELDS and record["repetitions"] == 2 for record in records)
    assert all(record["exact"] and record["rows_differ"] == 0 for record in records)
    assert [record["hits"] for record in records] == [1.0, 0.0, None, 1.0]
    assert [record["paper_ms"] for record in records] == [0.919, 5.373, 16.487, None]
    assert all(record["times_floor"] == record["median_us"] / record["floor_us"] for record in records)
    results.write("ablation", records, folder=tmp_path)
    table = script.table(records)
    assert "A    complete" in table and "ours top_k_top_p" in table and "!" not in table


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_a_run_keeps_more_of(script, device):
    """Without a look at duplicates all ties at the cut stay."""
    rows = make(CASE, device).clone()
    rows[1] = torch.arange(601, device=device) % 40 / 40.0
    case = CASE._replace(p=1.0)
    (record,) = script.ablate(case, rows, ("C",), repetitions=1, say=lambda line: None)
    assert not record["exact"] and record["rows_differ"] == 1
    assert "! rows that differ from top_k_top_p: C gauss 1" in script.table([record])


def test_nothing_is_timed_while_ours_is_wrong(script, monkeypatch):
    monkeypatch.setattr(script, "wrong_rows", lambda *arguments: 1)
    monkeypatch.setattr(timing, "measure", None)
    with pytest.raises(WrongResult, match="keeps a wrong set in 1 of 2 gauss rows"):
        script.ablate(CASE, make(CASE, "cpu"))


def test_slow_runs_have_fewer_samples(script, monkeypatch):
    def clock(us):
        return lambda call, device, repetitions, warmup: timing._timing([us] * repetitions, "gpu", 0)

    for us, count in ((300.0, 30), (20_000.0, 20), (1e6, script.FEWEST)):
        monkeypatch.setattr(timing, "measure", clock(us))
        assert len(script._timed(None, torch.zeros(1), 30).samples_us) == count
        assert len(script._timed(None, torch.zeros(1), 2).samples_us) == 2


def test_without_a_gpu(script, monkeypatch, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    monkeypatch.setattr(sys, "argv", ["ablation.py"])
    assert script.main() == 2 and "--small" in capsys.readouterr().err


def test_end_to_end(script, monkeypatch, capsys, tmp_path):
    """What `--small` does, with a run that needs no kernel."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: False)
    for wrong in (0, 1):
        monkeypatch.setattr(script, "wrong_rows", lambda *arguments, wrong=wrong: wrong)
        monkeypatch.setattr(
            sys, "argv", ["ablation.py", "--small", "--runs", "ours", "--record", "--folder", str(tmp_path)]
        )
        assert script.main() == wrong
    (record,) = results.read("ablation", folder=tmp_path).records
    assert record["run"] == "ours" and record["paper_ms"] is None and "ours top_k_top_p" in capsys.readouterr().out
