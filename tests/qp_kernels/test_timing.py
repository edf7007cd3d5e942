"""Timing of calls: quantiles, turns of the inputs, cancelling, refused arguments; on a GPU what the modes hold."""

import gc
import time
from types import SimpleNamespace

import pytest
import torch

from qp_kernels import timing
from qp_kernels.timing import Timing, measure

ROWS = [torch.zeros(3), torch.ones(3)]


def test_the_fields_are_in_microseconds_and_in_order():
    found = measure(lambda: time.sleep(0.002), repetitions=7, warmup=0, device="cpu")
    assert isinstance(found, Timing) and found.mode == "wall" and found.late == 0
    assert len(found.samples_us) == 7 and all(2000 <= sample < 2_000_000 for sample in found.samples_us)
    assert found.p20_us <= found.median_us <= found.p80_us


def test_quantiles_are_those_of_the_samples():
    found = timing._timing([5.0, 1.0, 4.0, 2.0, 3.0, 6.0], "gpu", 2)
    assert (found.p20_us, found.median_us, found.p80_us) == (2.0, 3.5, 5.0) and found.late == 2
    assert found.samples_us == (5.0, 1.0, 4.0, 2.0, 3.0, 6.0)


def test_inputs_take_turns_and_prepare_comes_before_every_call():
    seen = []
    measure(
        lambda x: seen.append(("call", float(x[0]))),
        ROWS,
        repetitions=3,
        warmup=1,
        prepare=lambda x: seen.append(("prepare", float(x[0]))),
    )
    turns = [0.0, 0.0, 1.0, 0.0]
    assert seen == [(what, turn) for turn in turns for what in ("prepare", "call")]


def test_prepare_is_not_timed():
    found = measure(lambda: None, repetitions=3, device="cpu", prepare=lambda: time.sleep(0.05))
    assert found.median_us < 20_000


def test_progress_tells_each_sample_and_may_end_it():
    told = []
    measure(lambda: None, repetitions=3, device="cpu", progress=lambda *place: told.append(place))
    assert told == [(1, 3), (2, 3), (3, 3)]

    class Cancelled(Exception):
        pass

    def cancel(done, total):
        if done == 2:
            raise Cancelled

    calls = []
    with pytest.raises(Cancelled):
        measure(lambda: calls.append(1), repetitions=100, warmup=0, device="cpu", progress=cancel)
    assert len(calls) == 2 and gc.isenabled()


def test_the_collector_rests_meanwhile():
    was_on = []
    measure(lambda: was_on.append(gc.isenabled()), repetitions=1, device="cpu")
    assert not any(was_on) and gc.isenabled()


