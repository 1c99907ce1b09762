"""acquire waits without the GIL, and Ctrl-C ends it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import lane_held, run, until
from workglow_limit import AcquireTimeout, ConcurrencyLimiter, ManualClock, RateLimiter, Store

FULL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job inherits that it is ignored.
from workglow_limit import ConcurrencyLimiter, RateLimiter, Store
rate = RateLimiter(Store(sys.argv[1]), "jobs", max_executions=1, window_size_in_seconds=3600)
limiter = ConcurrencyLimiter(1) if sys.argv[2] == "concurrency" else rate
permit = limiter.acquire()
"""


@pytest.mark.parametrize("kind", ["rate", "concurrency"])
def test_ctrl_c_interrupts_acquire(kind, url):
    # Another thread sends it, so the waiter does not hold the GIL.
    said = run(FULL + """
import os, threading
try:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    limiter.acquire()
except KeyboardInterrupt:
    print("interrupted", limiter.can_proceed())
permit.complete()
""", url, kind)  # fmt: skip
    assert said == "interrupted False\n"


@pytest.mark.parametrize("how", ["SIGINT", "SIGUSR1"])
def test_an_interrupted_waiter_returns_its_place(how, url):
    said = run(FULL + """
import os, threading, time
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGUSR1, stop)
def interrupt():
    while limiter.peek().retry_after <= 3600:  # It has no place yet.
        time.sleep(0.001)
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
threading.Thread(target=interrupt).start()
try:
    limiter.acquire()
except (Stop, KeyboardInterrupt) as stopped:
    print(type(stopped).__name__, limiter.peek().retry_after <= 3600)
""", url, "rate", how)  # fmt: skip
    assert said == {"SIGINT": "KeyboardInterrupt", "SIGUSR1": "Stop"}[how] + " True\n"


def test_a_timed_out_waiter_holds_nothing(url):
    limiter = RateLimiter(Store(url, clock=ManualClock()), "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.acquire()
    for _ in range(3):
        with pytest.raises(AcquireTimeout):
            limiter.acquire(timeout=59)
    assert limiter.peek().retry_after == 60.0


def test_a_completion_releases_a_waiter():
    run(FULL + """
import threading
waiter = threading.Thread(target=lambda: limiter.acquire().complete())
waiter.start()
permit.complete()
waiter.join()
""", "memory:", "concurrency")  # fmt: skip


def test_all_waiters_start(url):
    limiter = RateLimiter(Store(url), "jobs", max_executions=5, window_size_in_seconds=0.05)
    with ThreadPoolExecutor(8) as pool:
        permits = list(pool.map(lambda _: limiter.acquire("k", timeout=60), range(40)))
    assert len(permits) == 40


def test_a_waiter_follows_a_manual_clock(url):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=3600)
    limiter.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(limiter.acquire)
        while limiter.peek().retry_after <= 3600:  # It has no place yet.
            time.sleep(0.001)
        clock.advance(3600)
        assert waiter.result().ready_at is not None


@pytest.mark.parametrize("grace", [None, 0.5])
def test_a_late_waiter_keeps_its_place_within_its_grace(url, grace):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(limiter.acquire, grace=grace)
        until(lambda: limiter.peek().retry_after > 60)  # It has its place now.
        limiter.reserve()
        clock.advance(60.3)  # The clock jumps, so the waiter is late.
        if grace is None:
            until(lambda: limiter.peek().retry_after > 150)  # It waits for a second place, behind the other one.
            clock.advance(200)
            assert waiter.result(100)
        else:
            assert waiter.result(100).ready_at is not None


def test_a_timeout_has_its_retry_delay(url):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.acquire(timeout=0)
    with pytest.raises(
        AcquireTimeout, match='^"jobs" cannot admit this start before the timeout: retry in 60 s$'
    ) as caught:
        limiter.acquire(timeout=59.999999)
    assert caught.value.retry_after == 60.0
    assert isinstance(caught.value, TimeoutError)
    running = ConcurrencyLimiter(1, clock=clock)
    with running.acquire(timeout=0), pytest.raises(AcquireTimeout, match="retry in 0.01 s$") as caught:
        running.acquire(timeout=0)
    assert caught.value.key is None


def test_a_timeout_names_its_key(url):
    limiter = ConcurrencyLimiter(1, store=Store(url), name="jobs")
    for key, shown in ("acme", '"acme"'), ("tenant" * 20, '"' + ("tenant" * 20)[:63] + "…"):
        for timeout in 0, 0.01:  # Without a wait, and after one.
            with limiter.acquire(key), pytest.raises(AcquireTimeout) as caught:
                limiter.acquire(key, timeout=timeout)
            assert caught.value.key == key
            assert f"cannot admit this start for key {shown} before the timeout" in str(caught.value)
            assert repr(type(caught.value)) == "<class 'workglow_limit.AcquireTimeout'>"


def test_the_first_use_releases_the_gil(tmp_path):
    path = tmp_path / "limits.db"
    Store(f"sqlite:{path}").open()
    store = Store(f"sqlite:{path}", timeout=30)
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=60)
    started = threading.Event()

    def use():
        started.set()
        return limiter.try_acquire()

    with ThreadPoolExecutor(1) as pool:
        with lane_held(path):
            first = pool.submit(use)
            started.wait()
        # If it had kept the GIL, this thread could not have released the lane before the timeout.
        assert first.result() is not None
