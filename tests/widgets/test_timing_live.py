"""TimingExplorer measures: small cases on this CPU, one at a time, with progress and Cancel; what a GPU would offer."""

import functools
import threading

import pytest
import torch

from qp_kernels import bench, results
from widgets import TimingExplorer, timing_live
from widgets.timing_live import LiveTimings
from widgets.timing_records import Spot

SMALL = {"batch": 2, "vocab": 1024, "device": "cpu"}


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, TimingExplorer)


@pytest.fixture(autouse=True)
def same_threads():
    """The code that a panel gives sets them for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def live(make):
    return functools.partial(make, "live", **SMALL)


def one(panel, trace_of, name):
    trace = trace_of(panel, name)
    assert len(trace.x) == 1
    return trace.x[0]


def test_without_a_record_this_machine_is_measured(make, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_folder", lambda _: tmp_path)
    panel = make(**SMALL)
    assert [value for _, value in panel.source.options] == ["live"] and "this CPU" in panel.source.options[0][0]
    assert panel.caption.startswith("measured here on the CPU")


@pytest.mark.parametrize(
    "arguments",
    [
        {"operation": "sort"},
        {"clock": "sundial"},
        {"sweep": "rows"},
        {"k": -2},
        {"p": 1.5},
        {"dtype": "float8"},
        {"rows": "live"},
        {"providers": ("cub",)},
        {"batch": 64, "vocab": 262_144 * 4},
        {"k": None, "p": None},
        {"own": {"vllm": torch.sort}},
    ],
)
def test_bad_arguments_say_what_is_accepted(arguments):
    before = threading.active_count()
    with pytest.raises((ValueError, TypeError)):
        panel = TimingExplorer("live", **{**SMALL, **arguments})
        try:
            panel.wait(30)
        finally:
            panel.close()
    assert threading.active_count() == before


def test_this_cpu_is_measured(live, trace_of):
    panel = live(providers=("qp_kernels", "torch_topk"))
    frame = panel.to_frame().set_index("provider")
    assert list(frame.index) == ["floor_read_write", "qp_kernels", "torch_topk"]
    assert set(frame["mode"]) == {"wall"} and set(frame["repetitions"]) == {10} and frame["correct"].all()
    assert one(panel, trace_of, "qp_kernels") == frame.loc["qp_kernels", "median_us"]
    assert "a CPU's numbers say little of a GPU's" in panel.caption and panel.clock.options == (("wall clock", "wall"),)
    before = dict(panel.to_frame().iloc[1])
    panel.k.value = 20
    panel.wait(60)
    assert set(panel.to_frame()["k"]) == {20}
    panel.k.value = 50
    panel.wait(60)
    assert dict(panel.to_frame().iloc[1]) == before, "what is known is not measured again"
    panel.run_button.click()
    panel.wait(60)
    assert dict(panel.to_frame().iloc[1]) != before, "but on Run it is"


def test_code_measures_again(live):
    panel = live(providers=("qp_kernels",))
    scope = {}
    exec(panel.code(), scope)
    assert [r["provider"] for r in scope["records"]] == ["floor_read_write", "qp_kernels"]


def test_a_line_is_measured_on_run(live, trace_of, monkeypatch):
    monkeypatch.setitem(timing_live.LINE, "batch", (1, 2, 4))
    panel = live(providers=("qp_kernels",), sweep="batch")
    assert not panel._live.by_spot and "press Run" in panel.summary
    panel.run_button.click()
    panel.wait(60)
    assert list(trace_of(panel, "qp_kernels").x) == [1, 2, 4]
    assert "B from 1 to 4" in panel.summary


def test_an_own_way_stands_beside_the_others(live, trace_of):
    def mine(logits, k, p):
        return logits

    panel = live(own={"mine": mine}, providers=("qp_kernels", "mine"), p=None)
    record = panel.to_frame().set_index("provider").loc["mine"]
    assert not record["correct"] and record["wrong_rows"] > 0
    assert one(panel, trace_of, "mine") == record["median_us"]
    assert "rows wrong" in panel.summary and trace_of(panel, "mine").marker.symbol.endswith("-open")


def test_an_error_of_an_own_way_is_shown(live):
    def broken(logits, k, p):
        if len(logits) and logits.shape[1] == 4096:
            raise RuntimeError("planted")
        return logits

    panel = live(own={"broken": broken}, providers=("broken",))
    panel.vocab.value = 4096
    with pytest.raises(RuntimeError, match="planted"):
        panel.wait(60)
    assert "planted" in panel.status


def test_sizes_beyond_this_machine_are_an_error_in_the_panel(live):
    panel = live(providers=("qp_kernels",), vocab=262_144, batch=1)
    panel.batch.value = 64
    panel.dtype.value = "float32"
    with pytest.raises(ValueError, match="at most 34 MB are measured on this CPU"):
        panel.wait(60)
    assert "take fewer rows" in panel.status
    panel.batch.value = 1
    panel.wait(60)
    panel.k.value, panel.p.value = 0, 1.0
    with pytest.raises(ValueError, match="k or p"):
        panel.wait(60)
    panel.k.value = 5
    panel.wait(60)
    assert panel.status == ""


def test_cancel_stops_a_measurement(make):
    panel = make("live", providers=("qp_kernels",), **SMALL)
    panel.repetitions.value = 100
    with timing_live._one_at_a_time:  # it waits for its turn, and says so
        panel.run_button.click()
        for _ in range(200):
            if "another panel measures" in panel.status:
                break
            threading.Event().wait(0.02)
        assert "another panel measures" in panel.status
        panel.cancel()
        panel.wait(10)
    assert "cancelled" in panel.status
    assert set(panel.to_frame()["repetitions"]) == {10}, "what was shown stays"


def test_a_model_s_rows_are_measured_and_bound_v(live, trace_of):
    logits = torch.randn(3, 5003)
    panel = live(logits=logits, providers=("qp_kernels",))
    panel.rows.value = "live"
    panel.wait(60)
    assert panel.vocab.grid == [1024, 4096, 5003] and set(panel.to_frame()["rows"]) == {"live"}
    scope = {"given": logits}
    exec(panel.code().replace("logits = ...", "logits = given"), scope)
    assert scope["records"][1]["rows"] == "live"
    with pytest.raises(ValueError, match=r"logits must be floating point \[R, V\]"):
        TimingExplorer("live", logits=logits[0], **SMALL)


def test_who_is_left_out_is_said(live, monkeypatch):
    def provider():
        def call(case, device):
            raise OSError("planted reason")

        return bench.Provider("torch_topk", "0", call)

    monkeypatch.setattr(bench, "providers", lambda device, own=None: {"torch_topk": provider()})
    panel = live(providers=("torch_topk",))
    assert "without torch_topk: planted reason" in panel.caption and panel.status == ""


def test_a_gpu_offers_the_clocks_that_suit_the_size(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Card", (), {"total_memory": 16 << 30}))
    timings = LiveTimings("cuda")
    small = Spot("gauss", 16, 128_256, 50, 0.9)
    assert timings.choices(small)["clock"] == ["gpu", "wall"] and timings.device == "NVIDIA Test"
    assert timings.choices(small._replace(batch=1024))["clock"] == ["gpu"]
    assert [spot.batch for spot in timings.line_of(small._replace(clock="wall"), "batch")] == [1, 2, 4, 8, 16, 32, 64]
    assert timings.line_of(small, "batch")[-1].batch == 1024
    with pytest.raises(ValueError, match="clock must be one of 'gpu'"):
        timings.check(small._replace(batch=1024, clock="wall"))
    with pytest.raises(ValueError, match="NVIDIA Test"):
        timings.check(small._replace(batch=4096, vocab=262_144))


@pytest.mark.gpu
def test_this_gpu_is_measured(make):
    panel = make("live", batch=16, vocab=32_768, providers=("qp_kernels", "torch_topk"))
    assert set(panel.to_frame()["mode"]) == {"graph"} and panel.to_frame()["peak_bytes"].notna().any()
    panel.clock.value = "wall"
    panel.wait(60)
    assert set(panel.to_frame()["mode"]) == {"wall"} and bench.modes(panel._view.spot.case, "cuda") == ("graph", "wall")