def test_what_the_call_raises_comes_out():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, device="cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repetitions": 0}, "repetitions must be an int >= 1, got 0"),
        ({"repetitions": 2.0}, "repetitions must be an int"),
        ({"repetitions": True}, "repetitions must be an int"),
        ({"warmup": -1}, "warmup must be an int >= 0, got -1"),
        ({"mode": "fast"}, "mode must be one of 'auto', 'gpu', 'graph', 'wall', got 'fast'"),
        ({"mode": "gpu"}, "mode='gpu' needs a CUDA device, got 'cpu'"),
        ({"mode": "graph"}, "needs a CUDA device"),
        ({"device": "nowhere"}, "device must be a device of torch"),
        ({"device": "meta"}, "inputs are on cpu"),
        ({"prepare": 3}, "prepare must be callable, got int"),
        ({"progress": "x"}, "progress must be callable"),
        ({"inputs": torch.ones(2, 3)}, r"inputs must be a list of tensors, got Tensor: pass \[x\]"),
        ({"inputs": [torch.ones(1), torch.ones(1, device="meta")]}, "on one device, got cpu, meta"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(lambda x: x, **{"inputs": ROWS, **arguments})
    with pytest.raises(ValueError, match="fn must be callable"):
        measure(3, ROWS)


def test_without_inputs_and_device_the_gpu_is_taken_where_there_is_one():
    found = measure(lambda: None, repetitions=1)
    assert found.mode == ("gpu" if torch.cuda.is_available() else "wall")


def test_waking_a_cpu_is_nothing():
    start = time.monotonic()
    timing.wake("cpu", 60)
    assert time.monotonic() - start < 10


class Card:
    """A GPU of which it is known how long the host takes to enqueue the timed part, in cycles."""

    def __init__(self, host):
        self.host, self.headroom, self.done = host, 0, []

    def sleep(self, cycles):
        self.headroom = cycles
        self.done.append("sleep")

    def event(self, enable_timing):
        return SimpleNamespace(
            record=lambda: self.done.append("event"),
            query=lambda: self.headroom <= self.host,
            synchronize=lambda: self.done.append("wait"),
            elapsed_time=lambda end: 0.25,
        )


@pytest.mark.parametrize(
    ("host", "tries", "late"), [(0, [1, 1], 0), (300_000, [2, 1], 0), (10**6, [4, 1], 0), (10**9, [9, 1], 2)]
)
def test_samples_are_taken_again_while_the_host_is_late(monkeypatch, host, tries, late):
    card = Card(host)
    monkeypatch.setattr(torch.cuda, "_sleep", card.sleep, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", card.event)
    timer = timing._EventTimer(lambda: card.done.append("flush"))
    for count in tries:
        card.done.clear()
        assert timer.sample(lambda: card.done.append("call"), lambda: card.done.append("prepare")) == 250.0
        assert card.done == ["sleep", "prepare", "flush", "event", "call", "event", "wait"] * count
    assert timer.late == late


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["gpu", "graph", "wall"])
def test_a_copy_takes_about_what_the_memory_needs(mode):
    source = torch.rand(64 << 20, device="cuda")  # 256 MB: .1 to 2 ms
    target = torch.empty_like(source)
    timing.wake("cuda")
    found = measure(target.copy_, [source], mode=mode)
    assert found.mode == mode and found.late == 0
    assert 2 * 256 / 20e6 * 1e6 < found.median_us < 20_000
    assert found.p80_us < 2 * found.p20_us


@pytest.mark.gpu
def test_launches_are_not_part_of_gpu_time():
    x = torch.rand(16, device="cuda")

    def slow_host(y):
        time.sleep(0.002)
        y.add_(1)
        time.sleep(0.002)
        y.add_(1)

    found = measure(slow_host, [x], repetitions=5, warmup=1)
    assert found.late == 0 and found.median_us < 500  # two tiny kernels, and no sleep of the host
    assert measure(slow_host, [x], repetitions=3, mode="wall").median_us > 4000


@pytest.mark.gpu
def test_a_call_that_waits_for_the_gpu_is_told_and_cannot_be_captured():
    x = torch.rand(16, device="cuda")
    assert measure(lambda y: y.sum().item(), [x], repetitions=4).late == 4
    with pytest.raises(ValueError, match="waits for the GPU"):
        measure(lambda y: y.sum().item(), [x], mode="graph")
    assert torch.rand(3, device="cuda").sum() > 0  # the generator is usable afterwards


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["gpu", "graph"])
def test_a_cold_cache_is_slower_than_a_warm_one(mode):
    x = torch.rand(2 << 20, device="cuda")  # 8 MB fit into the L2
    out = torch.empty((), device="cuda")
    cold, warm = (measure(lambda y: torch.amax(y, 0, out=out), [x], mode=mode, cold=c) for c in (True, False))
    assert cold.median_us > warm.median_us


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["gpu", "graph", "wall"])
def test_what_works_in_place_gets_fresh_rows(mode):
    fresh, work = torch.zeros(1024, device="cuda"), torch.empty(1024, device="cuda")
    measure(lambda y: y.add_(1), [work], mode=mode, repetitions=4, prepare=lambda y: y.copy_(fresh))
    assert work.eq(1).all()
