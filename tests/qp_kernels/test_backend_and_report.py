"""The choice of a back-end, its reason, and the report."""

import json
import subprocess
import sys

import pytest
import torch

from qp_kernels import backend, report
from qp_kernels.qrita import sample, select, top_k_top_p, truncation

LOGITS = torch.zeros(2, 3)


@pytest.fixture(autouse=True)
def no_card(monkeypatch):
    """A machine without a card, whatever runs the tests."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(backend, "nvidia_smi", lambda field: None)
    backend.card_problem.cache_clear()
    yield
    backend.card_problem.cache_clear()


def test_torch_on_the_cpu_and_why():
    for where in ("cpu", torch.device("cpu"), LOGITS):
        chosen = backend.resolve(where)
        assert chosen.name == "torch" and "on the CPU" in chosen.reason
    assert backend.resolve("cpu", "torch").reason == "asked for"
    assert str(chosen).startswith("torch (")


@pytest.mark.parametrize("function", [top_k_top_p, select, sample, truncation])
def test_triton_on_a_cpu_tensor_says_what_to_do(function):
    with pytest.raises(RuntimeError, match="CUDA tensors or TRITON_INTERPRET=1.*backend='torch'"):
        function(LOGITS, 1, backend="triton")
    function(LOGITS, 1, backend="torch")


def test_every_obstacle_is_named(monkeypatch):
    monkeypatch.setattr(backend, "has_triton", lambda: False)
    assert "triton is not installed" in backend.resolve("cuda").reason
    monkeypatch.setattr(backend, "has_triton", lambda: True)
    assert backend.resolve("cuda") == backend.Resolution("triton", "the tensors are on cuda")
    assert backend.resolve("cuda", "triton").reason == "asked for"
    assert backend.resolve("cpu").name == "torch"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.resolve("cpu", "triton").name == "triton" and backend.resolve("cpu").name == "torch"


def test_a_card_that_torch_cannot_use(monkeypatch):
    monkeypatch.setattr(backend, "nvidia_smi", lambda field: "Tesla K80")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "Tesla K80 is there, but torch" in backend.resolve("cpu").reason
    backend.card_problem.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "12.8")

    def too_old():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 9010).\nMore.")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    reason = backend.resolve("cpu").reason
    assert "Tesla K80 is there but unusable: The NVIDIA driver on your system is too old" in reason
    assert "More" not in reason
    backend.card_problem.cache_clear()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "CUDA_VISIBLE_DEVICES" in backend.card_problem()


def test_nvidia_smi_that_fails_is_no_card(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)
    assert backend.nvidia_smi("name") is None
    for program in (sys.executable, str(tmp_path / "missing")):  # fails, and cannot be started
        monkeypatch.setattr(backend.shutil, "which", lambda name, program=program: program)
        assert backend.nvidia_smi("name") is None
    answer = subprocess.CompletedProcess([], 0, stdout="NVIDIA H200\nNVIDIA H200\n", stderr="")
    monkeypatch.setattr(backend.subprocess, "run", lambda *args, **options: answer)
    assert backend.nvidia_smi("name") == "NVIDIA H200"


@pytest.mark.parametrize(("where", "requested", "error"), [("cpu", "cuda", ValueError), ("meta", "auto", RuntimeError)])
def test_refused(where, requested, error):
    with pytest.raises(error):
        backend.resolve(where, requested)


def test_report_names_versions_device_and_reason():
    rows = report().as_dict()
    assert rows["torch"] == torch.__version__ and rows["python"].startswith(f"{sys.version_info.major}.")
    assert rows["GPU"] == "none" and rows["driver"] == "none" and "cores" in rows["CPU"]
    assert rows["back-end"].startswith("torch: ") and json.loads(json.dumps(rows)) == rows
    assert all(name in str(report()) for name in rows)


def test_report_without_triton_and_with_a_broken_card(monkeypatch):
    from qp_kernels.report import metadata

    def version(name):
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(backend, "nvidia_smi", lambda field: "<Tesla & K80>")
    monkeypatch.setattr(torch.version, "cuda", None)
    rows = report()
    assert rows.as_dict()["triton"] == "not installed" and "<Tesla & K80> is there" in rows.as_dict()["GPU"]
    assert "&lt;Tesla &amp; K80&gt;" in rows._repr_html_() and "<Tesla" not in rows._repr_html_()


def test_import_is_light_and_needs_no_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, qp_kernels.attention, qp_kernels.qrita, qp_kernels.qrita.rivals as r, qp_kernels as q\n"
        "print(q.qrita.top_k_top_p(torch.tensor([1.0, 2.0]), 1).tolist(), q.report().as_dict()['back-end'])\n"
        "assert not {'transformers', 'pandas', 'plotly'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("[-inf, 2.0] torch: "), done.stderr
