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
    worker = Worker(("capture", "draw", "warm"), lambda *what: told.append(what), "draw", "warm", 20)
    yield worker
    worker.close()
    assert not worker.alive


def test_burst_runs_first_at_once_and_last_always(worker):
    ran = []
    start = time.monotonic()
    worker.submit("draw", lambda job: ran.append((0, time.monotonic())))
    while not ran and time.monotonic() - start < 1:
        time.sleep(0.001)  # the thread has its first time slice when a busy machine gives it one
    for i in range(1, 100):
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
        worker.submit("capture", lambda job: ran.append("capture"))
        worker.wait(5)
    assert time.monotonic() - start < 0.2
    assert ran == ["draw"] + ["capture"] * 5


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


def start_long_capture(worker, what):
    """A capture that tells its progress for ten seconds; returns once it runs."""
    started = threading.Event()

    def long(job):
        for i in range(10_000):
            job.progress(i, 10_000, what)
            started.set()
            time.sleep(0.001)

    worker.submit("capture", long)
    assert started.wait(5)


def test_cancel_stops_a_long_job_and_drops_what_waits(worker, told):
    ran = []
    start_long_capture(worker, "counting")
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


def test_errors_are_kept_by_kind(worker):
    """A later drawing or background job must not wipe what went wrong with the text."""

    def fail(job):
        raise ValueError("the text is empty")

    worker.submit("capture", fail)
    worker.submit("draw", lambda job: None)
    worker.submit("warm", lambda job: worker.submit("warm", lambda job: None))
    with pytest.raises(ValueError, match="empty"):
        worker.wait(5)


def test_a_newer_request_cancels_a_running_one_of_its_kind(worker, told):
    ran = []
    start_long_capture(worker, "old text")
    worker.submit("capture", lambda job: ran.append("new text"))
    worker.wait(5)
    assert ran == ["new text"]
    assert not [state for _, state, _ in told if state == "cancelled"], "what was replaced is not worth a word"


def test_nobody_waits_for_background_work(worker):
    gate = threading.Event()
    worker.submit("warm", lambda job: gate.wait(5))
    worker.submit("warm", lambda job: None, delay_s=60)
    worker.wait(0.5)
    gate.set()


def test_a_delayed_request_runs_later_and_not_before_a_draw(worker):
    ran = []
    worker.submit("warm", lambda job: ran.append(("warm", time.monotonic())), delay_s=0.15)
    start = time.monotonic()
    worker.submit("draw", lambda job: ran.append(("draw", time.monotonic())))
    while len(ran) < 2 and time.monotonic() - start < 5:
        time.sleep(0.01)
    assert [kind for kind, _ in ran] == ["draw", "warm"] and ran[1][1] - start >= 0.15


def test_a_status_that_cannot_be_shown_does_not_end_the_worker():
    def broken(kind, state, text):
        raise RuntimeError("the page is gone")

    worker, ran = Worker(("draw",), broken, "draw"), []
    try:
        worker.submit("draw", ran.append)
        with pytest.raises(RuntimeError, match="gone"):
            worker.wait(5)
        worker.submit("draw", ran.append)
        with pytest.raises(RuntimeError, match="gone"):
            worker.wait(5)
        assert len(ran) == 2 and worker.alive
    finally:
        worker.close()


def test_the_end_is_told_also_after_a_job_that_outlasts_close():
    gate, started, ended = threading.Event(), threading.Event(), []
    worker = Worker(("draw",), lambda *what: None, "draw", on_end=lambda: ended.append(1))
    worker.submit("draw", lambda job: (started.set(), gate.wait(10)))
    assert started.wait(5)
    worker.close(timeout_s=0.05)
    assert worker.alive and not ended
    gate.set()
    worker.close()
    assert ended == [1] and not worker.alive


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


def test_a_script_that_ends_while_a_panel_works_ends_quietly():
    import subprocess
    import sys

    code = (
        "import torch\nfrom widgets import LogitExplorer\n"
        "panel = LogitExplorer(torch.randn(3, 262144))\n"
        "panel.submit('warm', lambda job: [torch.randn(500, 500) @ torch.randn(500, 500) for _ in range(200)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "terminate" not in done.stderr, done.stderr


def stepping(worker, ran, more=lambda i: None):
    """Submit a job of five steps; `more(i)` runs in each."""

    def steps(job):
        for i in range(5):
            job.progress(i, 5, "steps")
            more(i)
            ran.append(i)
            yield

    worker.submit("warm", steps)


def test_urgent_requests_run_between_the_steps_of_a_job(worker):
    ran = []
    stepping(worker, ran, lambda i: worker.submit("draw", lambda job: ran.append("draw")) if i == 2 else None)
    worker.submit("capture", lambda job: None)
    deadline = time.monotonic() + 5
    while 4 not in ran and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ran == [0, 1, 2, "draw", 3, 4]


def test_wait_and_cancel_reach_a_job_that_lets_others_pass(told):
    worker, ran, gate = Worker(("draw", "scan"), lambda *what: told.append(what), "draw"), [], threading.Event()

    def steps(job):
        for i in range(1000):
            job.progress(i, 1000, "scan")
            ran.append(i)
            gate.wait(0.005)
            yield

    worker.submit("scan", steps)
    while not ran:
        time.sleep(0.001)
    with pytest.raises(TimeoutError):
        worker.wait(0.05)
    worker.submit("draw", lambda job: worker.cancel())
    worker.wait(5)
    worker.close()
    assert 0 < len(ran) < 1000 and ("scan", "cancelled", "scan") in told


def test_a_newer_request_ends_a_job_that_lets_others_pass(told):
    worker, ran, gate = Worker(("draw", "scan"), lambda *what: told.append(what), "draw"), [], threading.Event()

    def steps(name, job):
        for i in range(3):
            job.progress(i, 3, name)
            ran.append(name)
            gate.wait(0.05)
            yield

    worker.submit("scan", lambda job: steps("old", job))
    while not ran:
        time.sleep(0.001)
    worker.submit("draw", lambda job: worker.submit("scan", lambda job: steps("new", job)))
    worker.wait(5)
    worker.close()
    assert ran[-3:] == ["new"] * 3 and ran.count("old") < 3
    assert not any(state == "cancelled" for _, state, _ in told)


def test_an_error_in_a_later_step_is_raised_by_wait(worker):
    def steps(job):
        yield
        raise ValueError("the second step failed")

    worker.submit("capture", steps)
    with pytest.raises(ValueError, match="second step"):
        worker.wait(5)
