"""benchmarks/kernel_times.py: which rows each kernel leaves; and (on a GPU) that every kernel of a call is timed."""

import pytest
import scripts
import torch

pytest.importorskip("triton")

from qp_kernels.qrita import configs  # noqa: E402

DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.interpreted),
]


@pytest.fixture(scope="module")
def script():
    return scripts.load("kernel_times")


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_each_kernel_leaves(script, device, monkeypatch):
    rows = torch.randn(3, 9_001, generator=torch.Generator().manual_seed(0)).to(device)
    assert script.leaves(rows, 20, None) == {stage: {"full": 0, "wide": 0} for stage in ("place", "split")}
    monkeypatch.setattr(configs, "most_sampled", lambda name, vocab: 40)
    monkeypatch.setattr(configs, "FEW_ROWS", 0)
    found = script.leaves(rows, None, 0.9)
    assert list(found) == ["place", "hit", "wide"]
    assert found["place"] == found["hit"] == {"full": 0, "wide": 3} and found["wide"]["full"] == 0


@pytest.mark.gpu
def test_every_kernel_of_a_call_is_timed(script):
    rows = torch.randn(300, 9_001, device="cuda")
    for p, stages in ((None, ["place", "hit", "rescue"]), (0.9, ["place", "hit", "wide", "rescue"])):
        times = script.kernel_times([rows], None if p else 20, p, 3)
        assert list(times) == stages and all(time > 0 for time in times.values())
