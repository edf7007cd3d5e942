"""The worker: latest wins, the last always runs, errors and cancellation reach whoever waits."""

import threading
import time

import pytest

from widgets.jobs import Worker, describe


@pytest.fixture
def told():
    return []


@pytest.fixture
def worker(told):
    worker = Worker(("capture", "draw", "warm"), lambda *what: told.append(what), limited="draw", updates_per_s=20)
    yield worker
    worker.close()
    assert not worker.alive


def test_burst_runs_first_at_once_and_last_always(worker):
    ran = []
    for i in range(100):
        worker.submit("draw", lambda job, i=i: ran.append((i, time.monotonic())))
        time.sleep(0.002)
    worker.wait(5)
    numbers = [i for i, _ in ran]
    assert numbers[0] == 0 and numbers[-1] == 99 and numbers == sorted(numbers)
    gaps = [b - a for (_, a), (_, b) in zip(ran, ran[1:], strict=False)]
    assert all(gap >= 0.045 for gap in gaps), "the rate limit of 20 a second was not kept"
    assert len(ran) < 30, "requests that had been replaced still ran"


def test_only_the_limited_kind_waits(worker):
    ran = []
    worker.submit("draw", lambda job: ran.append("draw"))
    worker.wait(5)
    start = time.monotonic()
    for _ in range(5):
        worker.submit("warm", lambda job: ran.append("warm"))
        worker.wait(5)
    assert time.monotonic() - start < 0.2
    assert ran == ["draw"] + ["warm"] * 5


def test_urgent_kind_goes_first(worker):
    gate, ran = threading.Event(), []
    worker.submit("warm", lambda job: gate.wait(5))
    for kind in ("warm", "draw", "capture"):
        worker.submit(kind, lambda job, kind=kind: ran.append(kind))
    gate.set()
    worker.wait(5)
    assert ran == ["capture", "draw", "warm"]


def test_error_is_told_and_raised_once(worker, told):
    def fail(job):
        raise ValueError("p must be in [0, 1], got 7")

    worker.submit("draw", fail)
    with pytest.raises(ValueError, match="got 7"):
        worker.wait(5)
    assert ("draw", "error", "p must be in [0, 1], got 7") in told
    worker.wait(5)
    worker.submit("draw", lambda job: None)
    worker.wait(5)
    assert told[-1] == ("draw", "idle", "")


def test_cancel_stops_a_long_job_and_drops_what_waits(worker, told):
    started, ran = threading.Event(), []

    def long(job):
        for i in range(10_000):
            job.progress(i, 10_000, "counting")
            started.set()
            time.sleep(0.001)

    worker.submit("capture", long)
    assert started.wait(5)
    worker.submit("draw", lambda job: ran.append(1))
    worker.cancel()
    worker.wait(5)
    assert not ran
    assert any(state == "busy" and text.endswith("of 10,000") for _, state, text in told)
    assert told[-1][1:] == ("cancelled", "counting")


def test_wait_times_out_and_refuses_its_own_thread(worker):
    gate, seen = threading.Event(), []
    worker.submit("capture", lambda job: gate.wait(5))
    with pytest.raises(TimeoutError):
        worker.wait(0.05)
    gate.set()

    def wait_inside(job):
        with pytest.raises(RuntimeError, match="block"):
            worker.wait(1)
        seen.append(1)

    worker.submit("draw", wait_inside)
    worker.wait(5)
    assert seen


def test_closed_worker_refuses_work(worker):
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit("draw", lambda job: None)


def test_jobs_run_without_gradients(worker):
    import torch

    seen = []
    with torch.enable_grad():
        worker.submit("draw", lambda job: seen.append(torch.is_inference_mode_enabled()))
        worker.wait(5)
    assert seen == [True]


def test_describe_names_the_type_when_the_message_alone_says_little():
    assert describe(KeyError("logits")) == "KeyError: 'logits'"
    assert describe(ValueError("")) == "ValueError"
    assert describe(ValueError("too\n many")) == "too many"
